"""Paddle's rows: for each op of the table the function of Paddle that computes it."""
