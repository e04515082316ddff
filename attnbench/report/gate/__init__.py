"""The verdict of a gate, written: rows.py words it, and one file each writes it.

terminal.py, markdown.py (a pull request), github.py (annotations, step summary), junit.py, export.py (JSON).
"""
