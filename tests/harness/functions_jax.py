"""What the tests of Functions inside jax are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

X = np.array([-1.5, -0.25, 0.0, 0.75, 2.0], np.float32)
Y = np.array([2.0, -1.0, 0.5, 3.0, -0.75], np.float32)
ROUTES = pytest.mark.parametrize("native", [False, True], ids=["captured", "as it is"])


def arrays(*values: Any) -> tuple[Any, ...]:
    import jax.numpy as jnp

    return tuple(map(jnp.asarray, values))
