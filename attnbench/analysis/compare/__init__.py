"""The `compare` command, for a person who buys hardware: speed, price and memory of machines, from run files."""
