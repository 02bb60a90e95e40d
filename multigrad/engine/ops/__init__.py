"""Ops of whole arrays, by family: indices, orders, products, loops, collectives."""
