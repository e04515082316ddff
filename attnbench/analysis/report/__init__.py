"""The `report` command: cells as tables, with cautions and facts."""
