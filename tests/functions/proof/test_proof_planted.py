"""A graph that is not what was written is never used: faults are planted in captures, and each must
be found.
"""

from __future__ import annotations

import random
import types
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.errors import NativeRuleWarning, TraceError
from multigrad.registry import resolve

from ...capture.types.test_every_dialect import DIALECTS, names_in, written_in
from ...written.planted_faults import plant, plant_dtype
from ...written.typed_functions import FORWARDS
from ...written.typed_functions import WRITTEN_IN as TYPED_IN

SEEDS = range(60)
X = np.linspace(-1.7, 2.3, 12, dtype=np.float32).reshape(3, 4)
G = np.linspace(0.5, 1.5, 12, dtype=np.float32).reshape(3, 4)
# Python's max and min take no arrays but in a capture, so what is written in operators alone may
# not run without one. Among the others is the dialect of keras.
WRITTEN_IN = tuple(dialect for dialect in DIALECTS if dialect != "operators")

# Nothing in them can be mistaken: they are their input, or its negative.
SHOWING_NOTHING = {"straight_through", "gradient_reversal"}


def choose(seed: int) -> tuple[str, str, str]:
    """Return a dialect, a rule written in it, and whether it is captured as a rule or as a
    Function.
    """
    dialect = WRITTEN_IN[seed % len(WRITTEN_IN)]
    names = [n for n in names_in(dialect) if n not in SHOWING_NOTHING]
    return dialect, random.Random(seed).choice(names), ("rule", "function")[seed // 7 % 2]


def as_function(rule: Callable[..., Any]) -> Any:
    """Return the identity with a rule as its backward, as if both stood in the rule's own file."""

    def forward(x: Any) -> Any:
        return x * 1.0

    def backward(grad_out: Any, x: Any) -> Any:
        return rule(None, grad_out, x)

    own = [
        types.FunctionType(f.__code__, rule.__globals__, f.__name__, None, f.__closure__)
        for f in (forward, backward)
    ]
    return xg.function(*own)


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.needs(*DIALECTS[choose(n)[0]])) for n in SEEDS]
)
def test_a_planted_fault_is_found_and_the_graph_is_not_used(
    seed: int, capturing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect, name, kind = choose(seed)
    rule = written_in(dialect)[name]
    monkeypatch.setenv("MULTIGRAD_PROVE", "1")
    capturing(backward=lambda graph: plant(graph, seed))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NativeRuleWarning)
        with pytest.raises((NativeRuleWarning, TraceError), match="differs from its graph"):
            if kind == "rule":
                resolve(rule)(None, G, X)
            else:
                xg.vjp(as_function(rule), X)[1](G)


def choose_typed(seed: int) -> tuple[str, str, str]:
    """Return a library, a forward written in it, and the dtype of its input."""
    library = tuple(TYPED_IN)[seed % len(TYPED_IN)]
    dtypes = ("float64", "float32", "float16", "float64")
    return library, FORWARDS[seed // len(TYPED_IN) % len(FORWARDS)], dtypes[seed // 20 % 4]


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.needs(choose_typed(n)[0])) for n in SEEDS]
)
def test_a_fault_in_handling_dtypes_is_found_in_the_dtype_of_the_call(
    seed: int, capturing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, name, dtype = choose_typed(seed)
    forward = TYPED_IN[library]()[name]
    backend = load_backend(library)
    monkeypatch.setenv("MULTIGRAD_PROVE", "1")
    mode = backend.tensors.precision
    with nullcontext() if mode is None else mode(dtype):
        x = backend.tensors.from_numpy(X.astype(dtype))
        with warnings.catch_warnings():  # no false alarm
            warnings.simplefilter("error", NativeRuleWarning)
            xg.function(forward)(x)
        capturing(lambda graph: plant_dtype(graph, dtype, seed))
        with pytest.warns(NativeRuleWarning, match="differs from its graph"):
            xg.function(forward)(x)


@pytest.mark.needs("torch")
def test_a_gradient_that_a_graph_loses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from multigrad_torch.dialect import table

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> Any:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                again = x.detach().requires_grad_()
                result = torch.sin(again)
            return torch.autograd.grad(result, again, grad_out, allow_unused=True)

    def lost(input: Any) -> Any:
        return xg.xp.stop_gradient(xg.xp.sin(input))

    monkeypatch.setitem(table.ALIASES, torch.sin, lost)
    x = torch.linspace(-1.0, 1.0, 5, requires_grad=True)
    with pytest.warns(NativeRuleWarning, match=r"the gradient of x\[\d\] is .* and 0 as a graph"):
        xg.from_autograd_function(Sine)(x).sum().backward()
    np.testing.assert_allclose(x.grad, torch.cos(x.detach()))
