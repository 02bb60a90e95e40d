"""The derivative of each op."""
