"""transformers: its attention functions, and steps of its models."""
