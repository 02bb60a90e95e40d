"""JAX's rows: for each op of the table the function of JAX that computes it."""
