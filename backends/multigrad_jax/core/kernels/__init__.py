"""JAX's kernels: for each op the function of JAX that computes it."""
