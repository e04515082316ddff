"""The HTML page and its figures."""
