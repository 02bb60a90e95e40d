"""Relevance: rules that read a layer's weights, and which rule each kind of layer gets.

May import the rooms up to `rules`; docs/architecture.md has their order.
"""
