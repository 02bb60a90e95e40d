"""Lowered code as torch functions with gradients of their own, and how these run."""
