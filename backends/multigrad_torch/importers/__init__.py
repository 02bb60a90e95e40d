"""Custom gradients of PyTorch's, unchanged, as Functions."""
