"""MLX's rows: for each op of the table the function of MLX that computes it."""
