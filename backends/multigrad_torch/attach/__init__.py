"""How lowered code becomes a function of PyTorch with a gradient of its own, and is run."""
