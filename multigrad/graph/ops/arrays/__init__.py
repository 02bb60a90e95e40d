"""Ops over whole arrays: shapes, places, sums, products, factors, draws, loops."""
