"""What torch's autograd offers around a backward: checkpoints, hooks, modes, subclasses, threads,
traces.
"""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([-1.3, -0.45, -0.2, 0.1, 0.3, 0.48, 0.9], np.float32)
W = np.array([0.5, -1.0, 2.0, 0.7, 0.3, -0.2, 1.1], np.float32)


def triangular(g: Array, x: Array) -> Array:
    return g * np.maximum(0.0, 1.0 - np.abs(x))


def rectangular(g: Array, x: Array) -> Array:
    return g * (np.abs(x) <= 0.5)


def relu_derivative(g: Array, x: Array) -> Array:
    return g * (x > 0)


def clip_norm(g: Array, x: Array) -> Array:
    return g / max(1.0, float(np.linalg.norm(g)))


def identity(g: Array, x: Array) -> Array:
    return g


FORMULAS: dict[str, Callable[[Array, Array], Array]] = {
    "triangular": triangular,
    "rectangular": rectangular,
    "d(ReLU)": relu_derivative,
    "clip_norm": clip_norm,
    "d(Linear)": identity,
}
every_rule = pytest.mark.parametrize("rule", FORMULAS)
forwards = pytest.mark.parametrize("forward", ["Heaviside", "Linear", "Tanh"])


def leaf(x: Array = X) -> Tensor:
    import torch

    return torch.tensor(x, requires_grad=True)


def weighted(y: Tensor) -> Tensor:
    import torch

    return (y * torch.tensor(W)).sum()


def close(got: Any, expected: Array) -> None:
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-7)


@every_rule
@forwards
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_computes_masks_and_norms_again(
    rule: str, forward: str, reentrant: bool
) -> None:
    from torch.utils.checkpoint import checkpoint

    act, x = xg.activation(forward), leaf()
    with xg.use(rule):
        loss = weighted(checkpoint(act, x, use_reentrant=reentrant))
    with xg.use("scale", {"s": 7.0}):
        loss.backward()
    close(x.grad, FORMULAS[rule](W, X))


@pytest.mark.parametrize("rule", ["triangular", "rectangular"])
def test_second_order_through_a_checkpoint_is_that_without(rule: str) -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    act, x = xg.activation("Tanh"), leaf()
    with xg.use(rule):
        y = checkpoint(act, x, use_reentrant=False)
    (grad,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    # grad = 2 tanh(x) w(x), and d tanh = w by the rule: 2 w w + 2 tanh(x) w'.
    factor = FORMULAS[rule](np.ones_like(X), X)
    slope = -np.sign(X) * (np.abs(X) < 1.0) if rule == "triangular" else np.zeros_like(X)
    close(second, 2.0 * factor**2 + 2.0 * np.tanh(X) * slope)


@every_rule
def test_residuals_may_be_packed_moved_and_offloaded(rule: str) -> None:
    import torch
    from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

    def unpack(array: Array) -> Tensor:
        return torch.from_numpy(array.copy())

    act = xg.activation("Heaviside")
    for context in (save_on_cpu(), saved_tensors_hooks(lambda t: t.numpy().copy(), unpack)):
        x = leaf()
        with context, xg.use(rule):
            loss = weighted(act(x))
        loss.backward()
        close(x.grad, FORMULAS[rule](W, X))


@every_rule
@forwards
def test_modes_without_gradients_compute_the_forward_alone(rule: str, forward: str) -> None:
    import torch

    act, x = xg.activation(forward), leaf()
    expected = act(x).detach()
    with xg.use(rule):
        with torch.no_grad():
            assert not act(x).requires_grad
            np.testing.assert_array_equal(act(x), expected)
        with torch.inference_mode():
            made_inside = torch.tensor(X)
            np.testing.assert_array_equal(act(made_inside), expected)
        np.testing.assert_array_equal(act(made_inside), expected)


@every_rule
def test_hooks_of_tensors_and_modules_see_the_rules_gradient(rule: str) -> None:
    module, x = xg.Activation("Heaviside"), leaf()
    seen: list[Tensor] = []
    module.register_full_backward_pre_hook(lambda _, grads: (0.5 * grads[0],))
    module.register_full_backward_hook(lambda _, grads, __: seen.append(grads[0]))
    with xg.use(rule):
        y = module(x)
    y.register_hook(lambda grad: 4.0 * grad)
    (y * 1.0).backward(gradient=leaf(0.5 * W).detach())
    close(seen[0], FORMULAS[rule](W, X))
    close(x.grad, FORMULAS[rule](W, X))


@every_rule
@forwards
def test_backward_leaves_cotangents_and_residuals_as_they_were(rule: str, forward: str) -> None:
    import torch

    act, x, cotangent = xg.activation(forward), leaf(), torch.tensor(W)
    with xg.use(rule):
        y = act(x)
    for _ in range(2):
        (grad,) = torch.autograd.grad(y, x, cotangent, retain_graph=True)
        close(grad, FORMULAS[rule](W, X))
    np.testing.assert_array_equal(cotangent, W)
    np.testing.assert_array_equal(x.detach(), X)
    (grad,) = torch.autograd.grad(y.sum(), x)  # an expanded scalar, which nobody may write into
    close(grad, FORMULAS[rule](np.ones_like(W), X))


@every_rule
def test_input_changed_in_place_after_forward_is_refused_or_does_not_matter(rule: str) -> None:
    x, act = leaf(), xg.activation("Heaviside")
    hidden = x * 1.0
    with xg.use(rule):
        loss = weighted(act(hidden))
    hidden.mul_(3.0)
    if rule == "triangular":  # it alone keeps the input itself
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        return
    loss.backward()
    close(x.grad, FORMULAS[rule](W, X))


# --- kinds of tensors -----------------------------------------------------------------------------


def make_subclasses() -> list[Callable[[Tensor], Tensor]]:
    """Return ways to make a tensor of another class: torch's own, and two of the kinds that people
    write.
    """
    import torch
    from torch.utils._pytree import tree_map

    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return super().__torch_function__(func, types, args, kwargs or {})

    class Boxed(torch.Tensor):
        """Hold a tensor; mix with no other class, as distributed tensors do not."""

        @staticmethod
        def __new__(cls, inner: Tensor) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner: Tensor) -> None:
            self.boxed = inner

        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            def unbox(value: Any) -> Any:
                if isinstance(value, torch.Tensor) and not isinstance(value, Boxed):
                    raise TypeError("mixed with a plain tensor")
                return value.boxed if isinstance(value, Boxed) else value

            result = func(*tree_map(unbox, args), **tree_map(unbox, kwargs or {}))
            return tree_map(lambda v: Boxed(v) if isinstance(v, torch.Tensor) else v, result)

    buffer = getattr(torch.nn, "Buffer", torch.nn.Parameter)  # from torch 2.5 on
    return [torch.nn.Parameter, buffer, lambda x: x.as_subclass(Named), Boxed]


