"""Models by name: what is known of their attention, and how long it takes a step."""
