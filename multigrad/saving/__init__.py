"""Files of rules and Functions, and what is made of a document.

May import the rooms up to `rules`; docs/architecture.md has their order.
"""
