"""Symbolic values: the tracers of a capture, their attributes, methods, indexing, memory; and the
dtypes of results as the library itself gives them.
"""
