"""Seeing rules: what to draw as data, pictures by matplotlib, and the gallery, a page of all rules.

May import the rooms up to `inspection`; docs/architecture.md has their order.
"""
