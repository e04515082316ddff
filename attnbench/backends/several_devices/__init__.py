"""One sequence over several devices: ring attention, and all-to-all to groups of heads (Ulysses)."""
