"""Rules: a function with params, its graphs, its names, itself under an activation.

May import the rooms up to `functions`; docs/architecture.md has their order.
"""
