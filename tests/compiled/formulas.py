"""Rules of every kind, each with its formula in the words of a framework, and in NumPy's.

`F(x)` has the rule's gradient `r(w, x)` for the loss `sum(w F(x))`. So its derivatives are those
that the framework itself finds for the plain expression `r(w, x)`. The last axis is one example.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

import multigrad as xg

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]
Formula: TypeAlias = Callable[[Tensor, Tensor], Tensor]

X = np.array([-1.3, -0.45, -0.2, 0.1, 0.3, 0.48, 0.9])
W = np.array([0.5, -1.0, 2.0, 0.7, 0.3, -0.2, 1.1])
V = np.array([1.5, -0.3, 0.2, 0.9, -0.3, 1.2, 0.1])
COMPOSED = "triangular then clip_norm"


def library_of(framework: str) -> Any:
    """Return the few functions that the formulas are made of; `array` keeps 64 bits."""
    if framework == "jax":
        jnp = importlib.import_module("jax.numpy")
        relu, names, lib = importlib.import_module("jax").nn.relu, "sum mean", jnp
        array, stack = partial(jnp.asarray, dtype=jnp.float64), np.stack
    elif framework == "torch":
        lib = importlib.import_module("torch")
        relu, names, array, stack = lib.relu, "sum mean", lib.tensor, lib.stack
    elif framework == "tensorflow":
        lib = importlib.import_module("tensorflow")
        relu, names, array, stack = lib.nn.relu, "reduce_sum reduce_mean", lib.constant, np.stack
    else:
        lib, names, array, stack = np, "sum mean", np.asarray, np.stack
        relu = partial(np.maximum, np.float32(0))
    add, mean = (getattr(lib, name) for name in names.split())
    return SimpleNamespace(
        relu=relu, sum=add, mean=mean, sqrt=lib.sqrt, where=lib.where, array=array, stack=stack
    )


def formulas(framework: str) -> dict[str, Formula]:
    """Return what each rule makes of the cotangent g at x."""
    lib = library_of(framework)

    def triangular(g: Tensor, x: Tensor) -> Tensor:
        return g * lib.relu(1.0 - abs(x))

    def rectangular(g: Tensor, x: Tensor) -> Tensor:
        return lib.where((x >= -0.5) & (x <= 0.5), g, 0.0 * g)

    def relu_derivative(g: Tensor, x: Tensor) -> Tensor:
        return lib.where(x > 0, g, 0.0 * g)

    def norm(x: Tensor) -> Tensor:
        return lib.sqrt(lib.sum(x * x, -1, keepdims=True))

    def clip_norm(g: Tensor, x: Tensor) -> Tensor:
        return g / (1.0 + lib.relu(norm(g) - 1.0))

    return {
        "triangular": triangular,
        "rectangular": rectangular,
        "d(ReLU)": relu_derivative,
        "clip_norm": clip_norm,
        "d(Linear)": lambda g, x: g,
        "test norm": lambda g, x: g * norm(x),
        "test mean": lambda g, x: x * lib.mean(g, -1, keepdims=True),
        "rectangular then scale then triangular": lambda g, x: (
            3.0 * triangular(rectangular(g, x), x)
        ),
        COMPOSED: lambda g, x: clip_norm(triangular(g, x), x),
    }


NUMPYS = formulas("numpy")
# Those of the orders: each rule of another kind, with a forward.
RULES = [name for name in NUMPYS if name != "d(ReLU)"]
FORWARDS = ("Heaviside", "Tanh", "Linear", "ReLU")
PAIRS = [(rule, FORWARDS[i % 4]) for i, rule in enumerate(RULES)]


def find(name: str) -> Any:
    """Return the rule of a name above."""
    if " then " not in name:
        return name
    scale = xg.get("scale").with_params(s=3.0)
    return xg.compose(*(scale if part == "scale" else part for part in name.split(" then ")))


class Case:
    """A rule under a forward, its formula, and the loss `sum(w F(x))`."""

    def __init__(self, framework: str, rule: str, forward: str) -> None:
        self.lib = library_of(framework)
        self.rule = find(rule)
        self.act: Any = xg.activation(forward)
        self.x, self.w, self.v = (self.lib.array(values) for values in (X, W, V))
        self.formula = formulas(framework)[rule]

    def loss(self, x: Tensor) -> Tensor:
        return self.lib.sum(self.act(x) * self.w)

    def expected(self, x: Tensor) -> Tensor:
        """Return the gradient that the rule gives; zero times x ties it to x where it does not
        depend.
        """
        return self.formula(self.w, x) + 0.0 * x

    def jacobian(self) -> Tensor:
        """Return the matrix of the rule: row i is what output i sends back."""
        return self.lib.stack([self.formula(row, self.x) for row in self.lib.array(np.eye(len(X)))])


def close(got: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)
