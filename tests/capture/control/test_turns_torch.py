"""Turns of a scan that write into what it gives, in eager PyTorch: the bits of turns that do not.

Such a turn counts on what the first one has told: shapes that are kept, rows as large as the carry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.lowering.patterns import without

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")

xp = xg.xp
spike = xg.activation("Heaviside", "arctan")
STEPS, SHAPE = 6, (4, 3)


def leaky(v: Any, row: Any, w: Any) -> Any:
    v = w * v + row
    fired = spike(v - 0.5)
    return v - fired, fired


def adaptive(carry: Any, row: Any, w: Any) -> Any:
    v, b = carry
    v = 0.8 * v + row
    fired = spike(v - 0.5 - w * b)
    return (v - fired, 0.9 * b + 0.1 * fired), fired


def gated(h: Any, row: Any, w: Any) -> Any:
    gate = xp.sigmoid(row + xp.matmul(h, w))
    h = gate * h + (1.0 - gate) * xp.tanh(row - h)
    return h, h


def carried_on(carry: Any, row: Any, w: Any) -> Any:
    """What a turn takes is given, as it was and as it is; one of the carries never changes."""
    v, same = carry
    after = xp.tanh(v * w) + row
    return (after, same), (v, after, after, same, row, v > row)


def summed(carry: Any, row: Any, w: Any) -> Any:
    total, v = carry
    return (total + xp.sum(v * row), v * w), xp.maximum(xp.exp(-xp.abs(v)), 0.4)


State = Callable[[Any], Any]
BODIES: dict[str, tuple[Callable[..., Any], State]] = {
    "leaky": (leaky, lambda v: v),
    "adaptive": (adaptive, lambda v: (v, v * 0.1)),
    "gated": (gated, lambda v: v),
    "carried_on": (carried_on, lambda v: (v, v)),
    "summed": (summed, lambda v: (xp.sum(v) * 0.0, v)),
}


def listed(nested: Any) -> list[Any]:
    return [x for each in nested for x in listed(each)] if isinstance(nested, tuple) else [nested]


def scan_of(name: str, *, reverse: bool = False) -> Any:
    """A new Function, lowered at its first call by the rows that are in force then."""
    body, state = BODIES[name]

    def run(v: Any, rows: Any, w: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            return body(carry, row, w)

        return tuple(listed(xp.scan(step, state(v), rows, reverse=reverse)))

    return xg.function(run)


def run_all(f: Any, *arrays: Any) -> list[Any]:
    """The results, with and without a gradient, and the gradients."""
    inputs = [torch.from_numpy(a).requires_grad_() for a in arrays]
    results = f(*inputs)
    with torch.no_grad():
        alone = f(*inputs)
    asked = [y for y in results if y.requires_grad]
    seeds = [torch.cos(y.detach() + i) for i, y in enumerate(asked)]
    return [*results, *alone, *torch.autograd.grad(asked, inputs, seeds)]


ROWS = {"as_the_carry": (STEPS, *SHAPE), "smaller": (STEPS, 1, 3), "one": (1, *SHAPE)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", list(BODIES))
def test_turns_that_write_into_the_stack_give_the_same_bits(
    name: str, reverse: bool, rows: str, dtype: str
) -> None:
    draw = np.random.default_rng(5)
    weights = (3, 3) if name == "gated" else (3,)
    shapes = (SHAPE, ROWS[rows], weights)
    arrays = [draw.normal(size=shape).astype(dtype) for shape in shapes]
    found = run_all(scan_of(name, reverse=reverse), *arrays)
    with without("torch.turns"):
        plain = run_all(scan_of(name, reverse=reverse), *arrays)
    for ours, own in zip(found, plain, strict=True):
        assert (ours.dtype, ours.shape) == (own.dtype, own.shape)
        assert ours.detach().numpy().tobytes() == own.detach().numpy().tobytes()


def test_what_is_given_to_a_scan_is_not_written_over() -> None:
    draw = np.random.default_rng(6)
    arrays = [draw.normal(size=shape) for shape in (SHAPE, (STEPS, *SHAPE), (3,))]
    inputs = [torch.from_numpy(a.copy()).requires_grad_() for a in arrays]
    f = scan_of("carried_on")
    for _ in range(2):  # and what one call has given stays as it is at the next
        results = f(*inputs)
        copies = [y.detach().clone() for y in results]
        torch.autograd.grad([y for y in results if y.requires_grad], inputs, [
            torch.ones_like(y) for y in results if y.requires_grad
        ])  # fmt: skip
        f(*[x * 2 for x in inputs])
        for y, copy in zip(results, copies, strict=True):
            assert torch.equal(y, copy)
    for x, a in zip(inputs, arrays, strict=True):
        np.testing.assert_array_equal(x.detach().numpy(), a)


def test_a_turn_that_makes_the_carry_larger_is_refused_with_both_shapes() -> None:
    f = xg.function(lambda v, rows: xp.scan(lambda v, r: (0.5 * v + r, v), v, rows)[1])
    v, rows = torch.zeros(3, requires_grad=True), torch.ones(STEPS, 2, 3)
    with pytest.raises(TypeError, match=r"shape \(2, 3\) of torch.float32 of shape \(3,\)"):
        f(v, rows)


def test_the_carry_of_16_bits_is_rounded_after_each_op() -> None:
    draw = np.random.default_rng(7)
    for dtype in (torch.float16, torch.bfloat16):
        v, w = torch.from_numpy(draw.normal(size=SHAPE)).to(dtype), torch.tensor(0.7, dtype=dtype)
        rows = torch.from_numpy(draw.normal(size=(STEPS, *SHAPE))).to(dtype)
        *_, spikes = scan_of("leaky")(v.requires_grad_(), rows, w)
        expected, state = [], v.detach()
        for row in rows:
            state = w * state + row
            expected.append((state > 0.5).to(dtype))
            state = state - expected[-1]
        assert torch.equal(spikes, torch.stack(expected))
