"""Reports from run files: cells -> tables -> terminal or markdown; cells -> CSV or JSON. Never imports torch.

`cells` joins runs, `sheet` and `batch` derive the figures of all cells at once, `tables` lays cells out whatever the
output format, `words` names cases. `setup` says how the figures were made, `notes` why cells have none, `cautions` what
to doubt, `facts` what they hold. `rich_table` prints long tables of other commands.
`terminal`, `markdown` and `export` write.
"""
