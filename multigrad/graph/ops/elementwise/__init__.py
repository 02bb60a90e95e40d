"""Ops that compute element by element: arithmetic, functions, activations, logic, selection."""
