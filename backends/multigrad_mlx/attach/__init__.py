"""How lowered code becomes a function of MLX with a gradient of its own, and is run."""
