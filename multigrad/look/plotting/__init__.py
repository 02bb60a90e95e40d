"""Seeing rules: what to draw as data, pictures by matplotlib."""
