"""Graphs made of graphs: calls with gradients of their own, derivatives, parts of arrays."""
