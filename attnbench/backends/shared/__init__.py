"""Code that backends of several libraries share: masks, the search for a library, a person's own functions."""
