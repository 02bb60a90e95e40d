"""Benchmarks of our own: the figures of the documentation. What users run is `multigrad bench`.

`python tools/bench NAME ...` runs one; each says at its head what it takes.
"""
