"""Capture: rules in any dialect become graphs.

May import the rooms up to `active`; docs/architecture.md has their order.
"""
