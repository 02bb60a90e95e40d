"""Graphs derived from graphs: calls with their own gradients, derivatives, parts for shards."""
