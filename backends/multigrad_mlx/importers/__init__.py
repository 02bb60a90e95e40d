"""Import of MLX's custom gradients, unchanged, as Functions."""
