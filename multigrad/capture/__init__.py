"""Capture: rules in any dialect become graphs.

May import the rooms up to `lowering`; docs/architecture.md has their order.
"""
