"""torch's dialect: the meaning of each torch function in ops, while foreign code is captured."""
