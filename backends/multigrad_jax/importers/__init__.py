"""Custom gradients of JAX's, unchanged, as Functions."""
