"""Views of rules and Functions: graphs as text, emitted source, the native object, reports.

May import the rooms up to `models`; docs/architecture.md has their order.
"""
