"""Reports from run files: cells -> tables -> terminal or markdown; cells -> CSV or JSON. Never imports torch.

`cells` joins runs and derives metrics, `tables` lays cells out whatever the output format, `words` names cases,
`setup` and `notes` say how the figures were made and what to doubt, `terminal`, `markdown` and `export` write.
"""
