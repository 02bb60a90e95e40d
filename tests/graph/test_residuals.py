"""What forward keeps for backward: the fewest bytes, and never at the price of a derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

X = np.array([-2.0, -0.5, -0.25, 0.0, 0.5, 0.75, 3.0], np.float32)
G = np.array([1.0, -2.0, 3.0, 4.0, -5.0, 6.0, 7.0], np.float32)
MASKED = {
    "rectangular": lambda x: (x >= -0.5) & (x <= 0.5),
    "d(ReLU)": lambda x: x > 0,
    "clipped_straight_through": lambda x: np.abs(x) <= 1,
}
needs_torch = pytest.mark.needs("torch")
needs_jax = pytest.mark.needs("jax")
needs_tensorflow = pytest.mark.needs("tensorflow")


@xg.register("times_norm_of_input")
def times_norm_of_input(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * xp.norm(tin)


@xg.register("times_norm_once", first_order=True)
def times_norm_once(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * xp.norm(tin)


# --- how many bytes -------------------------------------------------------------------------------


def torch_bytes(f: Callable[[Any], Any], x: Any) -> int:
    import torch

    kept: list[int] = []

    def pack(tensor: Any) -> Any:
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        f(torch.tensor(x, requires_grad=True))
    return sum(kept)


def jax_bytes(f: Callable[[Any], Any], x: Any) -> int:
    import jax

    _, pullback = jax.vjp(f, jax.numpy.asarray(x))
    leaves = [leaf for leaf in jax.tree_util.tree_leaves(pullback) if hasattr(leaf, "nbytes")]
    return sum(leaf.nbytes for leaf in leaves)


def tensorflow_bytes(f: Callable[[Any], Any], x: Any) -> int:
    """What crosses from the forward part of a graph to its backward part, the cotangent aside."""
    import tensorflow as tf

    spec = tf.TensorSpec(x.shape, x.dtype)
    forward: set[str] = set()

    @tf.function(autograph=False)
    def step(primal: Any, cotangent: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(primal)
            y = f(primal)
        graph = tf.compat.v1.get_default_graph()
        forward.update(op.name for op in graph.get_operations())
        return tape.gradient(y, primal, cotangent)

    concrete = step.get_concrete_function(spec, spec)
    crossing, waiting = {}, [concrete.outputs[0]]
    while waiting:
        tensor = waiting.pop()
        while tensor.op.type == "Identity":
            (tensor,) = tensor.op.inputs
        if tensor.op.name not in forward:
            waiting.extend(tensor.op.inputs)
        elif tensor.op.type != "Const" and tensor is not concrete.inputs[1]:
            crossing[tensor.name] = tensor
    return sum(t.dtype.size * int(np.prod(t.shape)) for t in crossing.values())


BYTES = {
    "torch": pytest.param(torch_bytes, marks=needs_torch, id="torch"),
    "jax": pytest.param(jax_bytes, marks=needs_jax, id="jax"),
    "tensorflow": pytest.param(tensorflow_bytes, marks=needs_tensorflow, id="tensorflow"),
}


@pytest.mark.parametrize("count", BYTES.values())
@pytest.mark.parametrize("forward", ["Heaviside", "ReLU"])
@pytest.mark.parametrize("rule", MASKED)
def test_a_mask_takes_a_quarter_of_a_float32_input(
    rule: str, forward: str, count: Callable[..., int]
) -> None:
    x = np.linspace(-2, 2, 1000, dtype=np.float32)
    kept_anyway = (forward, rule) == ("ReLU", "d(ReLU)")
    assert count(xg.activation(forward, rule), x) == x.nbytes // (1 if kept_anyway else 4)


@needs_torch
@pytest.mark.parametrize("rule", ["d(ReLU)", "guided"])
def test_a_rectifier_keeps_nothing_beside_its_output(rule: str) -> None:
    import torch

    kept: list[Any] = []

    def pack(tensor: Any) -> Any:
        kept.append(tensor)
        return tensor

    act, x = xg.activation("ReLU", rule), torch.tensor(X, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = act(x)
    assert [each.data_ptr() for each in kept] == [y.data_ptr()]


@needs_jax
def test_jax_keeps_a_rectifiers_output() -> None:
    import jax

    _, pull = jax.vjp(xg.activation("ReLU", "d(ReLU)"), jax.numpy.asarray(X))
    (kept,) = [leaf for leaf in jax.tree_util.tree_leaves(pull) if hasattr(leaf, "nbytes")]
    np.testing.assert_array_equal(kept, np.maximum(X, 0))


@needs_torch
def test_a_rectifier_keeps_its_input_where_backward_reads_that_too() -> None:
    @xg.register("masked_and_multiplied", override=True)
    def masked_and_multiplied(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * (tin > 0) * xp.exp(tin)

    assert torch_bytes(xg.activation("ReLU", masked_and_multiplied), X) == X.nbytes


@pytest.mark.parametrize("limit", [0.0, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_rectifiers_output_decides_what_its_input_would(
    backend: Any, dtype: str, limit: float
) -> None:
    @xg.register("by_four_masks", override=True)
    def by_four_masks(ctx: Any, grad_out: Any, tin: Any) -> Any:
        above = xp.where(tin > limit, grad_out, 0.0) + 2.0 * xp.where(tin >= limit, grad_out, 0.0)
        below = 4.0 * xp.where(tin <= limit, grad_out, 0.0) + 8.0 * xp.where(
            tin < limit, grad_out, 0.0
        )
        return above + below

    values = [np.nan, -np.inf, -1.0, -1e-7, -0.0, 0.0, 1e-7, 0.5, 0.5005, 1.0, np.inf]
    x = np.array(values, dtype)
    with np.errstate(invalid="ignore"):
        answers = [x > limit, x >= limit, x <= limit, x < limit]
    expected = sum(2.0**i * answer for i, answer in enumerate(answers))
    act = xg.lower(by_four_masks, backend.name, forward="ReLU")
    y, gradient = backend.vjp(act, x, np.ones_like(x))
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(gradient, expected)


@needs_torch
def test_a_rectifiers_output_may_not_be_written_into_before_backward_as_in_torch() -> None:
    import torch

    for act in (torch.relu, xg.activation("ReLU", "d(ReLU)")):
        y = act(torch.tensor(X, requires_grad=True))
        y.mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_numpy_whose_arrays_tell_of_no_writing_keeps_a_rectifiers_mask() -> None:
    y, pull = xg.vjp(xg.activation("ReLU", "d(ReLU)"), X)
    y *= 0.0
    np.testing.assert_array_equal(pull(G)[0], G * (X > 0))


@pytest.mark.parametrize("count", BYTES.values())
def test_two_masks_and_the_input_are_not_kept_together(count: Callable[..., int]) -> None:
    @xg.register("masked_and_scaled", override=True)
    def masked_and_scaled(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * (tin > 0) * (tin < 1) * xp.exp(tin)

    x = np.linspace(-2, 2, 1000, dtype=np.float32)
    assert count(xg.activation("Heaviside", masked_and_scaled), x) == x.nbytes


@pytest.mark.parametrize("rule", MASKED)
def test_numpy_keeps_the_mask_alone(rule: str) -> None:
    from bench.runners.on_numpy import find_arrays

    pull = xg.lower(rule, "numpy", forward="ReLU").vjp(X)[1]
    (kept,) = find_arrays(pull, set())
    np.testing.assert_array_equal(kept, MASKED[rule](X))


@needs_torch
def test_torch_computes_no_mask_where_no_gradient_is_asked_for() -> None:
    import torch

    act = xg.activation("ReLU", rule="rectangular")
    x = torch.tensor(X)
    act(x)
    with torch.profiler.profile() as profile:
        act(x)
    assert not {"aten::ge", "aten::le"} & {event.key for event in profile.key_averages()}


@needs_torch
@pytest.mark.parametrize(("pull", "kept"), [(0.0, 8 * 4), (0.5, 8 * 4 + 4 * 3 * 4)])
def test_places_that_forward_searched_are_kept_and_not_searched_again(
    pull: float, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("MULTIGRAD_PROVE", "1")  # not each call, whose ops are counted
    codes = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, -1.0]])

    class Nearest(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, z: Any) -> Any:
            places = (z[:, None] - codes).square().sum(-1).argmin(1)
            ctx.save_for_backward(z, places)
            return torch.nn.functional.embedding(places, codes)

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> Any:
            z, places = ctx.saved_tensors
            return grad_out * places[:, None] + (
                pull * (z - torch.nn.functional.embedding(places, codes)) if pull else 0
            )

    function, z = xg.convert(Nearest), np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    assert torch_bytes(function, z) == kept
    leaf = torch.tensor(z, requires_grad=True)
    with torch.profiler.profile() as profile:
        function(leaf).sum().backward()
    assert [event.count for event in profile.key_averages() if event.key == "aten::argmin"] == [1]
    wanted = torch.tensor(z, requires_grad=True)
    Nearest.apply(wanted).sum().backward()
    torch.testing.assert_close(leaf.grad, wanted.grad)


@needs_jax
def test_jax_searches_once_for_forward_and_backward() -> None:
    import jax

    def largest(x: Any) -> Any:
        return xp.take_along_axis(x, xp.argmax(x, -1, keepdims=True), -1)

    def back(grad_out: Any, x: Any) -> Any:
        return grad_out * xp.argmax(x, -1, keepdims=True) + 0.0 * x

    x, function = jax.numpy.ones((3, 4)), xg.function(largest, back)
    _, pull = jax.vjp(function, x)
    assert "argmax" not in str(jax.make_jaxpr(pull)(x[:, :1]))
    whole = jax.make_jaxpr(lambda x: jax.vjp(function, x)[1](x[:, :1]))(x)
    assert str(whole).count("argmax") == 1


# --- the gradient stays the rule's ----------------------------------------------------------------


@needs_torch
def test_a_norm_that_is_the_output_is_kept_beside_the_input_and_not_computed_again() -> None:
    import torch

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            norm = torch.norm(x, 3, -1, keepdim=True)
            ctx.save_for_backward(x, norm)
            return norm

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> Any:
            x, norm = ctx.saved_tensors
            return grad_out * x * x.abs() / norm**2

    x = np.arange(1.0, 13.0, dtype=np.float32).reshape(3, 4)
    function = xg.from_autograd_function(Norm)
    assert torch_bytes(function, x) == x.nbytes + x[:, 0].nbytes
    leaf = torch.tensor(x, requires_grad=True)
    given, wanted = (
        torch.autograd.grad(f(leaf), leaf, torch.ones(3, 1))[0] for f in (function, Norm.apply)
    )
    torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("rule", MASKED)
def test_gradient_by_a_mask_is_the_gradient_by_the_input(rule: str, backend: Any) -> None:
    y, gradient = backend.vjp(xg.lower(rule, backend.name, forward="Heaviside"), X, G)
    np.testing.assert_array_equal(y, (X > 0).astype(np.float32))
    np.testing.assert_array_equal(gradient, G * MASKED[rule](X).astype(np.float32))


@pytest.mark.parametrize(
    "name", ["kept", "kept_1", "output", "backward", "custom_gradient", "keep"]
)
def test_a_param_may_be_called_like_a_word_of_the_emitted_code(name: str, backend: Any) -> None:
    namespace: dict[str, Any] = {"__name__": __name__}
    source = (
        f"def rule(ctx, grad_out, tin, {name}=2.0):\n    return grad_out * {name} * (tin > 0)\n"
    )
    exec(compile(source, "<test>", "exec"), namespace)  # noqa: S102
    rule = xg.register("oddly_named_param", override=True)(namespace["rule"])
    f = xg.lower(rule, backend.name, forward="Heaviside")
    y, gradient = backend.vjp(f, X, G)
    np.testing.assert_array_equal(y, (X > 0).astype(np.float32))
    np.testing.assert_array_equal(gradient, 2 * G * (X > 0))


@pytest.mark.parametrize("forward", ["Tanh", "Logistic"])
def test_a_true_derivative_keeps_the_output_in_the_place_of_the_input(
    forward: str, backend: Any
) -> None:
    assert "  output: 4 bytes" in xg.show(xg.activation(forward), memory=True)
    y, gradient = backend.vjp(xg.lower(None, backend.name, forward=forward), X, G)
    y64 = y.astype(np.float64)
    slope = 1 - y64**2 if forward == "Tanh" else y64 * (1 - y64)
    np.testing.assert_allclose(gradient, G * slope, rtol=0, atol=3e-7 * np.abs(G).max())


# --- second derivatives ---------------------------------------------------------------------------


def second_derivative(f: Callable[[Any], Any], x: Any, backend: Any) -> Any:
    """The gradient of the sum of the gradient of (f(x) ** 2).sum()."""

    def first(v: Any) -> Any:
        y, pull = xg.vjp(f, v)
        return pull(2 * y)[0]

    y, pull = xg.vjp(first, backend.array(x))
    return backend.numpy(pull(xp.ones_like(y))[0])


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_a_norm_of_the_input_keeps_its_second_derivative(backend: Any) -> None:
    x = np.array([1.0, 2.0, 3.0], np.float32)
    norm = float(np.sqrt((x.astype(np.float64) ** 2).sum()))
    # The gradient is 2 x |x|; its sum S = 2 |x| sum(x) has the gradient 2 |x| + 2 sum(x) x / |x|,
    # but the y = x inside is differentiated by the rule again: 2 |x| |x| + 2 sum(x) x / |x|.
    expected = 2 * norm * norm + 2 * x.sum() * x / norm
    f = xg.activation("Linear", times_norm_of_input)
    np.testing.assert_allclose(second_derivative(f, x, backend), expected, rtol=2e-6)


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_a_surrogate_of_the_output_does_not_become_its_own_second_derivative(backend: Any) -> None:
    @xg.register("by_the_output", override=True)
    def by_the_output(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xp.sigmoid(tin)

    x = np.array([-1.0, 0.0, 2.0], np.float32)
    s = 1 / (1 + np.exp(-x.astype(np.float64)))
    # d/dx of 2 y(x) s(x), with y' = s by the rule and the s of the rule differentiated truly
    expected = 2 * s * s + 2 * s * s * (1 - s)
    f = xg.activation("Logistic", by_the_output)
    np.testing.assert_allclose(second_derivative(f, x, backend), expected, rtol=2e-6)


# --- a promise of first order ---------------------------------------------------------------------


@needs_torch
def test_torch_keeps_a_norm_as_one_number_where_first_order_is_promised() -> None:
    act = xg.activation("Linear", times_norm_once)
    assert torch_bytes(act, X) == 4
    assert torch_bytes(xg.activation("Linear", times_norm_of_input), X) == X.nbytes


@needs_jax
def test_jax_keeps_a_norm_as_one_number_without_a_promise() -> None:
    assert jax_bytes(xg.activation("Linear", times_norm_of_input), X) == 4


def test_promised_first_order_gives_the_same_gradient(backend: Any) -> None:
    gradients = [
        backend.vjp(xg.lower(rule, backend.name), X, G)[1]
        for rule in (times_norm_once, times_norm_of_input)
    ]
    np.testing.assert_array_equal(*gradients)


@needs_torch
def test_a_broken_promise_of_first_order_is_an_error_that_names_the_rule() -> None:
    import torch

    x = torch.tensor(X, requires_grad=True)
    y = xg.activation("Linear", times_norm_once)(x)
    with pytest.raises(xg.errors.GradientError, match=r"'times_norm_once'.*first_order=True"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_a_composition_promises_first_order_where_all_its_parts_do() -> None:
    mixed = xg.compose(times_norm_once, "scale")
    assert "  kept = norm" in xg.show(xg.compose(times_norm_once, times_norm_once), memory=True)
    assert not mixed._frozen().first_order


# --- saying so ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("rectangular", "kept = and(ge(tin, a), le(tin, b)): 1 byte per element"),
        ("triangular", "tin: 4 bytes per element in float32"),
        ("clip_norm", "nothing, 0 bytes per element"),
        (times_norm_once, "kept = norm(tin, axis=None, keepdims=False, ord=2): one number"),
    ],
)
def test_show_says_what_is_kept_and_how_many_bytes(rule: Any, said: str) -> None:
    for shown in (rule, xg.activation("ReLU", rule=rule)):
        assert said in xg.show(shown, memory=True)
        assert "kept for backward" not in xg.show(shown)
