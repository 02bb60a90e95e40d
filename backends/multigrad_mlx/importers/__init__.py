"""Custom gradients of MLX's, unchanged, as Functions."""
