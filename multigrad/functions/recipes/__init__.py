"""How a function with a gradient of its own is run and captured; saved ones."""
