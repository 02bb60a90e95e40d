"""Rules on the gradients of parameters."""
