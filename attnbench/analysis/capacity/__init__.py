"""`attnbench capacity`: the largest size that fits, by case and backend, from the records of its search.

findings.py: what was found; memory_growth.py: the fit of memory over size; document.py: table, answer and figure.
"""
