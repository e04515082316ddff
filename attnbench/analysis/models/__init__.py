"""Models by name: the properties of their attention, and its time in one step."""
