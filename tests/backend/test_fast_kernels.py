"""Fast kernels: each row is used where it should be, gives the plain code's numbers, and can be
turned off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.core.backend.rows import enabled
from multigrad.engine.lowering.patterns import all_patterns, without
from multigrad_conformance.under_test import pull

from ..harness.ejecting import BY_RANK

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def case(*rows: str) -> Callable[[Rule], Rule]:
    """Declare a rule that the named rows make faster."""

    def declare(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(rows, function))
        return function

    return declare


@case("torch.in_place", "numpy.in_place")
def chain(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * abs(2.0 * tin - 1.0) / xp.exp(-abs(tin))


@case("torch.compare_into_float")
def compare_gradients(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return tin * (grad_out > 0.25) + (grad_out <= -0.25)


@case("torch.masked_product")
def mask_by_half(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * (tin > 0.5)


@case("torch.rectified")
def mask_by_sign(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return tin * (grad_out > 0) * abs(tin)


@case("torch.window")
def mask_by_window(ctx: Any, grad_out: Any, tin: Any, a: float = -0.5, b: float = 0.5) -> Any:
    return grad_out * ((tin >= a) & (tin <= b))


@case("torch.threshold")
def let_pass_above(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return xp.where(grad_out <= 0.25, 0.0, grad_out) * tin


@case("torch.select_bits", "numpy.select_bits")
def choose(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return xp.where(tin >= 0, grad_out, 0.0)


@case("torch.softplus")
def soften(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * xp.where(xp.greater(tin, 20), tin, xp.softplus(tin))


@case("torch.one_side")
def limit_one_side(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return xp.clip(grad_out, 0.0, math.inf) * xp.clip(tin, -math.inf, 0.5)


@case("torch.sign")
def take_own_sign(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return xp.where(xp.isnan(tin), 0.0, xp.sign(tin)) * xp.abs(grad_out)


@case("torch.sign_or_one")
def take_sign_of_zero(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return xp.where(tin == 0, 1.0, xp.sign(tin)) * xp.abs(grad_out)


@case("torch.sign_or_nan")
def multiply_signs(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return xp.sign(tin) * xp.abs(grad_out) + xp.sign(grad_out)


@case("torch.subtract_chosen")
def subtract_inside(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return xp.where((tin > -0.5) & (tin < 0.5), grad_out - tin, grad_out)


@case("torch.choose_bits")
def choose_of_two(ctx: Any, grad_out: Any, tin: Any) -> Any:
    either = xp.where(tin >= 0.25, grad_out, tin)
    return either + xp.where(tin < 0.5, -2.5, grad_out) * xp.where(tin > 0.5, grad_out, 1e6)


@case("torch.largest")
def divide_by_largest(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out + xp.exp(-xp.norm(tin, ord=xp.inf))


@case("torch.distances")
def distances_from_two(ctx: Any, grad_out: Any, tin: Any) -> Any:
    rows = xp.stack([xp.reshape(each, (-1,)) for each in (tin, grad_out, 0.5 * tin)], axis=-1)
    apart = xp.expand_dims(rows, -2) - xp.expand_dims(rows[:2], -3)
    return xp.reshape_like(xp.sum(xp.norm(apart, axis=-1), axis=-1), tin)


@case("torch.square", "numpy.square")
def square(ctx: Any, grad_out: Any, tin: Any) -> Any:
    u = 3.0 * tin
    return grad_out * (u * u)


@case("torch.clamp", "torch.limit", "numpy.clip")
def limit(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return xp.minimum(xp.maximum(grad_out, -0.5), 0.5) * xp.maximum(tin, 0.25) + xp.maximum(
        tin, 0.0
    )


@case("torch.reciprocal")
def divide(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * (3.0 / (xp.exp(tin) + 2.0))


@case("torch.one_minus")
def one_minus(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * (1.0 - xp.exp(tin))


@case("torch.norm", "numpy.norm")
def norm_with_tensor(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out + xp.exp(-xp.norm(grad_out))


@case("torch.norm_number", "numpy.norm_number")
def clip_by_norm(ctx: Any, grad_out: Any, tin: Any, most: float = 1.0) -> Any:
    return grad_out * xp.minimum(most / xp.maximum(xp.norm(grad_out), 1e-12), 1.0)


@case("torch.one_plus_square", "torch.divided", "numpy.divided")
def arctan_like(ctx: Any, grad_out: Any, tin: Any, alpha: float = 2.0) -> Any:
    u = 1.5 * alpha * tin
    return grad_out * (0.7 * alpha / (1.0 + u * u))


@case("torch.one_minus_scaled")
def triangle(ctx: Any, grad_out: Any, tin: Any, width: float = 1.5) -> Any:
    return grad_out * xp.maximum(1.0 - abs(tin) / xp.maximum(width, 1e-6), 0.0)


@case("torch.constants", "numpy.constants")
def with_numbers(ctx: Any, grad_out: Any, tin: Any, slope: float = 0.3) -> Any:
    return grad_out / (slope * abs(tin) + 0.7)


# Rows that are no rewrites of a backward, with the forward that uses them, or none where size or a
# loop decides.
OTHERS = {"torch.heaviside": "Heaviside", "numpy.blocks": None, "torch.turns": None}
# Rows that round once where the plain code rounds twice.
ROUNDING = {
    "numpy.norm",
    "numpy.norm_number",
    "numpy.divided",
    "torch.distances",
    "torch.norm_number",
    "torch.one_plus_square",
    "torch.divided",
    "torch.one_minus_scaled",
}
DTYPES = ("float16", "bfloat16", "float32", "float64")


def edges(dtype: str) -> Any:
    info = ml_dtypes.finfo(dtype)
    largest, tiny = float(info.max), float(info.smallest_normal)
    thresholds = [-0.5, -0.25, 0.25, 0.5, 1.0, 1.5]
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, largest, -largest, tiny, tiny / 4, *thresholds]
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    around = np.array(thresholds).astype(kind)
    with np.errstate(all="ignore"):
        neighbors = [np.nextafter(around, np.array(side).astype(kind)) for side in (-9, 9)]
        table = np.concatenate([np.array(values).astype(kind), *neighbors])
    grad, x = np.meshgrid(table, table)
    return np.ascontiguousarray(grad), np.ascontiguousarray(x)


def run(rule: Rule, forward: str, backend: Any, grad: Any, x: Any) -> tuple[Any, Any]:
    return backend.vjp(xg.lower(rule, backend.name, forward=forward), x, grad)


def rows_of(backend: Any) -> list[str]:
    xg.lower("scale", backend.name)
    return [name for name in all_patterns() if name.startswith(f"{backend.name}.")]


@pytest.mark.backends("numpy", "torch")
def test_every_row_has_a_case_and_a_measured_reason(backend: Any) -> None:
    for name in rows_of(backend):
        assert name in RULES or name in OTHERS, name
        assert any(character.isdigit() for character in all_patterns()[name].reason), name


def rewriting(backend: Any) -> list[str]:
    """The rows of a backend that show in the emitted code."""
    return [name for name in rows_of(backend) if name in RULES or OTHERS[name]]


def find_case(row: str) -> tuple[Rule, str]:
    return RULES.get(row, RULES["torch.window"]), OTHERS.get(row) or "Linear"


@pytest.mark.backends("numpy", "torch")
def test_a_row_changes_the_emitted_code_and_can_be_turned_off(backend: Any) -> None:
    for row in rewriting(backend):
        rule, forward = find_case(row)
        fast = xg.source(rule, backend.name, forward=forward)
        with without(row):
            assert not enabled(row)
            assert fast != xg.source(rule, backend.name, forward=forward), row
        assert enabled(row)


@pytest.mark.backends("numpy", "torch")
@pytest.mark.parametrize("shape", ["small", "large", "transposed", "scalar", "empty"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_gives_the_numbers_of_the_plain_code(dtype: str, shape: str, backend: Any) -> None:
    grad, x = edges(dtype)
    many = (1 << 15) // grad.size + 1
    g, v = {
        "small": (grad, x),
        "large": (np.tile(grad, (many, 1)), np.tile(x, (many, 1))),
        "transposed": (grad.T, x.T),
        "scalar": (np.asarray(grad[9, 9]), np.asarray(x[9, 9])),
        "empty": (grad[:0], x[:0]),
    }[shape]
    for row in rewriting(backend):
        rule, forward = find_case(row)
        with np.errstate(all="ignore"):
            fast = run(rule, forward, backend, g, v)
            with without(row):
                plain = run(rule, forward, backend, g, v)
        for a, b in zip(fast, plain, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape, row
            check_same(a, b, row)


def check_same(a: Any, b: Any, row: str) -> None:
    """The same values, NaN where NaN; where a row rounds less often, to a few units in the last
    place.
    """
    wide_a, wide_b = (np.asarray(v, np.float64) for v in (a, b))
    if row not in ROUNDING:
        np.testing.assert_array_equal(wide_a, wide_b, row)
        zero = wide_b == 0
        np.testing.assert_array_equal(np.signbit(wide_a[zero]), np.signbit(wide_b[zero]), row)
        return
    eps = float(ml_dtypes.finfo(a.dtype).eps)
    finite = np.isfinite(wide_b)
    np.testing.assert_array_equal(np.isfinite(wide_a), finite)
    np.testing.assert_array_equal(wide_a[~finite], wide_b[~finite])
    tiny = float(ml_dtypes.finfo(a.dtype).smallest_normal)
    np.testing.assert_allclose(
        wide_a[finite], wide_b[finite], rtol=4 * eps, atol=4 * eps + 8 * tiny
    )


@pytest.mark.backends("torch")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_window_holds_what_two_comparisons_do(dtype: str, backend: Any) -> None:
    values = edges(dtype)[1]
    large = np.tile(values, ((1 << 15) // values.size + 1, 1))
    inf = math.inf
    bounds = [(-0.5, 0.5), (0.0, 0.25), (-0.0, 1e30), (0.25, 0.25), (0.5, -0.5), (-inf, inf)]
    for low, high in bounds:

        def four_windows(ctx: Any, grad_out: Any, tin: Any, a: float = low, b: float = high) -> Any:
            closed = grad_out * ((tin >= a) & (tin <= b)) + grad_out * ((tin > a) & (tin < b)) * 2.0
            return (
                closed
                + grad_out * ((tin > a) & (tin <= b)) * 4.0
                + grad_out * ((tin >= a) & (tin < b)) * 8.0
            )

        for x in (values, large):
            ones = np.ones_like(x)
            fast = run(four_windows, "Linear", backend, ones, x)[1]
            with without("torch.window"):
                np.testing.assert_array_equal(
                    fast, run(four_windows, "Linear", backend, ones, x)[1]
                )


SHAPES = {
    "number": ((200, 100), ()),
    "numbers": ((), ()),
    "one": ((200, 100), (1,)),
    "channels": ((200, 100), (200, 1)),
    "whole": ((200, 100), (200, 100)),
    "larger": ((100,), (200, 100)),
    "small": ((3, 4), (4,)),
    "transposed": ((200, 100), (100, 1)),
    "empty": ((0, 4), (4,)),
}


@pytest.mark.backends("numpy", "torch")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("size", [8, 30_000])
def test_a_choice_gives_the_bits_of_what_is_chosen(size: int, dtype: str, backend: Any) -> None:
    def backward(grad_out: Any, x: Any) -> Any:
        number = xp.where(x > 0.5, grad_out, xp.where(x == 0, 0.5, 0.0))
        either = xp.where(x > -1, number, xp.where(x < -2, x, -0.0))
        return xp.where(x == 0.25, 2.5, xp.where(x == 0.75, 0.0, either))

    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.25, 0.75, 1e-7, -1.5, 60_000.0]
    x, g = np.random.default_rng(size).choice(odd, (2, size)).astype(dtype)
    number = np.select([x > 0.5, x == 0], [g, 0.5], 0.0)
    either = np.where(x > -1, number, np.where(x < -2, x, -0.0))
    expected = np.select([x == 0.25, x == 0.75], [2.5, 0.0], either)
    _, (found,) = pull(backend, xg.function(xp.abs, backward), (x,), g)
    assert found.dtype == dtype
    check_same(found, expected, "a choice")


@pytest.mark.backends("numpy", "torch")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_what_broadcasts_has_the_bits_of_the_plain_code(
    shapes: str, dtype: str, backend: Any
) -> None:
    """Nothing that is larger than an operand is written over it."""

    def forward(x: Any, w: Any) -> Any:
        return xp.round(xp.clip(x / w, -2.0, 3.0) * 15.0) / 15.0 * w

    def backward(grad_out: Any, x: Any, w: Any) -> Any:
        v = x / w
        is_inside = (v > -2.0) & (v < 3.0)
        of_w = grad_out * xp.where(is_inside, xp.round(v) - v, xp.round(v)) + (x > w)
        of_x = xp.where((x >= 0) & (x < w), grad_out, 0.0) + xp.where(w <= x, 0.0, grad_out)
        return xp.sum_to(of_x, x), xp.sum_to(of_w, w)

    first, second = SHAPES[shapes]
    random = np.random.default_rng(0)
    x = random.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -1.5, 2.5], first).astype(dtype)
    w = random.choice([0.5, 1.0, 2.0], second).astype(dtype)
    x = x.T if shapes == "transposed" else x
    grad = random.choice([1.0, -0.5, 0.0, np.inf], np.broadcast_shapes(x.shape, w.shape))
    found = []
    for off in ((), tuple(rows_of(backend))):
        with without(*off), np.errstate(all="ignore"):
            f = xg.function(forward, backward)
            y, gradients = pull(backend, f, (x, w), grad.astype(dtype))
            found.append([y, *gradients])
    for a, b in zip(*found, strict=True):
        check_same(a, b, shapes)


@pytest.mark.needs("torch")
def test_estimators_are_differentiable_twice_by_the_plain_code() -> None:
    import torch

    x = torch.tensor([-3.0, -0.25, 0.3, 0.7, 4.0], dtype=torch.float64, requires_grad=True)
    grad = torch.tensor([1.0, 2.0, -3.0, 0.5, 1.5], dtype=torch.float64, requires_grad=True)
    step = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for f in (
        lambda x: xg.estimators.lsq(x, step),
        lambda x: xg.estimators.pact(x, step),
        lambda x: xg.estimators.ste_sign(x),
        xg.estimators.dorefa_weights,
        xg.activation("ReLU", "d(ReLU)"),
    ):
        y = f(x)
        (first,) = torch.autograd.grad(y, x, grad, create_graph=True)
        (plain,) = torch.autograd.grad(f(x), x, grad.detach())
        torch.testing.assert_close(first, plain, rtol=0, atol=0)
        (second,) = torch.autograd.grad(first.sum(), grad)
        torch.testing.assert_close(second * grad, first)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numpy_clips_to_the_bits_of_a_minimum_of_a_maximum(dtype: str) -> None:
    values = np.array([0.0, -0.0, 0.5, -0.5, np.nan, np.inf, -np.inf, 1e-300])
    x = np.tile(values, 600).astype(dtype)
    for low in values.tolist():
        high = 0.25 if low == 0.5 else -low

        def limited(x: Any, a: float = low, b: float = high) -> Any:
            return xp.clip(x, a, b), xp.maximum(x, a), xp.minimum(x, b), xp.minimum(b, x)

        a, b = np.array(low, dtype), np.array(high, dtype)
        least = np.maximum(x, a)
        expected = np.minimum(least, b), least, np.minimum(x, b), np.minimum(b, x)
        for ours, theirs in zip(xg.vjp(limited, x)[0], expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            zero = theirs == 0
            np.testing.assert_array_equal(np.signbit(ours[zero]), np.signbit(theirs[zero]))


def test_numpy_works_by_blocks_where_arrays_are_large_and_gives_the_same_bits() -> None:
    from multigrad.core.lowering.reference.kernels import MANY

    random = np.random.default_rng(0)
    x = random.standard_normal(MANY + 5, dtype=np.float32)
    grad = random.standard_normal(MANY + 5, dtype=np.float32)
    for rule in ("triangular", "rectangular", "clip_norm", "arctan"):
        results = []
        for names in ((), ("numpy.blocks",)):
            with without(*names):
                y, pullback = xg.lower(rule, "numpy", forward="Tanh").vjp(x)
                results.append((y, pullback(grad)))
        for a, b in zip(*results, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("variable", ["torch.window,numpy.in_place", " numpy.in_place "])
def test_a_row_is_turned_off_by_the_environment(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = xg.source("triangular", "numpy")
    monkeypatch.setenv("MULTIGRAD_WITHOUT", variable)
    assert not enabled("numpy.in_place")
    assert xg.source("triangular", "numpy") != fast


def test_an_unknown_row_is_an_error_with_a_suggestion() -> None:
    xg.lower("scale", "numpy")
    with (
        pytest.raises(
            xg.errors.MultigradError, match=r"'numpy.in_plac'.*did you mean 'numpy.in_pl"
        ),
        without("numpy.in_plac"),
    ):
        pass


@pytest.mark.needs("torch")
def test_a_gradient_that_is_read_again_is_not_written_over() -> None:
    import torch

    x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    grad = torch.tensor([1.0, 2.0, 3.0])
    y = xg.activation("Heaviside", "triangular")(x)
    first = torch.autograd.grad(y, x, grad, retain_graph=True)[0].clone()
    second = torch.autograd.grad(y, x, grad)[0]
    assert torch.equal(first, second)
    assert grad.tolist() == [1.0, 2.0, 3.0] and x.tolist() == [-1.0, 0.5, 2.0]


@pytest.mark.backends("numpy", "torch")
@pytest.mark.parametrize("rule", sorted({*xg.rules()} - {"noise", "full_jam", *BY_RANK}))
def test_no_rule_writes_over_its_arguments(rule: str, backend: Any) -> None:
    random = np.random.default_rng(1)
    for shape in ((3, 4), (200, 100)):
        x, grad = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
        before = x.copy(), grad.copy()
        with xg.use("scale", key=0):
            run(xg.get(rule), "ReLU", backend, grad, x)
        np.testing.assert_array_equal(x, before[0])
        np.testing.assert_array_equal(grad, before[1])


@pytest.mark.needs("torch")
@pytest.mark.parametrize("rule", sorted(set(xg.rules()) - {"noise", "full_jam"}))
def test_a_layer_that_has_run_on_a_processor_runs_elsewhere_too(rule: str) -> None:
    import torch

    act = xg.activation("Heaviside", rule)
    for device in ("cpu", "meta", "cpu"):
        x = torch.linspace(-1, 1, 6, device=device).requires_grad_()
        with xg.use("scale", key=0):
            y = act(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones(6, device=device))
        assert gradient.device.type == device and gradient.shape == x.shape


@pytest.mark.backends("torch")
def test_only_tensors_of_one_shape_are_compared_into_floats(backend: Any) -> None:
    def alike(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * (grad_out > tin)

    def by_columns(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * (grad_out > xp.mean(tin, axis=0))

    assert "gt_float(" in xg.source(alike, backend.name, forward="Linear")
    assert "gt_float(" not in xg.source(by_columns, backend.name, forward="Linear")
    grad, x = np.float32([[1.0, -2.0], [3.0, 4.0]]), np.float32([[2.0, -3.0], [1.0, 9.0]])
    np.testing.assert_array_equal(run(alike, "Linear", backend, grad, x)[1], grad * (grad > x))
    _, found = run(by_columns, "Linear", backend, grad, x)
    np.testing.assert_array_equal(found, grad * (grad > x.mean(axis=0)))


@pytest.mark.backends("torch")
def test_a_limit_above_the_range_of_float16_limits_nothing_in_place(backend: Any) -> None:
    def limited(ctx: Any, grad_out: Any, tin: Any, limit: float = 1e6) -> Any:
        return xp.maximum(xp.minimum(3.0 * grad_out, limit), -limit)

    grad = np.float16([1.0, -2.0, 600.0])
    np.testing.assert_array_equal(run(limited, "Linear", backend, grad, grad)[1], 3 * grad)
