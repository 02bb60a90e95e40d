"""TensorFlow's convolutions, linear algebra, diagonals, and the operations of its graphs, in ops.

An operation of a graph is recorded by the handler of the function that means the same.
"""

from __future__ import annotations
