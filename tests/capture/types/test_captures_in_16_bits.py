"""What was captured for the wide floats serves in 16 bits too, where a capture there would give the
same graphs; where the library computes otherwise in 16 bits, there is another one.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad.core.functions.captures import capture
from multigrad.core.ir.graph import Graph
from multigrad.engine.functions.calls.arguments import lay_out

from ...dtypes.table import ALL_PATTERNS, names_of, values
from ...golden import digests

Tensor = Any
FLOATS: dict[str, Any] = {name: np.dtype(name) for name in ("float32", "float64", "float16")} | {
    "bfloat16": np.dtype(ml_dtypes.bfloat16)
}


def graphs_of(function: Any) -> list[Any]:
    """Return the graphs of each captured form, those that are one once."""
    return list({id(v.graphs): v.graphs for v in function.captures.variants.values()}.values())


def captured(function: Any, library: str) -> Any:
    """Return a function as a graph, whose gradient nobody asks for."""
    return xg.function(
        function, lambda g, *given: [None] * len(given), native=False, dialect=library
    )


def decay(x: Any) -> Any:
    scaled = np.abs(x) / 3
    return np.where(scaled < 1, np.tanh(scaled) * 0.1, np.exp(-scaled) + x)


def test_code_of_numpys_runs_on_symbols_for_wide_floats_alone() -> None:
    function = captured(decay, "numpy")
    for name in ("float32", "float64", "float16"):
        x = np.linspace(-5, 5, 11).astype(FLOATS[name])
        np.testing.assert_array_equal(function(x), decay(x))
    assert len(graphs_of(function)) == 1
    assert {variant.facts.get("dtype") for variant in function.captures.variants.values()} == {
        None,
        "float16",
    }


def test_bfloat16_beside_numbers_is_numpys_own_case() -> None:
    function = captured(lambda x: np.exp(x) * 0.5, "numpy")
    for name in ("float32", "bfloat16"):
        x = np.ones(2, FLOATS[name])
        assert function(x).dtype == (np.exp(x) * 0.5).dtype
    assert len(graphs_of(function)) == 2


@pytest.mark.needs("torch")
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_each_kernel_of_torchs_that_is_one_op_serves(narrow: str) -> None:
    torch: Any = import_module("torch")

    class Decay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, width: float) -> Tensor:
            ctx.save_for_backward(x)
            ctx.width = width
            return torch.clamp(x, -1, 1).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            scaled = torch.abs(x) / ctx.width
            near = torch.zeros(x.shape, dtype=x.dtype) + torch.tanh(scaled)
            return grad_out * torch.where(scaled < 1, near, torch.exp(-scaled)), None

    function = xg.from_autograd_function(Decay)
    for name in ("float32", narrow):
        given = [torch.linspace(-3, 3, 13).to(getattr(torch, name)).requires_grad_() for _ in "ab"]
        for x, apply in zip(given, (function, Decay.apply), strict=True):
            apply(x, 1.5).sum().backward()
        torch.testing.assert_close(given[0].grad, given[1].grad, rtol=0, atol=0)
    assert len(graphs_of(function)) == 1
    assert len({id(variant.lowered) for variant in function.captures.variants.values()}) == 1


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("narrow", "low", "high"), [("float16", -0.3, 0.1), ("bfloat16", 0.3, 0.7)]
)
def test_a_limit_that_16_bits_round_is_one_to_the_gradient(
    narrow: str, low: float, high: float
) -> None:
    torch: Any = import_module("torch")

    def limited(x: Tensor) -> Tensor:
        return torch.clamp(x, low, high)

    slopes = []
    for each in (xg.convert(limited), limited):
        x = torch.tensor([-1, low, 0.5, high, 2], dtype=getattr(torch, narrow), requires_grad=True)
        slopes += torch.autograd.grad(each(x).sum(), x)
    torch.testing.assert_close(*slopes, rtol=0, atol=0)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_what_torch_rounds_once_is_captured_anew(narrow: str) -> None:
    torch: Any = import_module("torch")

    def composed(x: Tensor) -> Tensor:
        return torch.nn.functional.mish(x) * torch.addcmul(x, x, x, value=0.3)

    function = captured(composed, "torch")
    for name in ("float32", narrow):
        x = torch.linspace(-3, 3, 301).to(getattr(torch, name))
        torch.testing.assert_close(function(x), composed(x))
    assert len(graphs_of(function)) == 2


@pytest.mark.needs("torch")
def test_code_that_names_a_dtype_is_captured_anew_in_that_one() -> None:
    torch: Any = import_module("torch")

    def named(x: Tensor) -> Tensor:
        return x.to(torch.float16) * 2

    function = captured(named, "torch")
    for name in ("float32", "bfloat16", "float16"):
        x = torch.ones(3, dtype=getattr(torch, name))
        assert function(x).dtype == torch.float16
    assert len(graphs_of(function)) == 2  # in bfloat16 it is that of float32


@pytest.mark.needs("torch")
def test_what_torch_was_set_to_since_is_asked_anew() -> None:
    torch: Any = import_module("torch")

    def made(x: Tensor) -> Tensor:
        return x * torch.full((2,), 1 / 3)

    function = captured(made, "torch")
    for default, name in (("float32", "float32"), ("float64", "float16")):
        torch.set_default_dtype(getattr(torch, default))
        try:
            x = torch.ones(2, dtype=getattr(torch, name))
            assert function(x).dtype == made(x).dtype
            torch.testing.assert_close(function(x), made(x))
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "library", ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))]
)
def test_a_capture_that_is_said_to_hold_in_16_bits_is_that_of_16_bits(library: str) -> None:
    """Of every fourth function of one tensor, by both captures, of which one is not needed."""
    functions = names_of(library)
    known = [
        key.removesuffix("(x)") for key in digests.read("graphs", library) if key[-3:] == "(x)"
    ]
    held = 0
    for name in known[::4]:
        function = captured(_called(functions[name]), library)
        try:
            with np.errstate(all="ignore"):
                function(values("float32", False))
        except Exception:  # noqa: BLE001, S112  (it is not captured)
            continue
        (wide, *_) = function.captures.variants.values()
        for narrow in ("float16", "bfloat16"):
            if wide.reach is None or not wide.reach.holds_in(narrow):
                continue
            rows = [replace(leaf, dtype=narrow) for leaf in wide.layout.leaves]
            layout = lay_out(wide.layout.tree, rows, is_apart=True)
            own = capture(function.recipe, layout, {**wide.facts, "dtype": narrow})
            assert _text(own.graphs.forward) == _text(wide.graphs.forward), name
            held += 1
    assert held > 20


def _called(function: Any) -> Any:
    def call(x: Any) -> Any:
        args, kwargs = ALL_PATTERNS["x"](x, x, x)
        return function(*args, **kwargs)

    return call


def _text(graph: Graph) -> list[str]:
    return [line.partition("  #")[0] for line in str(graph).splitlines()]
