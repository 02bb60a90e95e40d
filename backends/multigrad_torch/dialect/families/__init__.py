"""The names of PyTorch's dialect, by family."""
