"""A comparison of machines, written: rows.py words it, and one file each writes it.

terminal.py, markdown.py, html.py, export.py (CSV, JSON).
"""
