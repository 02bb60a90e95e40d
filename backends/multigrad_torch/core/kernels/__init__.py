"""torch's kernels: for each op of the table, the torch function that computes it."""
