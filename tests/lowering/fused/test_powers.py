"""Powers, and functions that torch computes by vectors: kernels give its bits for every exponent,
every length, and every number of threads. The oracle is torch, op by op.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

from .test_fused import IS_INTERPRETED, assert_same_bits, compiling, needs_functions_of_torch

torch: Any = pytest.importorskip("torch")

Tensor: TypeAlias = Any
pytestmark = [pytest.mark.needs("torch"), compiling]
EDGES = [0.0, np.inf, np.nan, 1e-45, 1e-40, 1.1754944e-38, 0.25, 0.5, 1.0, 2.0, 3.0, 7.0, 3e38]
# Those that torch takes for themselves, and those beside them that it does not.
EXPONENTS = [0.0, 1.0, -0.5, -1.0, 2.0, -2.0, 3.0, -1.5, 0.3, 4.0, -3.0]
# A GPU takes other roots, and rounds exponents before it compares them.
EXPONENTS += [] if IS_INTERPRETED else [0.5, 0.5 + 1e-9, 2.0 + 1e-9]
# In the interpreter by vectors alone: torch computes the last elements otherwise.
LENGTHS = [4096] if IS_INTERPRETED else [*range(1, 41), 1023, 5000, 100_001]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Three threads, among which torch shares more than 32,768 elements."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@xg.register("fused_tests_power")
def power(ctx: Any, grad_out: Tensor, tin: Tensor, exponent: float = 2.0) -> Tensor:
    return xp.pow(tin, exponent) * grad_out


def samples(dtype: str, count: int) -> tuple[Tensor, Tensor]:
    """Return numbers of several sizes, with each edge value and each other one where there is room
    for them; each length has others.
    """
    edges = np.array([*EDGES, *[-each for each in EDGES]])
    draws = np.random.default_rng(count)
    x, y = draws.standard_normal((2, count)) * np.exp(3 * draws.standard_normal((2, count)))
    if count > len(edges) ** 2:
        x[: len(edges) ** 2] = np.repeat(edges, len(edges))
        y[: len(edges) ** 2] = np.tile(edges, len(edges))
    with np.errstate(over="ignore"):
        return torch.from_numpy(x.astype(dtype)), torch.from_numpy(y.astype(dtype))


def results(function: Any, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return outputs and gradients."""
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    outputs = function(x, y)
    return [*outputs, *torch.autograd.grad(outputs, (x, y), [y.detach()] * len(outputs))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exponents_that_are_params_give_the_bits_of_plain_code(dtype: str) -> None:
    needs_functions_of_torch()
    acts = [xg.activation("Heaviside", power, fused=each) for each in (True, False)]
    for count in LENGTHS:
        x, grad = samples(dtype, count)
        for exponent in EXPONENTS:
            own = x.clone().requires_grad_()
            ys = [act(own, exponent=exponent) for act in acts]
            assert_same_bits(*[torch.autograd.grad(y, own, grad)[0] for y in ys])


def written(exponent: float) -> tuple[Any, Any]:
    return (
        lambda x, y: (xp.pow(xp.abs(x) + 0.25, exponent) + y, xp.pow(x, exponent) * 2.0),
        lambda gs, x, y: (xp.pow(x * y, exponent) * gs[0], gs[1] + xp.pow(y, exponent)),
    )


PAIRS: dict[str, tuple[Any, Any]] = {
    **{f"exponent {each} that is written": written(each) for each in (-1.5, -2, 0.3, 0)},
    "exponents that are tensors": (
        lambda x, y: (xp.pow(x, y) + 1.0, xp.pow(2.0, y * 0.5) - x),
        lambda gs, x, y: (xp.pow(xp.abs(x), y + 1.0) * gs[0], xp.pow(0.3, x) * xp.pow(gs[1], x)),
    ),
    "the last elements of a share": (
        lambda x, y: (xp.sigmoid(x) + y, xp.silu(x) - y),
        lambda gs, x, y: (xp.sigmoid(x * y) * gs[0], xp.silu(x + y) * xp.expm1(gs[1])),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("pair", PAIRS)
def test_powers_and_functions_give_the_bits_of_plain_code(pair: str, dtype: str) -> None:
    """Compare a function that is fused with one that is not; a warning would be an error."""
    needs_functions_of_torch()
    fused, plain = (xg.function(*PAIRS[pair], fused=each) for each in (True, False))
    for count in LENGTHS:
        x, y = samples(dtype, count)
        for found, right in zip(results(fused, x, y), results(plain, x, y), strict=True):
            assert_same_bits(found, right)


@pytest.mark.skipif(IS_INTERPRETED, reason="of C: rows of few columns")
def test_rows_and_columns_end_where_they_do_in_plain_code() -> None:
    needs_functions_of_torch()

    def forward(x: Tensor, w: Tensor) -> Tensor:
        return xp.sigmoid(w) * x + xp.pow(xp.abs(w), 0.3) * xp.pow(x, -1.5)

    def backward(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return xp.sigmoid(w) * g, xp.sum_to(xp.pow(g, 3) * x, w)

    fused, plain = (xg.function(forward, backward, fused=each) for each in (True, False))
    for shape in ((5, 7), (3, 67), (40, 33), (40_000, 3)):
        x = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 3
        for own in (shape, shape[-1:], (shape[0], 1), (1,)):
            w = x.flatten()[: int(np.prod(own))].reshape(own)
            assert_same_bits(fused(x, w), plain(x, w))


def test_a_power_of_tensors_of_several_shapes_runs_as_plain_code() -> None:
    needs_functions_of_torch()
    function = xg.function(
        lambda x, w: xp.pow(x, w) * 2.0, lambda g, x, w: (g * xp.pow(x, w), None), fused=True
    )
    x = torch.rand(20, 30)
    with pytest.warns(RuntimeWarning, match="fused=True.*op pow of tensors of several shapes"):
        found = function(x, x[0])
    assert_same_bits(found, torch.pow(x, x[0]) * 2.0)
    number = torch.tensor(0.3)
    if not IS_INTERPRETED:
        assert_same_bits(function(x, number), torch.pow(x, number) * 2.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_powers_in_16_bits_are_those_of_float32_rounded_once(dtype: str) -> None:
    needs_functions_of_torch()
    kind = getattr(torch, dtype)
    x, grad = (each.to(kind) for each in samples("float32", 4096))
    own, wide = x.clone().requires_grad_(), x.float().requires_grad_()
    for exponent in (-1.5, 0.3, -2.0):
        fused, plain = (
            xg.activation("Heaviside", power, {"exponent": exponent}, fused=each)
            for each in (True, False)
        )
        (found,) = torch.autograd.grad(fused(own), own, grad)
        (right,) = torch.autograd.grad(plain(wide), wide, grad.float())
        assert_same_bits(found, right.to(kind))


def test_a_function_that_plain_code_mends_is_the_mended_one() -> None:
    """Torch's log1p before 2.9, which is infinite from 1e38 on."""
    function = xg.function(lambda x: xp.log1p(x) * 2.0, lambda g, x: g * x * 2.0, fused=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no kernel then
        found = function(torch.full((64,), 3e38))
    assert torch.allclose(found, torch.full((64,), 2 * float(np.log1p(3e38))))
