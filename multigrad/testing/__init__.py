"""Assertions about gradients, for the test suites of people who use multigrad.

    from multigrad.testing import assert_gradient, assert_gradients, assert_parity

Nothing here needs pytest but the `plugin` of `multigrad_conformance`, the suite of a backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..audit.vectors import vectors_of as vectors
from ..graph.support.lazy_modules import namespace
from .assertions import assert_gradient, assert_gradients, assert_parity

__all__ = ["assert_gradient", "assert_gradients", "assert_parity", "vectors"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = namespace(__name__, __all__)
