"""Documents and their renderers, one for each format; export/ has other tools' formats, progress/ shows progress."""
