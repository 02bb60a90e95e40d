"""Rules written in `xg.xp`, in plain operators and in a mixture of libraries; and `xg.xp` on real
tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import multigrad as xg
from multigrad import xp

from ...written.unseen import Unseen

Arrays = tuple[Any, Any]


def inputs() -> Arrays:
    tin = np.linspace(-2.3, 2.9, 12).reshape(3, 4).astype(np.float32)
    tin[1] = [0.0, -0.0, 1.0, -1.0]
    return tin, np.linspace(-1.3, 1.9, 12).reshape(3, 4).astype(np.float32)


def run(backend: Any, rule: xg.Rule, **params: Any) -> Any:
    tin, grad_out = inputs()
    return backend.numpy(rule(None, backend.array(grad_out), backend.array(tin), **params))


# --- rules ----------------------------------------------------------------------------------------


def test_rule_in_operators_alone(backend: Any, captured: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 1.5) -> Any:
        inside = (tin >= -width) & (tin <= width) ^ (tin == 0.0) | ~(tin != 1.0)
        return -grad_out * inside * (2.0 - abs(tin)) / (1 + tin**2) + +tin

    x, g = inputs()
    inside = (x >= -1.5) & (x <= 1.5) ^ (x == 0) | ~(x != 1)
    wanted = -g * inside * (2 - np.abs(x)) / (1 + x * x) + x
    np.testing.assert_allclose(run(backend, captured(rule)), wanted, rtol=2e-6, atol=1e-6)


def test_rule_in_xp(backend: Any, captured: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any, *, slope: float = 2.0) -> Any:
        bell = xp.where(xp.abs(tin) < slope, xp.exp(-xp.square(tin)), 0.0)
        center = xp.mean(grad_out, axis=-1, keepdims=True)
        scale = xp.maximum(xp.norm(grad_out), 1e-6) * xp.sqrt(xp.size(tin))
        return xp.clip((grad_out - center) * bell, -1.0, 1.0) / scale

    x, g = inputs()
    bell = np.where(np.abs(x) < 2, np.exp(-x * x), 0)
    wanted = np.clip((g - g.mean(-1, keepdims=True)) * bell, -1, 1)
    wanted = wanted / np.linalg.norm(g) / np.sqrt(12)
    np.testing.assert_allclose(run(backend, captured(rule)), wanted, rtol=3e-6, atol=1e-7)


def test_names_imported_from_xp_and_helpers(backend: Any, captured: Any) -> None:
    relu, where = xp.relu, xp.where

    def hat(x: Any, width: Any) -> Any:
        return relu(1.0 - abs(x) / max(width, 1e-6))

    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 2.0) -> Any:
        return where(tin > 0, grad_out * hat(tin, width), 0.0)

    x, g = inputs()
    wanted = np.where(x > 0, g * np.maximum(1 - np.abs(x) / 0.5, 0), 0)
    given = run(backend, captured(rule), width=0.5)
    np.testing.assert_allclose(given, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.needs("torch")
def test_libraries_may_be_mixed(backend: Any, captured: Any, torch: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        smooth = torch.sigmoid(np.square(tin)) + xp.tanh(tin) * np.pi
        return np.where(tin > 0, smooth, xp.zeros_like(tin)) * grad_out.clamp(min=-1.0)

    x, g = inputs()
    wanted = np.where(x > 0, special.expit(x * x) + np.tanh(x) * np.pi, 0) * np.maximum(g, -1)
    np.testing.assert_allclose(run(backend, captured(rule)), wanted, rtol=2e-6, atol=1e-6)


def test_deviation_divides_as_the_rules_own_library_does(captured: Any) -> None:
    x, g = inputs()

    def in_xp(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out / grad_out.std() * xp.tanh(tin)

    def by_axis(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out / grad_out.std(axis=-1, keepdims=True)

    def by_correction(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out / grad_out.std(correction=1)

    np.testing.assert_allclose(captured(in_xp)(None, g, x), g / g.std() * np.tanh(x), rtol=2e-6)
    np.testing.assert_allclose(
        captured(by_axis)(None, g, x), g / g.std(axis=-1, keepdims=True), rtol=2e-6
    )
    np.testing.assert_allclose(captured(by_correction)(None, g, x), g / g.std(ddof=1), rtol=2e-6)


@pytest.mark.usefixtures("unproven")
def test_param_in_arithmetic_is_captured_once(captured: Any) -> None:
    captures = Unseen()

    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        captures.append(width)
        return grad_out * (abs(tin) < max(width, 0.1) * 2.0)

    x, g = inputs()
    made = captured(rule)
    for width in (0.05, 0.5, 1, 2.0):
        wanted = g * (np.abs(x) < max(width, 0.1) * 2)
        np.testing.assert_array_equal(made(None, g, x, width=width), wanted)
    assert len(captures) == 1


def test_param_in_a_branch_is_captured_once_for_each_value(captured: Any) -> None:
    captures = Unseen()

    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0, gain: float = 1.0) -> Any:
        captures.append(width)
        return gain * grad_out if width > 0 else gain * tin

    x, g = inputs()
    made = captured(rule)
    np.testing.assert_array_equal(made(None, g, x, width=1.0), g)
    np.testing.assert_array_equal(made(None, g, x, width=-1.0), x)
    count = len(captures)
    np.testing.assert_array_equal(made(None, g, x, width=1.0, gain=2.0), 2 * g)
    np.testing.assert_array_equal(made(None, g, x, width=-1.0, gain=0.5), x / 2)
    assert len(captures) == count


# --- xp on real tensors ---------------------------------------------------------------------------

# What is no op; those are in the conformance suite, and in the examples of their docstrings.
signed = np.array([[-1.5, -0.5, 0.0], [0.5, 1.5, 2.5]], np.float32)
CALLS: dict[str, tuple[Callable[..., Any], Any]] = {
    "positive": (xp.positive, signed),
    "clip": (lambda x: xp.clip(x, -1.0, 1.0), np.clip(signed, -1, 1)),
    "clip from below": (lambda x: xp.clip(x, min=0.0), np.maximum(signed, 0)),
    "pow": (lambda x: xp.pow(x, 3), signed**3),
    "astype": (lambda x: xp.astype(x > 0, "float32"), (signed > 0).astype(np.float32)),
    "cast to bool": (lambda x: xp.cast(x, bool), signed != 0),
    "full_like": (lambda x: xp.full_like(x, 2.0), np.full_like(signed, 2)),
    "ones_like of bool": (lambda x: xp.ones_like(x, bool), np.ones_like(signed, bool)),
    "sum": (lambda x: xp.sum(x, axis=0), signed.sum(0)),
    "mean": (lambda x: xp.mean(x, axis=-1, keepdims=True), signed.mean(-1, keepdims=True)),
    "cumulative_sum": (lambda x: xp.cumulative_sum(x, axis=0), signed.cumsum(0)),
    "min": (lambda x: xp.min(x, axis=(0, 1)), signed.min()),
    "norm": (xp.norm, np.linalg.norm(signed)),
    "std": (lambda x: xp.std(x, correction=1), signed.std(ddof=1)),
    "expand_dims": (lambda x: xp.expand_dims(x, -1), signed[..., None]),
    "sum_to": (lambda x: xp.sum_to(x, x[:1]), signed.sum(0, keepdims=True)),
    "broadcast_to": (lambda x: xp.broadcast_to(x[:1], x), signed[[0, 0]]),
    "dim": (lambda x: x * xp.dim(x, 1), signed * 3),
    "size": (lambda x: x * xp.size(x), signed * 6),
}


@pytest.mark.parametrize("name", CALLS)
def test_xp_computes_on_real_tensors(name: str, backend: Any) -> None:
    call, wanted = CALLS[name]
    given = backend.numpy(call(backend.array(signed)))
    np.testing.assert_allclose(given, wanted, rtol=2e-6, atol=1e-6)
    assert given.dtype == (np.bool_ if np.asarray(wanted).dtype == np.bool_ else np.float32)


@pytest.mark.parametrize("join", [xp.concatenate, xp.stack])
def test_xp_joins_nothing_as_numpy_does(join: Any) -> None:
    with pytest.raises(ValueError, match="need at least one array"):
        join([])


def test_a_remainder_of_numbers_is_no_number_where_there_is_none(
    backend: Any, captured: Any
) -> None:
    rule = captured(lambda ctx, grad_out, tin, by=0.0: grad_out * xp.remainder(5.0, by))
    x = backend.array(signed)
    assert np.isnan(backend.numpy(rule(None, x, x, by=0.0))).all()
    np.testing.assert_array_equal(backend.numpy(rule(None, x, x, by=3.0)), 2 * signed)
    assert np.isnan(xp.remainder(5.0, 0.0))
    assert np.isnan(xp.remainder(np.inf, 2.0))


def test_xp_draws_by_key_on_real_tensors(backend: Any) -> None:
    x = backend.array(np.zeros((40, 50), np.float32))
    uniform, normal = (backend.numpy(draw(x, key=(0, 7))) for draw in (xp.rand_like, xp.randn_like))
    assert 0 <= uniform.min() < 0.01 and 0.99 < uniform.max() < 1
    assert abs(normal.mean()) < 0.1 and normal.std() == pytest.approx(1, abs=0.1)
    np.testing.assert_array_equal(uniform, xp.rand_like(np.zeros((40, 50), np.float32), (0, 7)))
