"""Keras's dialect, which is known once this is imported."""

from . import table as table
