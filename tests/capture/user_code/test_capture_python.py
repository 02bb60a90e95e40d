"""Python in a rule: loops, helpers, builtins and `math`; and the Array API namespace of `tin`."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import multigrad as xg

from ...written.unseen import Unseen

X = np.array([[-1.0, 0.5, 2.0], [3.0, -0.25, 0.0]], np.float32)
G = np.array([[1.0, -2.0, 3.0], [-1.0, 0.5, 4.0]], np.float32)


def run(backend: Any, rule: xg.Rule, **params: Any) -> Any:
    return backend.numpy(rule(None, backend.array(G), backend.array(X), **params))


# --- rules that NumPy runs as they are: capture must give the same --------------------------------


def repeated(ctx: Any, g: Any, x: Any, *, n: int = 3, rate: float = 0.5) -> Any:
    for i in range(n):
        g = g - rate * (g - i)
    return g


def counted_by_a_float(ctx: Any, g: Any, x: Any, *, rate: float = 0.3) -> Any:
    total, factor = 0.0, 1.0
    while total < 1.0:
        total += rate
        factor *= 0.5
    return g * factor


def newton(ctx: Any, g: Any, x: Any) -> Any:
    y = np.abs(x) + 1.0
    for _ in range(4):
        y = 0.5 * (y + (np.abs(x) + 0.5) / y)
    return g * y


def polynomial(ctx: Any, g: Any, x: Any, *, coefficients: tuple = (1.0, -0.5, 0.25)) -> Any:
    terms = [c * x**i for i, c in enumerate(coefficients)]
    return g * sum(terms) if any(coefficients) and all(c < 2 for c in coefficients) else g


def in_builtins(ctx: Any, g: Any, x: Any, *, width: float = 1.6) -> Any:
    steps, rest = divmod(7, 4)
    scale = pow(width, 2) + abs(-width) + round(width) + max(width, 1.0) + min(width, 1.0)
    return pow(g, 2) * scale + abs(x) * steps + rest * sum([g, x, 1.0])


def in_math(ctx: Any, g: Any, x: Any, *, width: float = 1.6) -> Any:
    scale = math.sqrt(width) + math.exp(-width) + math.tanh(width) + math.pow(width, 2.0)
    bounds = math.floor(width) + math.ceil(width) + math.erf(width) + math.fabs(-width)
    return g * scale + x * bounds / math.sqrt(2 * math.pi)


def in_helpers(ctx: Any, g: Any, x: Any, *, width: float = 1.6) -> Any:
    def inner(value: Any) -> Any:
        return window(value, width) if width else value

    return g * inner(x) + [window(v, 2.0) for v in (g, x)][1]


def window(x: Any, width: Any) -> Any:
    return np.exp(-(x * x) / max(width, 1e-6))


RULES = [repeated, counted_by_a_float, newton, polynomial, in_builtins, in_math, in_helpers]


@pytest.mark.parametrize("function", RULES, ids=lambda f: f.__name__)
def test_python_in_a_rule(function: Any, backend: Any, captured: Any) -> None:
    given = run(backend, captured(function))
    np.testing.assert_allclose(given, function(None, G, X), rtol=3e-6, atol=1e-6)


def test_a_params_value_decides_how_often_a_loop_runs(backend: Any, captured: Any) -> None:
    rule = captured(repeated)
    for n in (0, 1, 5):
        given = run(backend, rule, n=n, rate=0.25)
        np.testing.assert_allclose(given, repeated(None, G, X, n=n, rate=0.25), rtol=1e-6)


@pytest.mark.usefixtures("unproven")
def test_math_on_a_param_is_captured_once_for_all_values(backend: Any, captured: Any) -> None:
    seen = Unseen()

    def rule(ctx: Any, g: Any, x: Any, *, width: float = 1.0) -> Any:
        seen.append(1)
        return g * math.sqrt(width) * math.exp(width)

    made = captured(rule)
    for width in (0.5, 1.0, 2.0):
        wanted = G * (math.sqrt(width) * math.exp(width))
        np.testing.assert_allclose(run(backend, made, width=width), wanted, rtol=1e-6)
    assert len(seen) == 1


ones = np.ones(3, np.float32)
sqrt = [1.0, 2.0, 3.0]


def test_users_own_names_are_not_mistaken_for_a_librarys(backend: Any, captured: Any) -> None:
    def rule(ctx: Any, g: Any, x: Any) -> Any:
        return g * ones * sqrt[1] + full(x)

    def full(x: Any) -> Any:
        return 2 * x

    np.testing.assert_array_equal(run(backend, captured(rule)), G * 2 + X * 2)


@pytest.mark.backends("numpy", "torch")
def test_what_a_framework_puts_into_pythons_modules_is_no_word_of_the_function(
    backend: Any, captured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(*_: Any) -> None: ...

    hook.__module__ = "torch.distributed"  # as its init_process_group leaves one
    monkeypatch.setattr(sys, "excepthook", hook)

    def shared(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return np.divide(grad_out, min(tin.size, sys.maxsize))  # a method in torch

    given = captured(shared)(None, backend.array(np.ones(4)), backend.array(np.ones(4)))
    np.testing.assert_array_equal(backend.numpy(given), np.full(4, 0.25))


# --- torch's maximum along a dim, and limits ------------------------------------------------------


@pytest.mark.needs("torch")
def test_values_of_torchs_max_along_a_dim(backend: Any, captured: Any, torch: Any) -> None:
    def rule(ctx: Any, g: Any, x: Any) -> Any:
        top = torch.max(x, dim=-1, keepdim=True).values
        low, _ = x.min(dim=1, keepdim=True)
        first = torch.min(g, 0, True)[0]
        scale = torch.finfo(x.dtype).eps * 1e6 + torch.max(g) + torch.max(g, x)
        return g * top + low + first * x.max() + scale

    x, g = torch.from_numpy(X), torch.from_numpy(G)
    np.testing.assert_allclose(run(backend, captured(rule)), rule(None, g, x), rtol=1e-6)


def test_numpys_method_takes_an_axis(backend: Any, captured: Any) -> None:
    def rule(ctx: Any, g: Any, x: Any) -> Any:
        return np.abs(g) * x.max(-1, keepdims=True) - x.min(axis=0, keepdims=True)

    np.testing.assert_allclose(run(backend, captured(rule)), rule(None, G, X), rtol=1e-6)


@dataclass
class Options:
    width: float = 1.0


class Pair(NamedTuple):
    low: float
    high: float


def test_param_that_is_an_object_is_refused_by_name(backend: Any, captured: Any) -> None:
    def rule(ctx: Any, g: Any, x: Any, *, options: Any = None, bounds: Any = (0.0, 1.0)) -> Any:
        return g * bounds[1]

    made = captured(rule)
    with pytest.raises(xg.RuleError, match=r"param 'options' is a number.*got Options"):
        run(backend, made, options=Options())
    # A named tuple is a tuple, and as static as one.
    np.testing.assert_array_equal(run(backend, made, bounds=Pair(0.0, 2.0)), G * 2)


# --- the Array API --------------------------------------------------------------------------------


def in_the_namespace_of_tin(ctx: Any, g: Any, x: Any) -> Any:
    space = x.__array_namespace__()
    inside = space.abs(x) < space.asarray(1.0)
    count = space.astype(inside, g.dtype)
    single = space.astype(g * 0.1, space.float32)
    norm = space.linalg.vector_norm(g, axis=-1, keepdims=True)
    total = space.linalg.vector_norm(x)
    bounded = space.where(inside, g, space.zeros_like(g)) / (norm + space.finfo(x.dtype).eps)
    if space.isdtype(x.dtype, "real floating") and not space.isdtype(x.dtype, "bool"):
        bounded = bounded + space.ones(x.shape) * space.full(x.shape, 0.5)
    flags = space.full_like(x, True, dtype=space.bool)
    mask = space.logical_and(flags, space.asarray([True, False, True]))
    crossed = space.linalg.matmul(g, space.eye(3)) - g.T.mT * space.arange(x.shape[-1])
    return bounded * count + single + total * mask * space.pi + crossed


def test_rule_in_the_namespace_of_its_input(backend: Any, captured: Any) -> None:
    inside = np.abs(X) < 1
    norm = np.linalg.norm(G, axis=-1, keepdims=True)
    wanted = (np.where(inside, G, 0) / (norm + np.finfo(np.float32).eps) + 0.5) * inside
    wanted = wanted + G * np.float32(0.1) + np.linalg.norm(X) * np.array([1, 0, 1]) * np.pi
    wanted = wanted + G - G * np.arange(3)
    given = run(backend, captured(in_the_namespace_of_tin))
    np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-6)


def test_limits_follow_the_dtype(backend: Any, captured: Any) -> None:
    def rule(ctx: Any, g: Any, x: Any) -> Any:
        space = x.__array_namespace__()
        limits = space.finfo(x.dtype)
        return g * 0 + limits.eps + (1.0 if x.dtype == space.float16 else 0.0)

    made = captured(rule)
    for dtype in (np.float16, np.float32, np.float64):
        with backend.precision(dtype):
            g, x = backend.array(G.astype(dtype)), backend.array(X.astype(dtype))
            given = backend.numpy(made(None, g, x))
        wanted = np.full_like(G, np.finfo(dtype).eps + (dtype == np.float16), dtype=dtype)
        np.testing.assert_array_equal(given, wanted)


def test_the_namespace_works_on_real_tensors(backend: Any) -> None:
    x = backend.array(X)
    assert xg.xp.finfo(x.dtype).eps == np.finfo(np.float32).eps
    assert xg.xp.finfo(xg.xp.float16).bits == 16
    assert xg.xp.asarray(2.0) == 2.0 and xg.xp.asarray(x) is x
    norm = backend.numpy(xg.xp.linalg.vector_norm(x, axis=-1))
    np.testing.assert_allclose(norm, np.linalg.norm(X, axis=-1), rtol=1e-6)
    with pytest.raises(TypeError, match="finfo of int32; expected one of float16"):
        xg.xp.finfo("int32")
