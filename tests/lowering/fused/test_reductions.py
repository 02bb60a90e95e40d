"""Reductions in fused execution: a quantizer with its step's gradient, a norm with its scale, and
what is computed of a sum over all elements or over the last axis, run as kernels, give the numbers
of NumPy in float64, whichever threads compute them, and take plain code where kernels cannot run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

torch: Any = pytest.importorskip("torch")

Tensor: TypeAlias = Any
pytestmark = pytest.mark.needs("torch")
DTYPES = ["float32", "float64", "bfloat16", "float16"]


class Place:
    """Where tensors lie."""

    device: Any = "cpu"


@pytest.fixture(autouse=True)
def place(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "device", device)


def draw(*shape: int, seed: int = 0, dtype: str = "float32") -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(Place.device, getattr(torch, dtype)).requires_grad_()


def number(value: float, *shape: int, dtype: str = "float32") -> Tensor:
    kind = getattr(torch, dtype)
    return torch.full(shape, value, dtype=kind, device=Place.device).requires_grad_()


def run(f: Callable[..., Any], *inputs: Tensor) -> list[Tensor]:
    """Return outputs, and gradients for cotangents that are drawn."""
    outputs = f(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    cotangents = [draw(*y.shape, seed=7 + i).detach().to(y.dtype) for i, y in enumerate(outputs)]
    asked = [x for x in inputs if x.requires_grad]
    gradients = torch.autograd.grad(outputs, asked, cotangents)
    return [each.detach() for each in (*outputs, *gradients)]


def cotangent(*shape: int, dtype: str = "float32") -> Any:
    return draw(*shape, seed=7, dtype=dtype).detach().double().cpu().numpy()


def is_bits(found: Tensor, expected: Tensor) -> bool:
    same = (found == expected) | (found.isnan() & expected.isnan())
    return found.dtype == expected.dtype and found.shape == expected.shape and bool(same.all())


def assert_near(found: Tensor, expected: Any, scale: float = 1.0) -> None:
    """Compare with float64: 4 roundings of the largest number that it comes from."""
    expected = np.asarray(expected)
    assert tuple(found.shape) == expected.shape
    most = 4 * torch.finfo(found.dtype).eps * max(scale, float(np.abs(expected).max()))
    assert float(np.abs(found.double().cpu().numpy() - expected).max()) <= most


@cache
def both(function: Any) -> tuple[Any, Any]:
    """Return an estimator, a rule or a pair of functions with kernels, and as plain code."""
    if isinstance(function, str):
        rules = [xg.get(function).copy(name=f"{function} here") for _ in range(2)]
        return tuple(
            [
                xg.activation("Linear", rule, fused=fused)
                for rule, fused in zip(rules, (True, False), strict=True)
            ]
        )
    if isinstance(function, tuple):
        return tuple([xg.function(*function, fused=fused) for fused in (True, False)])
    return function.keeping(fused=True), function.keeping(fused=False)


def layer_norm(x: Tensor, weight: Tensor) -> Tensor:
    centered = x - xp.mean(x, axis=-1, keepdims=True)
    return centered * xp.rsqrt(xp.var(x, axis=-1, keepdims=True) + 1e-5) * weight


def layer_norm_backward(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
    centered = x - xp.mean(x, axis=-1, keepdims=True)
    inverse = xp.rsqrt(xp.var(x, axis=-1, keepdims=True) + 1e-5)
    own, scaled = centered * inverse, grad * weight
    shared = xp.mean(scaled, axis=-1, keepdims=True)
    along = xp.mean(scaled * own, axis=-1, keepdims=True)
    return inverse * (scaled - shared - own * along), xp.sum_to(grad * own, weight)


def softmax_backward(grad: Tensor, x: Tensor) -> Tensor:
    y = xp.softmax(x, axis=-1)
    return y * (grad - xp.sum(grad * y, axis=-1, keepdims=True))


def soft(x: Tensor) -> Tensor:
    return xp.softmax(x, axis=-1)


def extremes(x: Tensor) -> Any:
    return xp.max(x), xp.min(x, keepdims=True), xp.mean(x), xp.norm(x), xp.sum(x)


def extremes_backward(gs: Any, x: Tensor) -> Tensor:
    a, b, c, d, e = gs
    return x * a + b + c * xp.max(x) + d * xp.abs(x) - e * xp.norm(x, ord=1)


def mixed(x: Tensor, weight: Tensor) -> Any:
    largest = xp.max(x, axis=-1, keepdims=True)
    scaled = (x - largest) * weight
    total = xp.sum(scaled * scaled)
    return scaled / xp.sqrt(total), largest, total


def mixed_backward(gs: Any, x: Tensor, weight: Tensor) -> Any:
    first, second, third = gs
    mean = xp.mean(first * x)
    rows = xp.sum(first - mean, axis=-1, keepdims=True) * second
    return first * mean + rows * third + xp.max(rows * x), xp.sum_to(first * rows + mean, weight)


MIXED = mixed, mixed_backward
NORM, SOFTMAX = (layer_norm, layer_norm_backward), (soft, softmax_backward)
EXTREMES = (extremes, extremes_backward)


def lsq_by_hand(x: Tensor, step: Tensor) -> Sequence[Any]:
    """LSQ with 4 bits, as the paper has it: rounded as float32 or float64 is, summed in float64;
    with one step, or one for each place of the first axis.
    """
    kind = np.float64 if x.dtype.itemsize == 8 else np.float32
    v = x.detach().double().cpu().numpy().astype(
        kind
    ) / step.detach().double().cpu().numpy().astype(kind)
    level = np.round(np.clip(v, -8, 7))
    inside = (v > -8) & (v < 7)
    grad = cotangent(*x.shape, dtype=str(x.dtype).removeprefix("torch."))
    slopes = grad * np.where(inside, level - v, level) / math.sqrt(7 * x.numel() / step.numel())
    size = step.detach().double().cpu().numpy()
    over = tuple(range(step.numel() > 1, x.dim()))
    return level * size, np.where(inside, grad, 0.0), slopes.sum(axis=over).reshape(step.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(33, 70), (3,), (1,), (2, 3, 1), ()])
def test_lsq_has_its_steps_gradient(dtype: str, shape: tuple[int, ...]) -> None:
    fused, plain = both(xg.estimators.lsq)
    for own in ((), (1,) * min(1, len(shape))):
        x, step = draw(*shape, dtype=dtype), number(0.25, *own, dtype=dtype)
        found, expected = run(fused, x, step), lsq_by_hand(x, step)
        for a, b in zip(found, expected, strict=True):
            assert_near(a, b, scale=4.0)
        y, slope, _ = run(plain, x, step)
        assert is_bits(found[0], y)
        assert is_bits(found[1], slope)


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantizers_with_two_numbers_agree_with_plain_code(dtype: str) -> None:
    x = draw(5, 301, dtype=dtype)
    low, high = number(-1.0, dtype=dtype), number(1.5, dtype=dtype)
    for estimator, numbers in {
        xg.estimators.lsq_plus: (high, low),
        xg.estimators.fake_quantize: (low, high),
        xg.estimators.pact: (high,),
    }.items():
        fused, plain = both(estimator)
        found, expected = run(fused, x, *numbers), run(plain, x, *numbers)
        assert is_bits(found[0], expected[0])
        assert is_bits(found[1], expected[1])
        for a, b in zip(found[2:], expected[2:], strict=True):
            assert_near(a, b.double().cpu().numpy(), scale=40.0)  # a sum of 1,505 numbers


@pytest.mark.parametrize("shape", [(33, 1), (70,)])
def test_steps_of_rows_and_columns_agree_with_plain_code(shape: tuple[int, ...]) -> None:
    x, steps = draw(33, 70), number(0.25, *shape)
    for estimator in (xg.estimators.lsq, xg.estimators.pact):  # which keeps a mask
        fused, plain = both(estimator)
        found, expected = run(fused, x, steps), run(plain, x, steps)
        assert is_bits(found[0], expected[0])
        assert is_bits(found[1], expected[1])
        assert_near(found[2], expected[2].double().cpu().numpy(), scale=10.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rules_that_scale_by_a_norm_give_numpys_numbers(dtype: str) -> None:
    x = draw(40, 1030, dtype=dtype)
    g = cotangent(40, 1030, dtype=dtype)
    rms = math.sqrt((g**2).mean())
    for rule, expected in {
        "normalize": g / (np.linalg.norm(g) + 1e-6),
        "clip_rms": g * min(1.0, 1.0 / rms),
        "centralize": g - g.mean(axis=-1, keepdims=True),
    }.items():
        fused, _ = both(rule)
        y, slope = run(fused, x)
        assert_near(slope, expected)
        assert is_bits(y, x.detach())
        assert fused(x).data_ptr() == x.data_ptr()  # no copy is made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(33, 70), (5, 2050), (2, 3, 4), (6, 1), (7,)])
def test_a_norm_with_its_scale_gives_numpys_numbers(dtype: str, shape: tuple[int, ...]) -> None:
    x, weight = draw(*shape, dtype=dtype), draw(shape[-1], seed=1, dtype=dtype)
    found = run(both(NORM)[0], x, weight)
    x64, w64 = x.detach().double().cpu().numpy(), weight.detach().double().cpu().numpy()
    grad = cotangent(*shape, dtype=dtype)
    inverse = 1 / np.sqrt(x64.var(axis=-1, keepdims=True) + 1e-5)
    own = (x64 - x64.mean(axis=-1, keepdims=True)) * inverse
    scaled = grad * w64
    shared, along = (each.mean(axis=-1, keepdims=True) for each in (scaled, scaled * own))
    slope = inverse * (scaled - shared - own * along)
    # A vector has the shape of its last axis: then there is nothing to sum.
    of_weight = (grad * own).reshape(-1, shape[-1]).sum(axis=0)
    largest = float(max(np.abs(own).max(), inverse.max()) * np.abs(scaled).max())
    for a, b in zip(found, (own * w64, slope, of_weight), strict=True):
        assert_near(a, b, scale=largest)


@pytest.mark.parametrize("shape", [(4, 9), (3, 5000), (2, 2, 1), (40,)])
def test_a_softmax_gives_numpys_numbers(shape: tuple[int, ...]) -> None:
    x = draw(*shape)
    y, slope = run(both(SOFTMAX)[0], x)
    powers = np.exp(x.detach().double().cpu().numpy())
    expected = powers / powers.sum(axis=-1, keepdims=True)
    grad = cotangent(*shape)
    assert_near(y, expected)
    assert_near(slope, expected * (grad - (grad * expected).sum(axis=-1, keepdims=True)))


@pytest.mark.parametrize("shape", [(33, 70), (3, 2500), (2000, 3)])
def test_sums_of_sums_over_rows_columns_and_all_give_numpys_numbers(shape: tuple[int, int]) -> None:
    x, weight = draw(*shape, dtype="float64"), draw(shape[-1], seed=1, dtype="float64")
    found = run(both(MIXED)[0], x, weight)
    a, w = x.detach().cpu().numpy(), weight.detach().cpu().numpy()
    largest = a.max(axis=-1, keepdims=True)
    scaled = (a - largest) * w
    total = np.sum(scaled * scaled)
    first, second, third = (
        draw(*own, seed=7 + i).detach().double().cpu().numpy()
        for i, own in enumerate((shape, (shape[0], 1), ()))
    )
    mean = np.mean(first * a)
    rows = np.sum(first - mean, axis=-1, keepdims=True) * second
    slope = first * mean + rows * third + np.max(rows * a)
    of_weight = np.sum(first * rows + mean, axis=0)
    expected = scaled / np.sqrt(total), largest, total, slope, of_weight
    sizes = np.abs(first).sum(axis=-1, keepdims=True) * np.abs(second)
    scale = max((sizes * np.abs(a)).max(), np.abs(first * rows).sum(axis=0).max())
    for ours, right in zip(found, expected, strict=True):
        assert_near(ours, right, scale=float(scale))


def test_the_number_of_threads_changes_no_bit() -> None:
    before = torch.get_num_threads()
    cases = [
        (xg.estimators.lsq, draw(200_003), number(0.1)),
        ("clip_rms", draw(200_003)),
        ("centralize", draw(20_001, 10)),
        (NORM, draw(100, 2003), draw(2003, seed=1)),
        (SOFTMAX, draw(3001, 67)),
        (EXTREMES, draw(200_003)),
        (MIXED, draw(20_001, 10), draw(10, seed=1)),
    ]
    try:
        for function, *inputs in cases:
            fused, found = both(function)[0], []
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)
                found.append(run(fused, *inputs))
            for other in found[1:]:
                assert all(map(is_bits, other, found[0]))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_many_numbers_are_as_exact_as_their_sum_rounded(dtype: str) -> None:
    x = (torch.rand(300_001, dtype=getattr(torch, dtype)) + 0.1).to(Place.device)
    total = run(both(EXTREMES)[0], x.requires_grad_())[4]
    exact = math.fsum(x.detach().double().tolist())
    assert abs(float(total) - exact) <= 2 * torch.finfo(x.dtype).eps * exact


@pytest.mark.parametrize("edge", [math.nan, -math.inf, 0.0, 1e-45, 3e38])
def test_edge_values_come_through_as_in_plain_code_or_in_float64(edge: float) -> None:
    fused, plain = both(EXTREMES)
    rows = both(SOFTMAX)
    for shape, place in (((7,), 6), ((3, 4), 5), ((2, 1100), 1099), ((1,), 0)):
        x = draw(*shape).detach()
        x.view(-1)[place] = edge
        for values in (x, number(edge, *shape).detach()):
            own = values.clone().requires_grad_()
            for a, b in ((fused, plain), rows):
                found, expected = run(a, own), run(b, own)
                exact = run(b, values.double().requires_grad_())  # plain code may overflow
                for f, *both_plain in zip(found, expected, exact, strict=True):
                    close = [
                        torch.isclose(f, e.to(f.dtype), rtol=1e-5, atol=1e-6, equal_nan=True)
                        for e in both_plain
                    ]
                    assert bool((close[0] | close[1]).all())


@pytest.mark.parametrize(("axis", "shape"), [(None, (40, 30)), (-1, (40, 30)), (-1, (3, 2100))])
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_deviations_are_in_range_where_their_squares_are_not(
    axis: Any, shape: Any, size: float
) -> None:
    def scaled(x: Tensor) -> Tensor:
        return x / xp.std(x, axis=axis, keepdims=True, correction=1)

    def backward(grad: Tensor, x: Tensor) -> Tensor:
        return grad * xp.std(x, axis=axis, keepdims=True)

    x = (draw(*shape).detach() * size).requires_grad_()
    y, slope = run(both((scaled, backward))[0], x)
    a = x.detach().double().cpu().numpy()
    assert_near(y, a / a.std(axis=axis, keepdims=True, ddof=1))
    assert_near(slope, cotangent(*shape) * a.std(axis=axis, keepdims=True), scale=0.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_backward_finds_again_what_was_largest_in_16_bits(dtype: str) -> None:
    x, weight = draw(6, 33, dtype=dtype), draw(33, seed=1, dtype=dtype)
    for reduce in (xp.max, lambda z: xp.min(z, axis=-1, keepdims=True)):
        fused, plain = both((lambda x, w, reduce=reduce: reduce(x * w),))
        found, expected = run(fused, x, weight), run(plain, x, weight)
        assert bool(found[1].any())
        for a, b in zip(found, expected, strict=True):
            assert_near(a, b.double().cpu().numpy(), scale=4.0)


def test_a_column_times_a_number_has_the_axes_of_both() -> None:
    def forward(x: Tensor, weight: Tensor, step: Tensor) -> Any:
        return x * weight * step, weight * step + 1

    def backward(gs: Any, x: Tensor, weight: Tensor, step: Tensor) -> Any:
        return gs[0] * step, xp.sum_to(gs[1] * step, weight), step * 2

    fused, plain = both((forward, backward))
    for step in (number(0.5), number(0.5, 1), number(0.5, 1, 1), number(0.5, 1, 1, 1)):
        inputs = draw(2, 3, 5), draw(5, seed=1), step
        for a, b in zip(run(fused, *inputs), run(plain, *inputs), strict=True):
            assert is_bits(a, b)
        assert run(fused, *inputs)[1].shape == (*step.shape[1:], 5)


def test_of_nothing_is_what_plain_code_says() -> None:
    mean = (lambda x: xp.mean(x) * 1.0, lambda g, x: g * x)
    fused, plain = both(mean)
    empty = number(0.0, 0, 3)
    assert all(map(is_bits, run(fused, empty), run(plain, empty)))
    fused, plain = both((lambda x: xp.max(x) * 1.0, lambda g, x: g * x))
    raised = []
    for f in (fused, plain):
        with pytest.raises((RuntimeError, IndexError)) as told:
            f(empty)
        raised.append(str(told.value))
    assert raised[0] == raised[1]
    fused, plain = both("centralize")
    assert all(map(is_bits, run(fused, empty), run(plain, empty)))


def test_a_changed_number_and_another_size_reach_the_kernels() -> None:
    def forward(x: Tensor, rate: float) -> Tensor:
        return x - rate * xp.sum(x) / xp.sqrt(1.0 * xp.size(x))

    fused, plain = both((forward, lambda g, x, rate: (g * xp.mean(x) * rate, None)))
    for count, rate in ((10, 0.5), (10, 2.0), (33, 2.0), (10, -0.0)):
        x = draw(count)
        found, expected = (run(lambda x, f=f, r=rate: f(x, r), x) for f in (fused, plain))
        for a, b in zip(found, expected, strict=True):
            assert_near(a, b.double().cpu().numpy(), scale=20.0)


def test_backward_is_differentiated_again_as_plain_code_is() -> None:
    for function, inputs in (
        (xg.estimators.lsq, (draw(12), number(0.3))),
        (NORM, (draw(3, 5), draw(5, seed=1))),
        (SOFTMAX, (draw(3, 5),)),
    ):
        found = []
        for f in both(function):
            y = f(*inputs)
            upstream = draw(*y.shape, seed=3)
            firsts = torch.autograd.grad(y, inputs, upstream, create_graph=True)
            total = torch.stack([(first**2).sum() for first in firsts]).sum()
            found.append(torch.autograd.grad(total, (*inputs, upstream), allow_unused=True))
        for a, b in zip(*found, strict=True):
            assert (a is None) is (b is None)
            assert a is None or torch.allclose(a, b, rtol=1e-5, atol=1e-5)


def test_gradients_that_nobody_asks_for_change_no_other() -> None:
    x, step = draw(50), number(0.2)
    fused, _ = both(xg.estimators.lsq)
    whole = run(fused, x, step)
    assert all(map(is_bits, run(fused, x, step.detach()), whole[:2]))
    assert is_bits(run(fused, x.detach(), step)[1], whole[2])
    assert is_bits(fused(x.detach(), step.detach()), whole[0])


def test_other_shapes_and_dtypes_run_as_plain_code_that_says_why() -> None:
    x = draw(4, 6)
    cases = [
        ("several shapes", x, draw(3, 1, 1)),
        ("several shapes", number(0.5), number(0.25, 1)),
        ("several dtypes", x, number(0.2, dtype="float64")),
    ]
    for reason, x, other in cases:
        fused, plain = both((lambda x, y: x * y + y, lambda g, x, y: (g * y, xp.sum_to(g * x, y))))
        with pytest.warns(RuntimeWarning, match=f"fused=True.*{reason}"):
            found = fused(x, other)
        assert is_bits(found, plain(x, other))
    x = draw(4, 6)
    fused, plain = both(NORM)
    weight = draw(12).detach()[::2].requires_grad_()
    with pytest.warns(RuntimeWarning, match="not contiguous"):
        found = run(fused, x, weight)
    assert all(map(is_bits, found, run(plain, x, weight)))


def test_what_no_kernel_reduces_is_named() -> None:
    x = draw(4, 6)
    for forward, reason in (
        (lambda x: x * xp.sum(x, axis=0, keepdims=True), "sum over 0"),
        (lambda x: x * xp.prod(x), "prod"),
        (lambda x: x + xp.norm(x, ord=3), "norm of order 3"),
        (lambda x: x * xp.sum(xp.max(x, axis=-1, keepdims=True)), "sum over axis"),
        (lambda x: x + xp.var(xp.max(x)), "var of one number"),
    ):
        fused, plain = both((forward, lambda g, x: g * x))
        with pytest.warns(RuntimeWarning, match=f"fused=True.*{reason}"):
            found = fused(x)
        assert is_bits(found, plain(x))


def test_transforms_and_checkpoints_take_plain_code_and_autocast_what_else_runs() -> None:
    from torch.utils.checkpoint import checkpoint

    fused, plain = both(SOFTMAX)
    x = draw(3, 4)
    slopes = [
        torch.func.vmap(torch.func.grad(lambda r, f=f: (f(r) * r).sum()))(x.detach())
        for f in (fused, plain)
    ]
    assert is_bits(*slopes)
    for function in (fused, plain):
        with torch.autocast(x.device.type, torch.bfloat16):
            cast = function(x)
        assert is_bits(cast, function(x))
    for reentrant in (True, False):
        own = x.detach().requires_grad_()
        y = checkpoint(fused, own, use_reentrant=reentrant)
        y.backward(torch.ones_like(y))
        assert torch.allclose(own.grad, torch.zeros_like(own), atol=1e-6)


def test_auto_uses_kernels_for_large_tensors_after_some_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from multigrad_torch.attach.fusing import dispatch
    from multigrad_torch.core.attach import attach

    monkeypatch.setitem(attach.LARGE, Place.device.type, 1000)
    kernels = []
    find = dispatch.Fusing.kernels_for
    monkeypatch.setattr(
        dispatch.Fusing, "kernels_for", lambda *args: kernels.append(find(*args)) or kernels[-1]
    )

    def steps(x: Tensor, step: Tensor) -> Tensor:
        return xp.round(x / step) * step

    def gradients(grad: Tensor, x: Tensor, step: Tensor) -> Any:
        v = x / step
        return grad * (xp.abs(v) < 8.0), xp.sum_to(grad * (xp.round(v) - v), step)

    lsq = xg.function(steps, gradients)  # whose first call is here
    x, step = draw(1001), number(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = run(lsq, x, step)
        for _ in range(400):
            found = run(lsq, x, step)
            if kernels[-1] is not None:
                break
            import time

            time.sleep(0.05)
    assert kernels[-1] is not None
    assert is_bits(found[0], first[0])
    assert is_bits(found[1], first[1])
    assert_near(found[2], first[2].double().cpu().numpy(), scale=4.0)
