"""Lowered code as MLX functions with gradients of their own, and how these run."""
