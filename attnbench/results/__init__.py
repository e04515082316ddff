"""Run files, and the records, metrics and cells that are derived from them."""
