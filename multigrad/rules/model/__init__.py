"""Rules: a function with params, its graphs, its names, itself under an activation."""
