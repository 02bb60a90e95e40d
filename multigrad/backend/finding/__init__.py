"""How backends are found, what is installed, and functions on tensors of any backend."""
