"""`recommend`: which backend to use for a case, what it gains over PyTorch's default, and the code that calls it."""
