"""Rules and graphs as plain data.

May import the rooms up to `capture`; docs/architecture.md has their order.
"""
