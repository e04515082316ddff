"""The display of progress while something is measured."""
