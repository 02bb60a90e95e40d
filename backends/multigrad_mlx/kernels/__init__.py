"""MLX's kernels: for each op of the table, the MLX function that computes it."""
