"""Ambient state that code reads besides its arguments: rules in force, names, draws."""
