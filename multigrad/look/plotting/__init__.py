"""Seeing rules: what to draw as data, pictures by matplotlib, the gallery, a page of all rules."""
