"""Symbolic values: the tracers of a capture, their attributes, methods and indexing."""
