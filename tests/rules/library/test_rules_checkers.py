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
each_true_pair = pytest.mark.parametrize(("rule", "forward"), TRUE)
each_rule = pytest.mark.parametrize("rule", LIBRARY)


def lower(rule: str, backend: str) -> Callable[[Any], Any]:
    """Return a rule under Tanh, a random one with its numbers and a key."""
    f = xg.lower(rule, backend, forward="Tanh")
    call = f.apply if backend == "torch" else f
    if rule not in RANDOM:
        return call
    params = xg.get(rule).params
    values = [float(params[name]) for name in sorted(params)]
    key = np.array(KEY, np.uint32) if backend == "jax" else KEY
    return lambda x: call(x, *values, key)


@each_true_pair
@pytest.mark.needs("torch")
def test_torch_gradcheck_accepts_a_true_derivative(rule: str | None, forward: str) -> None:
    import torch

    f = xg.lower(rule, "torch", forward=forward).apply
    x = torch.tensor(X, requires_grad=True)
    assert torch.autograd.gradcheck(f, (x,), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(f, (x,))


@pytest.mark.needs("torch")
def test_torch_gradcheck_refuses_a_surrogate() -> None:
    import torch

    f = xg.lower("triangular", "torch", forward="Heaviside").apply
    x = torch.tensor(X, requires_grad=True)
    assert not torch.autograd.gradcheck(f, (x,), raise_exception=False)


@each_rule
@pytest.mark.needs("torch")
def test_torch_differentiates_the_backward_of_every_rule(rule: str) -> None:
    import torch

    f = lower(rule, "torch")

    def backward(x: Any, g: Any) -> Any:
        (grad_in,) = torch.autograd.grad(f(x), x, g, create_graph=True)
        return grad_in

    x = torch.tensor(X, requires_grad=True)
    g = torch.tensor(np.cos(7 * X), requires_grad=True)
    assert torch.autograd.gradcheck(backward, (x, g))


@each_true_pair
@pytest.mark.needs("jax")
def test_jax_check_grads_accepts_a_true_derivative(rule: str | None, forward: str) -> None:
    import jax
    from jax.test_util import check_grads

    with jax.enable_x64(True):
        check_grads(xg.lower(rule, "jax", forward=forward), (X,), order=2, modes=["rev"], eps=1e-4)


@pytest.mark.needs("jax")
def test_jax_check_grads_refuses_a_surrogate() -> None:
    import jax
    from jax.test_util import check_grads

    f = xg.lower("triangular", "jax", forward="Heaviside")
    with jax.enable_x64(True), pytest.raises(AssertionError):
        check_grads(f, (X,), order=1, modes=["rev"])


@each_rule
@pytest.mark.needs("jax")
def test_jax_differentiates_the_backward_of_every_rule(rule: str) -> None:
    import jax
    from jax.test_util import check_grads

    f = lower(rule, "jax")

    def backward(x: Any, g: Any) -> Any:
        return jax.vjp(f, x)[1](g)[0]

    with jax.enable_x64(True):
        check_grads(backward, (X, np.cos(7 * X)), order=1, modes=["rev"], eps=1e-5)


def tensorflow_error(f: Callable[..., Any], *arguments: Any) -> float:
    import tensorflow as tf

    theoretical, numerical = tf.test.compute_gradient(f, [tf.constant(a) for a in arguments], 1e-5)
    return max(np.abs(t - n).max() for t, n in zip(theoretical, numerical, strict=True))


@each_true_pair
@pytest.mark.needs("tensorflow")
def test_tensorflow_compute_gradient_agrees_with_a_true_derivative(
    rule: str | None, forward: str
) -> None:
    assert tensorflow_error(xg.lower(rule, "tensorflow", forward=forward), X) < 1e-8


@pytest.mark.needs("tensorflow")
def test_tensorflow_compute_gradient_disagrees_with_a_surrogate() -> None:
    assert tensorflow_error(xg.lower("triangular", "tensorflow", forward="Heaviside"), X) > 0.1


@each_rule
@pytest.mark.needs("tensorflow")
def test_tensorflow_differentiates_the_backward_of_every_rule(rule: str) -> None:
    import tensorflow as tf

    f = lower(rule, "tensorflow")

    def backward(x: Any, g: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x, output_gradients=g)

    assert tensorflow_error(backward, X, np.cos(7 * X)) < 1e-8


# --- what is kept between forward and backward ----------------------------------------------------

INPUT_KEPT = ("arctan", "fast_sigmoid", "triangular")
MASK_KEPT = ("d(ReLU)", "positive_jam", "rectangular", "rectangular_jam")
NOTHING_KEPT = (
    "clip_norm",
    "centralize",
    "d(Linear)",
    "full_jam",
    "gradient_reversal",
    "noise",
    "scale",
    "straight_through",
    "pass",
    "deconvnet",
)


def jax_residual_shapes(
    rule: str | None, forward: str, shape: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """The shapes of the arrays that jax keeps for the backward pass, numbers aside."""
    import jax

    act = xg.activation(forward, rule)
    with xg.use("d(Linear)", key=0):  # the key of random rules; a layer's own rule wins
        _, pullback = jax.vjp(act, np.ones(shape, np.float32))
    return [leaf.shape for leaf in jax.tree_util.tree_leaves(pullback) if np.shape(leaf) == shape]


@pytest.mark.parametrize("rule", INPUT_KEPT + MASK_KEPT)
@pytest.mark.needs("jax")
def test_jax_keeps_one_array_where_backward_reads_the_input(rule: str) -> None:
    assert jax_residual_shapes(rule, "Heaviside", (50, 7)) == [(50, 7)]


@pytest.mark.parametrize("rule", NOTHING_KEPT)
@pytest.mark.needs("jax")
def test_jax_keeps_nothing_where_backward_does_not_read_the_input(rule: str) -> None:
    assert jax_residual_shapes(rule, "Tanh", (50, 7)) == []


def torch_saved(rule: str, forward: str) -> list[Any]:
    """The tensors that torch saves between forward and backward."""
    import torch

    saved: list[Any] = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor

    x = torch.ones(50, 7, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        xg.activation(forward, rule)(x)
    floats = [tensor for tensor in saved if tensor.is_floating_point()]
    assert all(tensor.data_ptr() == x.data_ptr() for tensor in floats)  # x itself, no copy
    return saved


@pytest.mark.parametrize("rule", INPUT_KEPT)
@pytest.mark.needs("torch")
def test_torch_saves_the_input_itself_and_once_where_backward_reads_its_values(rule: str) -> None:
    (saved,) = torch_saved(rule, "Heaviside")
    assert saved.is_floating_point()


@pytest.mark.parametrize("rule", MASK_KEPT)
@pytest.mark.needs("torch")
def test_torch_saves_one_mask_where_backward_reads_no_more_of_the_input(rule: str) -> None:
    import torch

    (saved,) = torch_saved(rule, "Heaviside")
    assert saved.dtype == torch.bool


@pytest.mark.parametrize("rule", NOTHING_KEPT)
@pytest.mark.needs("torch")
def test_torch_saves_nothing_where_backward_does_not_read_the_input(rule: str) -> None:
    assert torch_saved(rule, "Tanh") == []


@pytest.mark.parametrize("rule", LIBRARY)
@pytest.mark.needs("torch")
def test_the_emitted_source_saves_the_input_only_where_backward_reads_it(rule: str) -> None:
    source = xg.source(rule, "torch", forward="Tanh")
    assert ("save_for_backward" in source) == (rule not in NOTHING_KEPT)
