"""A first call far out, where a library overflows on the way and its graph does not, disproves
nothing, and hides nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

FAR = [("float16", 300.0), ("float32", 1e20), ("bfloat16", 1e20), ("float32", 3e38)]


@pytest.mark.needs("jax")
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("dtype", "far"), FAR)
def test_a_first_call_far_out_where_jax_overflows_disproves_nothing(
    dtype: str, far: float, sign: int
) -> None:
    import jax.numpy as jnp

    x = jnp.asarray([sign * far, 1.0, -3.0], dtype)
    norm = xg.function(jnp.linalg.norm, lambda g, x: None, native=False)
    assert np.isfinite(np.asarray(norm(x), np.float64)) == (dtype == "float16")


@pytest.mark.needs("jax")
def test_a_first_call_far_out_hides_no_other_function() -> None:
    import jax.numpy as jnp

    from multigrad.graph import ops

    def wrong(xp: Any, ct: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (2.0 * ct * xp.cos(x),)

    right = ops.SIN.vjp
    object.__setattr__(ops.SIN, "vjp", wrong)  # an op is frozen
    try:
        with pytest.raises(xg.errors.DisprovedError):
            xg.function(lambda x: jnp.sin(x), native=False)(jnp.asarray([3e30, 1.0, 4.0]))
    finally:
        object.__setattr__(ops.SIN, "vjp", right)
