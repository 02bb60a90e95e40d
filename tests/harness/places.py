"""What the tests of places are run with."""

from __future__ import annotations

import numpy as np

X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
