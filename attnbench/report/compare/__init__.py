"""A comparison of machines, written: answer.py and rows.py word it, and one file each writes it.

terminal.py, markdown.py, html.py, export.py (CSV, JSON).
"""
