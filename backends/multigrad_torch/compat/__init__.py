"""Names of other packages for PyTorch, made of our rules."""
