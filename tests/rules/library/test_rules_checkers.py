"""The frameworks' own gradient checkers on lowered rules: first and second order, in float64.

A rule that is the true derivative of its forward must pass; a surrogate must not. A surrogate's
backward is a function of (grad_out, tin) like any other, with a key where it draws, and its own
derivative must be right: that is the second order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.oracles import FORWARDS, LIBRARY

# Of both signs, and away from the kinks and edges of every rule and activation.
X = np.array([[-1.7, -0.3, 0.2], [0.8, 2.3, -0.9]])
TRUE = [*((None, forward) for forward in FORWARDS), ("d(Linear)", "Linear"), ("d(ReLU)", "ReLU")]
RANDOM = ("full_jam", "noise", "positive_jam", "rectangular_jam")
KEY = (3, 4)
differentiating = pytest.mark.backends("torch", "jax", "tensorflow")


def lower(rule: str | None, backend: str, forward: str = "Tanh") -> Callable[[Any], Any]:
    """Return a rule under a forward, a random one with its numbers and a key."""
    f = xg.lower(rule, backend, forward=forward)
    call = f.apply if backend == "torch" else f
    if rule not in RANDOM:
        return call
    params = xg.get(rule).params
    values = [float(params[name]) for name in sorted(params)]
    key = np.array(KEY, np.uint32) if backend == "jax" else KEY
    return lambda x: call(x, *values, key)


def agrees(backend: Any, f: Callable[..., Any], *arguments: Any, order: int = 1) -> bool:
    """Return whether the framework's checker finds the derivatives of a function right."""
    if backend.name == "torch":
        import torch

        leaves = [torch.tensor(each, requires_grad=True) for each in arguments]
        options = {"check_batched_grad": order == 2, "raise_exception": False}
        first = torch.autograd.gradcheck(f, leaves, **options)
        return first and (order == 1 or torch.autograd.gradgradcheck(f, leaves))
    if backend.name == "jax":
        import jax
        from jax.test_util import check_grads

        with jax.enable_x64(True):
            try:
                check_grads(f, arguments, order=order, modes=["rev"], eps=10.0 ** (order - 6))
            except AssertionError:
                return False
        return True
    import tensorflow as tf

    given = [tf.constant(each) for each in arguments]
    pairs = zip(*tf.test.compute_gradient(f, given, 1e-5), strict=True)
    return max(np.abs(theirs - ours).max() for theirs, ours in pairs) < 1e-8


def backward_of(backend: Any, f: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the gradient of f as a function that can be differentiated."""
    if backend.name == "torch":
        import torch

        return lambda x, g: torch.autograd.grad(f(x), x, g, create_graph=True)[0]
    if backend.name == "jax":
        import jax

        return lambda x, g: jax.vjp(f, x)[1](g)[0]
    return lambda x, g: xg.vjp(f, x)[1](g)[0]


@differentiating
@pytest.mark.parametrize(("rule", "forward"), TRUE)
def test_the_checker_accepts_a_true_derivative(
    backend: Any, rule: str | None, forward: str
) -> None:
    assert agrees(backend, lower(rule, backend.name, forward), X, order=2)


@differentiating
def test_the_checker_refuses_a_surrogate(backend: Any) -> None:
    assert not agrees(backend, lower("triangular", backend.name, "Heaviside"), X)


@differentiating
@pytest.mark.parametrize("rule", LIBRARY)
def test_the_backward_of_every_rule_is_differentiated(backend: Any, rule: str) -> None:
    assert agrees(backend, backward_of(backend, lower(rule, backend.name)), X, np.cos(7 * X))


# --- what is kept between forward and backward ----------------------------------------------------

KEPT = {
    "input": "arctan fast_sigmoid triangular",
    "mask": "d(ReLU) positive_jam rectangular rectangular_jam",
    "nothing": "clip_norm centralize d(Linear) full_jam gradient_reversal noise scale "
    "straight_through pass deconvnet",
}
WHAT = {rule: what for what, rules in KEPT.items() for rule in rules.split()}


@pytest.mark.parametrize("rule", WHAT)
@pytest.mark.needs("jax")
def test_jax_keeps_one_array_where_backward_reads_the_input_else_nothing(rule: str) -> None:
    import jax

    with xg.use("d(Linear)", key=0):  # the key of random rules; a layer's own rule wins
        _, pullback = jax.vjp(xg.activation("Tanh", rule), np.ones((50, 7), np.float32))
    shapes = [np.shape(leaf) for leaf in jax.tree_util.tree_leaves(pullback)]
    assert shapes.count((50, 7)) == (WHAT[rule] != "nothing")


@pytest.mark.parametrize("rule", WHAT)
@pytest.mark.needs("torch")
def test_torch_saves_the_input_itself_and_once_or_one_mask_or_nothing(rule: str) -> None:
    import torch

    saved: list[Any] = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor

    x = torch.ones(50, 7, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        xg.activation("Tanh", rule)(x)
    expected = {"input": [torch.float32], "mask": [torch.bool], "nothing": []}[WHAT[rule]]
    assert [tensor.dtype for tensor in saved] == expected
    if WHAT[rule] == "input":
        assert saved[0].data_ptr() == x.data_ptr()  # x itself, no copy


@pytest.mark.parametrize("rule", LIBRARY)
@pytest.mark.needs("torch")
def test_the_emitted_source_saves_the_input_only_where_backward_reads_it(rule: str) -> None:
    source = xg.source(rule, "torch", forward="Tanh")
    assert ("save_for_backward" in source) == (WHAT.get(rule) != "nothing")
