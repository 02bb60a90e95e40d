"""Functions with a gradient of their own: captured from any dialect, lowered to every framework.

May import the rooms up to `lowering`; docs/architecture.md has their order.
"""
