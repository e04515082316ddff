"""The HTML page and its charts."""
