"""The arguments of a call: their layout, facts about them, how they reach a framework's function.

May import the rooms up to `reference`; docs/architecture.md has their order.
"""
