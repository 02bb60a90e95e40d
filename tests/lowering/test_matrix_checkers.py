"""The frameworks' own gradient checkers on a sample of the ops, first and second order, in
float64.

An op's meaning and its VJP make a Function, which is lowered as a rule is: with residuals, attached
to autodiff.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.graph import Graph
from multigrad.core.lowering.derivatives import pullback
from multigrad.core.lowering.function_graph import FunctionGraph
from multigrad.core.lowering.lower import lower_graphs
from multigrad.core.passes.simplify import simplify
from multigrad_conformance.vjps.test_vjps import FUNCTIONS, X, record

from ..harness.traced import taped

each_function = pytest.mark.parametrize("name", list(FUNCTIONS))


@cache
def graphs(name: str) -> tuple[Graph, Graph]:
    """A function made of the op, and its pullback."""
    forward = record(name)
    return forward, simplify(pullback(forward))


def lower(name: str, backend: str) -> Callable[[Any], Any]:
    """The function with its own derivative, as the backend calls it."""
    return lower_graphs(
        FunctionGraph(f"{name} with its VJP", *graphs(name)), load_backend(backend)
    ).call


@each_function
@pytest.mark.needs("torch")
def test_torch_gradcheck_accepts_every_vjp_twice(name: str) -> None:
    import torch

    f, x = lower(name, "torch"), torch.tensor(X, requires_grad=True)
    assert torch.autograd.gradcheck(f, (x,))
    assert torch.autograd.gradgradcheck(f, (x,))


# Not with every attribute: each takes ten programs.
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "=" not in name])
@pytest.mark.needs("jax")
def test_jax_check_grads_accepts_every_vjp_twice(name: str) -> None:
    import jax
    from jax.test_util import check_grads

    f = lower(name, "jax")
    with jax.enable_x64(True):  # op by op: what XLA compiles for one function serves the others
        check_grads(lambda x: f(jax.numpy.asarray(x)), (X,), order=2, modes=["rev"], eps=1e-5)


def relative_error(f: Callable[[Any], Any]) -> float:
    """How far the gradient is from central differences, of the largest of them."""
    import tensorflow as tf

    (theoretical,), (numerical,) = tf.test.compute_gradient(f, [tf.constant(X)], 1e-5)
    return np.abs(theoretical - numerical).max() / max(1.0, np.abs(numerical).max())


@each_function
@pytest.mark.needs("tensorflow")
def test_tensorflow_compute_gradient_agrees_with_every_vjp_twice(name: str) -> None:
    f = lower(name, "tensorflow")
    assert relative_error(f) < 1e-6
    assert relative_error(taped(f)) < 1e-6
