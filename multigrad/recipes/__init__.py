"""How a function with a gradient of its own is run and captured; saved ones.

May import the rooms up to `proof`; docs/architecture.md has their order.
"""
