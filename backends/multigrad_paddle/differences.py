"""Where Paddle's numbers are not those of the formulas."""

from __future__ import annotations

from multigrad.backend import Differences

DIFFERENCES = Differences()
