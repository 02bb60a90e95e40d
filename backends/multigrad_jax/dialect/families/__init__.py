"""The names of JAX's dialect, by family."""
