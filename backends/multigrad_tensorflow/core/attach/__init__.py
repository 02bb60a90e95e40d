"""How lowered code becomes a function of TensorFlow with a gradient of its own, and is run."""
