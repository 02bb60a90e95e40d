"""How lowered code becomes a function of JAX with a gradient of its own, and is run."""
