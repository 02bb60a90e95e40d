"""torch's transforms see the rule: second order, torch.func, autocast, saved tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..harness.models.surrogates import triangle
from ..support.threads import on_threads
from . import formulas

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)


def leaf(x: Array = X) -> Tensor:
    return torch.tensor(x, requires_grad=True)


def test_key_under_vmap_draws_and_without_one_randomness_decides() -> None:
    from torch.func import grad, vmap

    torch._dynamo.reset()
    act = xg.activation("Linear")
    x = torch.tensor(X)
    compiled = torch.compile(vmap(grad(act)), backend="aot_eager", fullgraph=True)
    with xg.use("full_jam", key=3):
        first = vmap(grad(act))(x)
    for run in (vmap(grad(act)), compiled):
        np.testing.assert_array_equal(run(x), np.ones_like(X))
        with xg.use("full_jam", key=3):
            np.testing.assert_array_equal(run(x), first)
    with xg.use("full_jam"):
        with pytest.raises(xg.RuleError, match="randomness='different'"):
            vmap(grad(act))(x)
        drawn = vmap(grad(act), randomness="different")(x)
    assert len(set(drawn.tolist())) == len(X)


@pytest.mark.parametrize("rule", ["triangular", "full_jam"])
def test_xg_jit_around_vmap_keeps_numbers_and_dtype(rule: str) -> None:
    from torch.func import grad, vmap

    torch._dynamo.reset()
    act = xg.activation("Heaviside")
    f = vmap(grad(act))
    compiled = xg.jit(f, backend="aot_eager", fullgraph=True)
    for width in (0.5, 1.5):
        options = {"params": {"width": width}} if rule == "triangular" else {"key": int(2 * width)}
        with xg.use(rule, **options):
            got = compiled(torch.tensor(X))
        with xg.use(rule, **options):
            expected = f(torch.tensor(X))
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_functional_vjp_and_jvp_are_under_the_rule_given() -> None:
    from multigrad.compat.functional import jvp, vjp

    act = xg.activation("Tanh")
    x, v = torch.tensor(X), torch.tensor(X[::-1].copy())
    y, pullback = vjp(act, x, rule="triangular", params={"width": 1.5})
    np.testing.assert_allclose(y.detach(), np.tanh(X), rtol=1e-6)
    for _ in range(2):
        np.testing.assert_allclose(pullback(v), triangle(X, 1.5) * v.numpy(), rtol=1e-6)
    tangent = jvp(act, x, v, rule="triangular", params={"width": 1.5})
    np.testing.assert_allclose(tangent, triangle(X, 1.5) * v.numpy(), rtol=1e-6)
    assert not x.requires_grad
    with torch.no_grad():
        np.testing.assert_allclose(vjp(act, x)[1](v), jvp(act, x, v), rtol=1e-6)
    with xg.use("scale", {"s": 3.0}):
        np.testing.assert_allclose(jvp(act, x, v), 3.0 * v, rtol=1e-6)
    np.testing.assert_allclose(jvp(act, x, v), (1 - torch.tanh(x) ** 2) * v, rtol=1e-5)
    np.testing.assert_array_equal(jvp(xg.activation("Heaviside"), x, v), 0 * X)
    with pytest.raises(xg.errors.UnsupportedOp, match="'clip_norm' is not linear in grad_out"):
        jvp(act, x, v, rule="clip_norm")


# What torch's autograd offers around a backward: checkpoints, hooks, modes, subclasses, threads,
# traces.


POINTS, W = formulas.X.astype(np.float32), formulas.W.astype(np.float32)
FORMULAS = {
    name: formulas.NUMPYS[name]
    for name in ("triangular", "rectangular", "d(ReLU)", "clip_norm", "d(Linear)")
}
close = partial(formulas.close, rtol=2e-6, atol=1e-7)
every_rule = pytest.mark.parametrize("rule", FORMULAS)
forwards = pytest.mark.parametrize("forward", ["Heaviside", "Linear", "Tanh"])


def weighted(y: Tensor) -> Tensor:
    return (y * torch.tensor(W)).sum()


@pytest.mark.parametrize("rule", ["triangular", "rectangular"])
def test_second_order_through_a_checkpoint_is_that_without(rule: str) -> None:
    from torch.utils.checkpoint import checkpoint

    act, x = xg.activation("Tanh"), leaf(POINTS)
    with xg.use(rule):
        y = checkpoint(act, x, use_reentrant=False)
    (grad,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    # grad = 2 tanh(x) w(x), and d tanh = w by the rule: 2 w w + 2 tanh(x) w'.
    factor = FORMULAS[rule](np.ones_like(POINTS), POINTS)
    slope = (
        -np.sign(POINTS) * (np.abs(POINTS) < 1.0) if rule == "triangular" else np.zeros_like(POINTS)
    )
    close(second, 2.0 * factor**2 + 2.0 * np.tanh(POINTS) * slope)


@every_rule
def test_residuals_may_be_packed_moved_and_offloaded(rule: str) -> None:
    from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

    def unpack(array: Array) -> Tensor:
        return torch.from_numpy(array.copy())

    packed: list[Array] = []

    def pack(tensor: Tensor) -> Array:
        packed.append(tensor.numpy().copy())
        return packed[-1]

    act = xg.activation("Heaviside")
    for context in (save_on_cpu(), saved_tensors_hooks(pack, unpack)):
        x = leaf(POINTS)
        with context, xg.use(rule):
            y = act(x)
        weighted(y).backward()
        close(x.grad, FORMULAS[rule](W, POINTS))
    reads_x = rule in ("triangular", "rectangular", "d(ReLU)")
    assert [each.shape for each in packed] == [POINTS.shape] * reads_x


@every_rule
@forwards
def test_modes_without_gradients_compute_the_forward_alone(rule: str, forward: str) -> None:
    act, x = xg.activation(forward), leaf(POINTS)
    expected = act(x).detach()
    with xg.use(rule):
        with torch.no_grad():
            assert not act(x).requires_grad
            np.testing.assert_array_equal(act(x), expected)
        with torch.inference_mode():
            made_inside = torch.tensor(POINTS)
            np.testing.assert_array_equal(act(made_inside), expected)
        np.testing.assert_array_equal(act(made_inside), expected)


@every_rule
def test_hooks_of_tensors_and_modules_see_the_rules_gradient(rule: str) -> None:
    module, x = xg.Activation("Heaviside"), leaf(POINTS)
    seen: list[Tensor] = []
    module.register_full_backward_pre_hook(lambda _, grads: (0.5 * grads[0],))
    module.register_full_backward_hook(lambda _, grads, __: seen.append(grads[0]))
    with xg.use(rule):
        y = module(x)
    y.register_hook(lambda grad: 4.0 * grad)
    (y * 1.0).backward(gradient=leaf(0.5 * W).detach())
    close(seen[0], FORMULAS[rule](W, POINTS))
    close(x.grad, FORMULAS[rule](W, POINTS))


@every_rule
@forwards
def test_backward_leaves_cotangents_and_residuals_as_they_were(rule: str, forward: str) -> None:
    act, x, cotangent = xg.activation(forward), leaf(POINTS), torch.tensor(W)
    with xg.use(rule):
        y = act(x)
    for _ in range(2):
        (grad,) = torch.autograd.grad(y, x, cotangent, retain_graph=True)
        close(grad, FORMULAS[rule](W, POINTS))
    np.testing.assert_array_equal(cotangent, W)
    np.testing.assert_array_equal(x.detach(), POINTS)
    (grad,) = torch.autograd.grad(y.sum(), x)  # an expanded scalar, which nobody may write into
    close(grad, FORMULAS[rule](np.ones_like(W), POINTS))


@every_rule
def test_input_changed_in_place_after_forward_is_refused_or_does_not_matter(rule: str) -> None:
    x, act = leaf(POINTS), xg.activation("Heaviside")
    hidden = x * 1.0
    with xg.use(rule):
        loss = weighted(act(hidden))
    hidden.mul_(3.0)
    if rule == "triangular":  # it alone keeps the input itself
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        return
    loss.backward()
    close(x.grad, FORMULAS[rule](W, POINTS))


# --- kinds of tensors -----------------------------------------------------------------------------


def make_subclasses() -> list[Callable[[Tensor], Tensor]]:
    """Return ways to make a tensor of another class: torch's own, and two of the kinds that people
    write.
    """
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
    make = make_subclasses()[kind]
    act, x = xg.activation(forward), make(torch.tensor(POINTS)).requires_grad_()
    cotangent = make(torch.tensor(W)).requires_grad_(False)
    with xg.use(rule):
        y = act(x)
    (grad,) = torch.autograd.grad(y, x, cotangent)
    close(torch.Tensor(getattr(grad, "boxed", grad)), FORMULAS[rule](W, POINTS))


@every_rule
@forwards
def test_tensors_without_values_get_gradients_of_their_kind(rule: str, forward: str) -> None:
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
        x = leaf(POINTS)
        with FlopCounterMode(display=False):
            weighted(act(x)).backward()
    close(x.grad, FORMULAS[rule](W, POINTS))


# --- copies, threads, traces ----------------------------------------------------------------------


@every_rule
def test_replicas_on_threads_each_take_the_rule_of_their_thread(rule: str) -> None:
    model = xg.Activation("Heaviside")
    found: dict[int, Array] = {}

    def run(number: int) -> None:
        replica, x = copy.deepcopy(model), leaf(POINTS)
        with xg.use(rule):
            loss = weighted(replica(x))
        loss.backward()
        found[number] = x.grad.numpy()

    with xg.use("scale", {"s": 7.0}):
        on_threads(run, *range(4))
    for number in range(4):
        close(found[number], FORMULAS[rule](W, POINTS))
