"""Keras's functions in ops; importing `table` registers them."""

from . import table as table
