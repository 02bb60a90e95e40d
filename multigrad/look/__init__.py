"""Looking at rules and Functions: their graphs as text, the source that is emitted, the native
object.

May import the rooms up to `models`; docs/architecture.md has their order.
"""
