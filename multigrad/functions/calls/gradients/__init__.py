"""Gradients as authors' code gives them: of arguments and variables, by tangents, combined."""
