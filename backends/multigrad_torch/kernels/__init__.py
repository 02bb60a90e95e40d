"""PyTorch's rows: for each op of the table the function of PyTorch that computes it."""
