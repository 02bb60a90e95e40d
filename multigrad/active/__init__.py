"""What is read besides arguments: the rule in force, the meaning of names, where draws come from.

May import the rooms up to `tracing`; docs/architecture.md has their order.
"""
