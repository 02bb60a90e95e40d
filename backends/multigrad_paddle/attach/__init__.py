"""How lowered code becomes a function of Paddle with a gradient of its own, and is run."""
