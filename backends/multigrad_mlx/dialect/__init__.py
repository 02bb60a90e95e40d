"""MLX's dialect: the meaning of each MLX function in ops, while foreign code is captured."""
