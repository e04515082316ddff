"""The `compare` command, for a person who buys hardware: run files -> machines -> speed, price and memory of each."""
