"""Documents and their renderers, one a format; formats of other tools in export/; progress while something is measured."""
