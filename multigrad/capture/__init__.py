"""Capture: rules in any dialect become graphs."""
