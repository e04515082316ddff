"""Rows and formats for other programs."""
