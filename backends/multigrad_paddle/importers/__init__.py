"""Custom gradients of Paddle's, unchanged, as Functions."""
