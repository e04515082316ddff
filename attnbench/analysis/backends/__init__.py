"""The `backends` command: what runs here, and the support matrix."""