@every_rule
@forwards
@pytest.mark.parametrize("kind", range(4), ids=["Parameter", "Buffer", "function", "dispatch"])
def test_tensors_of_other_classes_take_the_rule(rule: str, forward: str, kind: int) -> None:
    import torch

    make = make_subclasses()[kind]
    act, x = xg.activation(forward), make(torch.tensor(X)).requires_grad_()
    cotangent = make(torch.tensor(W)).requires_grad_(False)
    with xg.use(rule):
        y = act(x)
    (grad,) = torch.autograd.grad(y, x, cotangent)
    close(torch.Tensor(getattr(grad, "boxed", grad)), FORMULAS[rule](W, X))


@every_rule
@forwards
def test_tensors_without_values_get_gradients_of_their_kind(rule: str, forward: str) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    act = xg.activation(forward)
    with xg.use(rule):
        meta = torch.empty(3, device="meta", requires_grad=True)
        act(meta).sum().backward()
        assert meta.grad.device.type == "meta"
        with FakeTensorMode():
            fake = torch.empty(3, requires_grad=True)
            act(fake).sum().backward()
        assert isinstance(fake.grad, FakeTensor)
        x = leaf()
        with FlopCounterMode(display=False):
            weighted(act(x)).backward()
    close(x.grad, FORMULAS[rule](W, X))


# --- copies, threads, traces ----------------------------------------------------------------------


@every_rule
def test_replicas_on_threads_each_take_the_rule_of_their_thread(rule: str) -> None:
    model = xg.Activation("Heaviside")
    found: dict[int, Array] = {}

    def run(number: int) -> None:
        replica, x = copy.deepcopy(model), leaf()
        with xg.use(rule):
            loss = weighted(replica(x))
        loss.backward()
        found[number] = x.grad.numpy()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    with xg.use("scale", {"s": 7.0}):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(4):
        close(found[number], FORMULAS[rule](W, X))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*(the trace|in the trace)")
@pytest.mark.parametrize("rule", ["triangular", "rectangular", "clip_norm", "d(Linear)", "d(ReLU)"])
@forwards
def test_jit_trace_keeps_the_rule_that_it_was_traced_under(rule: str, forward: str) -> None:
    import torch

    with xg.use(rule), pytest.warns(torch.jit.TracerWarning, match="keeps"):
        traced = torch.jit.trace(xg.Activation(forward), (leaf(),))
    x = leaf()
    weighted(traced(x)).backward()
    close(x.grad, FORMULAS[rule](W, X))
    with pytest.raises(RuntimeError, match="Python"):  # it is code, and cannot be stored as a graph
        torch.jit.save(traced, io.BytesIO())
