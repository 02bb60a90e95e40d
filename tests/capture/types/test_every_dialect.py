"""One rule, written in every dialect that can express it, gives the same numbers on every backend.

The rules stand in the folder `every_dialect`, one file per dialect, in `shared.py` those that are
the same in several; their formulas are the oracle.
"""

from __future__ import annotations

import ast
import importlib
import math
import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from multigrad_conformance.oracles import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    Exact,
    assert_same_numbers,
    edge_values,
    spread,
)

from ...conftest import BACKENDS
from ...every_dialect import formulas, shared

FOLDER = Path(__file__).parents[2] / "every_dialect"
# What must be installed for a dialect, and a framework of its own where it has one.
DIALECTS: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "numpy": (),
    "jax": ("jax",),
    "tensorflow": ("tensorflow",),
    "keras": ("keras",),
    "array_api": (),
    "xp": (),
    "operators": (),
}
# By what word the files of dialects call the library that takes the rules of `shared.py`.
SHARING = {
    "numpy": "np", "jax": "jnp", "tensorflow": "tf", "keras": "ops", "xp": "xp", "array_api": "xp",
}  # fmt: skip
# What a dialect has no words for.
INEXPRESSIBLE = {
    "array_api": {"gelu_slope"},  # erf
    "operators": {
        # where
        *("threshold_mask", "half_open_window", "log_tailed", "approx_sign", "clamp_with_grad"),
        *("sigmoid_slope", "tanh_slope", "erf_slope", "gaussian", "multi_gaussian", "exponential"),
        *("slayer", "s2nn", "beta_smooth_relu", "gelu_slope", "learned_step"),  # functions
        *formulas.REDUCING,
    },
}


def names_in(dialect: str) -> list[str]:
    """The rules of a dialect, read without importing its framework."""
    written: set[Any] = set()
    for file in (f"in_{dialect}.py", *(["shared.py"] if dialect in SHARING else [])):
        tree = ast.parse((FOLDER / file).read_text(encoding="utf-8"))
        tables = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
        written |= {getattr(key, "value", None) for table in tables for key in table.keys}
    words = written - INEXPRESSIBLE.get(dialect, set()) if dialect in SHARING else written
    return [name for name in formulas.FORMULAS if name in words]


def dtypes_for(name: str) -> tuple[Any, ...]:
    """32 and 64 bits, and one of the two 16-bit floats in turn."""
    is_odd = list(formulas.FORMULAS).index(name) % 2
    return FLOAT32, FLOAT64, BFLOAT16 if is_odd else FLOAT16


CASES = [
    pytest.param(dialect, name, marks=[pytest.mark.needs(*packages)], id=f"{name}-in_{dialect}")
    for dialect, packages in DIALECTS.items()
    for name in names_in(dialect)
]


# `xg.xp` is no library of its own, and the builtins `max` and `min` take no arrays outside of a
# rule.
OWN_CASES = [case for case in CASES if case.values[0] not in ("xp", "operators")]


@cache
def written_in(dialect: str) -> dict[str, Callable[..., Any]]:
    """A dialect's rules by name: of its file, and the shared ones that it has none of its own
    for.
    """
    if dialect == "keras" and "KERAS_BACKEND" not in os.environ:
        installed = [name for name in ("tensorflow", "jax", "torch") if find_spec(name)]
        os.environ["KERAS_BACKEND"] = installed[0]
    module = importlib.import_module(f"tests.every_dialect.in_{dialect}")
    if dialect not in SHARING:
        return module.RULES
    own = vars(module)
    own |= {"lib": own[SHARING[dialect]], "math": math}

    def in_dialect(function: Any) -> Any:
        return FunctionType(function.__code__, own, function.__name__)

    for name, function in vars(shared).items():
        if isinstance(function, FunctionType):
            own.setdefault(name, in_dialect(function))
    return {name: in_dialect(rule) for name, rule in shared.RULES.items()} | module.RULES


def own_backend(dialect: str) -> str:
    """The backend on whose tensors a rule of that dialect runs without multigrad."""
    if dialect == "keras":
        import keras

        return keras.config.backend()
    return dialect if dialect in BACKENDS else "numpy"


@cache
def inputs(name: str, dtype: Any) -> tuple[Any, Any]:
    """A gradient and an input: edges and thresholds where the rule is elementwise, rows where it
    reduces.
    """
    edges = edge_values(dtype, 0.25, 1.75, 2.25)
    if name in formulas.REDUCING:
        shape = (3, edges.size)
        return spread(shape, dtype, seed=1, width=1.0), spread(shape, dtype, width=1.0)
    moderate = spread((edges.size,), dtype, width=1.0)
    tin = np.stack([edges, edges, moderate])
    grad_out = np.stack([np.full_like(edges, 1.25), np.full_like(edges, -0.75), edges])
    return grad_out, tin


@cache
def expected(name: str, dtype: Any) -> Exact:
    return formulas.expected(name, *inputs(name, dtype))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_leaves_out_only_what_it_cannot_express(dialect: str) -> None:
    assert set(names_in(dialect)) == set(formulas.FORMULAS) - INEXPRESSIBLE.get(dialect, set())


@pytest.mark.parametrize(("dialect", "name"), CASES)
def test_a_rule_gives_its_formulas_numbers(
    dialect: str, name: str, backend: Any, captured: Any
) -> None:
    rule = captured(written_in(dialect)[name])
    for dtype in dtypes_for(name):
        grad_out, tin = inputs(name, dtype)
        with backend.precision(dtype):
            given = backend.numpy(rule(None, backend.array(grad_out), backend.array(tin)))
        what = f"{name} in {dialect} on {backend.name}, {dtype}"
        assert_same_numbers(given, expected(name, dtype), what)


@pytest.mark.parametrize(("dialect", "name"), OWN_CASES)
def test_a_rule_runs_as_it_is_where_it_comes_from(dialect: str, name: str) -> None:
    function = written_in(dialect)[name]
    framework = BACKENDS[own_backend(dialect)]
    # NumPy makes float64 of some of these.
    dtype = FLOAT64 if framework.name == "numpy" else FLOAT32
    grad_out, tin = inputs(name, dtype)
    with np.errstate(all="ignore"):
        given = function(None, framework.array(grad_out), framework.array(tin))
    assert_same_numbers(framework.numpy(given), expected(name, dtype), f"{name} in {dialect}")
