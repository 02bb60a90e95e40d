"""The rule IR: a small typed graph, its op table, and the passes over it."""
