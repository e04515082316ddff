"""The `report` command: cells as tables, with what to know and to doubt of them."""
