"""Reports from run files: cells -> tables -> terminal or markdown; cells -> CSV or JSON. Never imports torch.

`cells` joins runs, `sheet` and `batch` derive the figures of all at once, `tables` lays cells out whatever the output format, `words` names cases. `setup`
says how the figures were made, `notes` why cells have none, `cautions` what to doubt, `facts` what they hold.
`terminal`, `markdown` and `export` write.
"""
