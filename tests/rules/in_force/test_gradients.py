"""`xg.apply_to_gradients`: a rule on gradients that exist already, in a tree of any shape."""

from __future__ import annotations

import collections
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.errors import GradientError
from multigrad_conformance.under_test import pull

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

Pair = collections.namedtuple("Pair", ["w", "b"])
G = np.array([3.0, 4.0], np.float32)


def test_every_leaf_of_a_nested_tree_is_transformed_and_none_stays_none(backend: Any) -> None:
    g = backend.array(G)
    tree = {"a": [g, None, (g,)], "b": Pair(w=g, b=None), "c": {}, "d": []}
    got = xg.apply_to_gradients(tree, "scale", {"s": 2.0})
    assert isinstance(got["b"], Pair)
    assert isinstance(got["a"][2], tuple)
    assert (got["a"][1], got["b"].b, got["c"], got["d"]) == (None, None, {}, [])
    for leaf in (got["a"][0], got["a"][2][0], got["b"].w):
        assert type(leaf) is type(g)
        np.testing.assert_array_equal(backend.numpy(leaf), 2 * G)


def test_bare_tensor_and_none_are_trees_too(backend: Any) -> None:
    got = xg.apply_to_gradients(backend.array(G), "clip_norm")
    np.testing.assert_allclose(backend.numpy(got), G / 5.0, rtol=1e-6)
    assert xg.apply_to_gradients(None, "clip_norm") is None


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_leaves_keep_dtype_shape_and_order(backend: Any, dtype: str) -> None:
    with backend.precision(dtype):
        grads = [backend.array(np.full(shape, 2.0, dtype)) for shape in [(), (1,), (2, 3), (0, 4)]]
        got = [backend.numpy(leaf) for leaf in xg.apply_to_gradients(grads, "scale", {"s": 0.5})]
    assert [leaf.shape for leaf in got] == [(), (1,), (2, 3), (0, 4)]
    assert {leaf.dtype.name for leaf in got} == {dtype}
    for leaf in got:
        np.testing.assert_array_equal(leaf, np.ones(leaf.shape))


def test_given_gradients_are_not_changed(backend: Any) -> None:
    g = backend.array(G)
    grads = {"w": g}
    xg.apply_to_gradients(grads, "gradient_reversal")
    assert grads["w"] is g
    np.testing.assert_array_equal(backend.numpy(g), G)


@pytest.mark.parametrize("rule", ["rectangular", "triangular", "d(ReLU)", "straight_through"])
def test_rules_of_an_input_pass_the_gradient_on_where_there_is_none(
    backend: Any, rule: str
) -> None:
    got = xg.apply_to_gradients([backend.array(G)], rule)
    np.testing.assert_array_equal(backend.numpy(got[0]), G)


def test_norm_is_that_of_each_leaf(backend: Any) -> None:
    got = xg.apply_to_gradients([backend.array(G), backend.array(G / 10)], "clip_norm")
    np.testing.assert_allclose(backend.numpy(got[0]), G / 5, rtol=1e-6)
    np.testing.assert_allclose(backend.numpy(got[1]), G / 10, rtol=1e-6)


def test_rule_objects_functions_and_compositions_are_rules(backend: Any) -> None:
    def reverse(ctx: Any, grad_out: Tensor, tin: Tensor | None, by: float = 1.0) -> Tensor:
        assert tin is None
        return -by * grad_out

    g = backend.array(G)
    for rule, params, expected in [
        (reverse, {"by": 2.0}, -2 * G),
        (xg.get("scale").with_params(s=4.0), None, 4 * G),
        (xg.compose("scale", reverse), {"s": 3.0, "by": 2.0}, -6 * G),
    ]:
        with xg.use("scale", {"s": 7.0}, scope="params"):  # the one that is given wins
            got = xg.apply_to_gradients({"w": g}, rule, params)
        np.testing.assert_array_equal(backend.numpy(got["w"]), expected)


def test_rule_that_runs_as_it_is_gets_the_frameworks_own_tensors(backend: Any) -> None:
    seen = []

    @xg.register("test as it is", native=True)
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
        seen.append((type(grad_out), tin))
        return grad_out * 2

    g = backend.array(G)
    got = xg.apply_to_gradients([g], "test as it is")
    np.testing.assert_array_equal(backend.numpy(got[0]), 2 * G)
    assert seen == [(type(g), None)]


