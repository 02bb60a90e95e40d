"""Capture: rules in any dialect become graphs.

May import the rooms up to `schedule`; docs/architecture.md has their order.
"""
