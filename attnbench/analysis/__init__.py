"""The analyses behind the commands, one folder each: it computes the answer and builds its document."""
