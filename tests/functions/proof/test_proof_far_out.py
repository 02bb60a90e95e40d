"""A first call far out, where a library overflows on the way and its graph does not, disproves
nothing, and hides nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.torch_class import torch_class

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

    from multigrad.core import ops

    def wrong(xp: Any, ct: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (2.0 * ct * xp.cos(x),)

    right = ops.SIN.vjp
    object.__setattr__(ops.SIN, "vjp", wrong)  # an op is frozen
    try:
        with pytest.raises(xg.errors.DisprovedError):
            xg.function(lambda x: jnp.sin(x), native=False)(jnp.asarray([3e30, 1.0, 4.0]))
    finally:
        object.__setattr__(ops.SIN, "vjp", right)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("rows", [25, 512])
def test_a_search_by_distances_that_torch_takes_from_a_product_is_converted(rows: int) -> None:
    import torch

    def backward(ctx: Any, grad_out: Any) -> Any:
        places, codes = ctx.saved_tensors
        return grad_out, torch.zeros_like(codes).index_add_(0, places, grad_out)

    @torch_class(backward)
    def Nearest(ctx: Any, z: Any, codes: Any) -> Any:
        places = torch.cdist(z, codes).argmin(1)  # beyond 25 rows of either by a product
        ctx.save_for_backward(places, codes)
        return codes[places]

    function = xg.convert(Nearest)
    z, codes = (torch.randn(n, 16, generator=torch.manual_seed(n)) for n in (rows, 40))
    torch.testing.assert_close(function(z, codes), Nearest.apply(z, codes), rtol=0, atol=0)
    kept = xg.memory(function, [z.shape, codes.shape], torch.float32)
    assert kept.total == 8 * rows  # an error where the class runs as it is
