"""What a call of MLX means in ops, while foreign code is captured: MLX's dialect."""
