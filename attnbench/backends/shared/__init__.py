"""What backends of several libraries share: masks, finding a library, and a function or file of a person."""
