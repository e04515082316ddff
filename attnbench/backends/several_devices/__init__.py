"""One sequence over several devices: rings, and all-to-all to parts of the heads."""
