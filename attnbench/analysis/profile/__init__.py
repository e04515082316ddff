"""The `profile` command: one case on one backend, looked into."""