def test_rule_that_changes_the_shape_is_refused(backend: Any) -> None:
    def total(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
        return xg.xp.sum(grad_out)

    with pytest.raises(xg.GradientError, match=r"shape"):
        xg.apply_to_gradients([backend.array(G)], total)


@pytest.mark.needs("torch", "jax", "tensorflow")
def test_one_tree_may_hold_tensors_of_several_frameworks() -> None:
    import jax.numpy as jnp
    import tensorflow as tf
    import torch

    tree = [torch.tensor(G), jnp.asarray(G), tf.constant(G), G]
    got = xg.apply_to_gradients(tree, "clip_norm", {"max_norm": 1.0})
    for given, leaf in zip(tree, got, strict=True):
        assert type(leaf) is type(given)
        np.testing.assert_allclose(np.asarray(leaf), G / 5.0, rtol=1e-6)


@pytest.mark.needs("jax")
def test_it_works_inside_jax_transforms() -> None:
    import jax

    @jax.jit
    def step(w: Tensor) -> Tensor:
        grads = jax.grad(lambda p: (p["w"] ** 2).sum() / 2)({"w": w})
        return xg.apply_to_gradients(grads, "clip_norm")["w"]

    np.testing.assert_allclose(step(G), G / 5.0, rtol=1e-6)
    mapped = jax.vmap(lambda g: xg.apply_to_gradients(g, "clip_norm"))(np.stack([G, G / 10]))
    np.testing.assert_allclose(mapped, [G / 5, G / 10], rtol=1e-6)


SEVERAL = [(64,), (3, 3), (), (0,), (2, 3, 5), (64, 9)]
MANY_RULES = ["clip_norm", "scale", "gradient_reversal", "clip_value", "sign", "clip_rms"]


def several(dtype: str) -> list[Array]:
    rng = np.random.default_rng(7)
    found = [np.asarray(rng.standard_normal(shape) * 3, dtype) for shape in SEVERAL]
    found[0][:] = 0
    found[1][0] = np.nan, np.inf, -np.inf
    return found


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("rule", MANY_RULES)
def test_many_gradients_get_what_each_gets_alone(backend: Any, rule: str, dtype: str) -> None:
    grads = [backend.array(g) for g in several(dtype)]
    alone = [backend.numpy(xg.apply_to_gradients(g, rule)) for g in grads]
    for got, expected in zip(xg.apply_to_gradients(grads, rule), alone, strict=True):
        assert backend.numpy(got).dtype == dtype
        # Compilers that see the whole rule round elsewhere.
        eps = float(np.finfo(dtype).eps) if backend.name in ("jax", "tensorflow") else 0.0
        np.testing.assert_allclose(backend.numpy(got), expected, rtol=4 * eps)


def test_params_that_change_and_gradients_of_several_dtypes_act_on_many(backend: Any) -> None:
    grads = [backend.array(G), backend.array(G.astype("float16")), backend.array(2 * G)]
    for s in (0.5, 3.0):
        got = xg.apply_to_gradients(grads, "scale", {"s": s})
        expected = [s * G, s * G.astype("float16"), 2 * s * G]
        for each, one in zip(got, expected, strict=True):
            np.testing.assert_array_equal(backend.numpy(each), one)


def test_random_rules_draw_for_one_gradient_after_another(backend: Any) -> None:
    grads = [backend.array(G), backend.array(G), backend.array(G)]
    first = [backend.numpy(g) for g in xg.apply_to_gradients(grads, "noise", key=3)]
    again = [backend.numpy(g) for g in xg.apply_to_gradients(grads[:2], "noise", key=3)]
    np.testing.assert_array_equal(first[:2], again)
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize("rule", [*MANY_RULES, "centralize"])
def test_in_place_writes_over_the_gradients(backend: Any, rule: str) -> None:
    grads = [backend.array(g.copy()) for g in several("float32") if g.ndim]
    if backend.name not in ("torch", "numpy"):
        with pytest.raises(xg.RuleError, match="leave in_place out"):
            xg.apply_to_gradients(grads, rule, in_place=True)
        return
    expected = [backend.numpy(g).copy() for g in xg.apply_to_gradients(grads, rule)]
    got = xg.apply_to_gradients({"all": grads, "none": None}, rule, in_place=True)
    assert got["none"] is None
    for each, given, one in zip(got["all"], grads, expected, strict=True):
        assert each is given
        np.testing.assert_array_equal(backend.numpy(each), one)


def test_in_place_refuses_a_tensor_given_twice_and_tasks() -> None:
    with pytest.raises(xg.RuleError, match="got a tensor twice"):
        xg.apply_to_gradients([G, G], "scale", in_place=True)
    both: dict[str, Any] = {"tasks": True, "in_place": True}
    with pytest.raises(xg.RuleError, match="one gradient of several"):
        xg.apply_to_gradients([[G], [G]], "pcgrad", **both)


@pytest.mark.needs("torch")
def test_no_number_of_many_gradients_is_read_on_the_host() -> None:
    import torch

    grads = [torch.empty(3, device="meta"), torch.empty(2, 2, device="meta")]
    for in_place in (False, True):  # a value that is read would be an error there
        got = xg.apply_to_gradients(grads, "clip_norm", in_place=in_place)
        assert [tuple(g.shape) for g in got] == [(3,), (2, 2)]


@pytest.mark.needs("torch")
def test_autodiff_and_transforms_go_through_rules_on_many_gradients() -> None:
    import torch

    x = torch.tensor([3.0, 4.0], requires_grad=True)
    got = xg.apply_to_gradients([x, 2 * x], "scale", {"s": 3.0})
    (got[0].sum() + got[1].sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [9.0, 9.0]

    def clipped(a: Tensor, b: Tensor) -> Tensor:
        return xg.apply_to_gradients([a, b], "clip_norm")

    batch = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    each = torch.vmap(clipped)(batch, batch)[1]
    torch.testing.assert_close(each, torch.tensor([[0.6, 0.8], [0.0, 1.0]]))


# What a function's own backward gives for each argument: of which shape it may be, and a number for
# a tensor without axes.


S, X = np.array(2.0, np.float32), np.array([[1.0, -2.0, 4.0], [0.5, 3.0, -1.0]], np.float32)
G_GIVEN = np.array([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]], np.float32)


def scaled(scale: Any, x: Any) -> Any:
    def grad(g: Any) -> Any:
        return xp.sum(g * x), g * scale

    return scale * x, grad


def moved(bias: Any, x: Any) -> Any:
    def grad(g: Any) -> Any:
        return xp.sum(g, axis=0, keepdims=True), g

    return bias + x, grad


def stretched(row: Any, x: Any) -> Any:
    return row * x, lambda g: (g * x, g * row)


def constant_slopes(a: Any, b: Any) -> Any:
    return a * b, lambda g: (2.5, -1)


def test_the_gradient_of_a_first_tensor_without_axes_may_be_a_sum(backend: Any) -> None:
    _, gradients = pull(backend, xg.custom_gradient(scaled), (S, X), G_GIVEN)
    np.testing.assert_allclose(gradients[0], np.sum(G_GIVEN * X))
    np.testing.assert_allclose(gradients[1], 2.0 * G_GIVEN)


def test_the_gradient_of_a_first_tensor_of_one_row_may_be_a_sum_over_rows(backend: Any) -> None:
    _, gradients = pull(backend, xg.custom_gradient(moved), (X[:1], X), G_GIVEN)
    np.testing.assert_allclose(gradients[0], G_GIVEN.sum(0, keepdims=True))


@pytest.mark.parametrize(
    ("function", "first", "hint"),
    [(scaled, X[0], ""), (moved, X[0], ""), (stretched, X[:1], r": xp.sum_to\(gradient, row\)")],
)
def test_such_a_gradient_of_a_tensor_of_another_shape_is_refused(
    function: Any, first: Any, hint: str, backend: Any
) -> None:
    with pytest.raises(GradientError, match=f"expected the same shape{hint}"):
        pull(backend, xg.custom_gradient(function), (first, X), G_GIVEN)


def test_a_number_is_the_gradient_of_a_tensor_without_axes(backend: Any) -> None:
    function = xg.custom_gradient(constant_slopes)
    _, gradients = pull(backend, function, (S, S), S)
    assert [float(gradient) for gradient in gradients] == [2.5, -1.0]
    assert all(gradient.dtype == np.float32 for gradient in gradients)
    with pytest.raises(GradientError, match=r"returned 2.5 as the gradient of argument 'a'"):
        pull(backend, function, (X, S), X)
