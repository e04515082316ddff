"""Documents and their renderers, one a format; export/ has the formats of other tools, progress/ shows what goes on."""
