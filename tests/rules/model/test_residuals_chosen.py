"""`residuals=` by a word: what forward keeps, with the same numbers on every framework."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.errors import RuleValueError

WAYS = ["auto", "input", "mask", "packed", "recompute", "time"]
RULES = ["rectangular", "d(ReLU)", "triangular", "arctan", "clip_norm", "clipped_straight_through"]
SHAPE = (5, 7)  # 35 elements: 5 bytes of bits, of which 5 bits are left over


def inputs() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    x, g = rng.standard_normal((2, *SHAPE)).astype("float32")
    x[0, :4] = 0.0, 0.5, -0.5, np.nan
    return x, g


def both(backend: Any, call: Callable[..., Any], x: Any, g: Any) -> tuple[Any, Any]:
    """Return what a function gives, and its gradient."""
    y, pull = xg.vjp(call, backend.array(x))
    return backend.numpy(y), backend.numpy(pull(backend.array(g))[0])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("way", WAYS[1:])
def test_numbers_are_the_same_whatever_is_kept(backend: Any, rule: str, way: Any) -> None:
    x, g = inputs()
    expected = both(backend, xg.activation("ReLU", rule=rule), x, g)
    found = both(backend, xg.activation("ReLU", rule=rule, residuals=way), x, g)
    for each, one in zip(found, expected, strict=True):
        np.testing.assert_array_equal(each, one)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (8,), (9,), (3, 0, 2), (4, 3, 2)])
def test_masks_of_any_shape_are_packed_and_unpacked(backend: Any, shape: tuple[int, ...]) -> None:
    x = np.asarray(np.random.default_rng(1).standard_normal(shape), "float32")
    packed = xg.activation("ReLU", rule="rectangular", residuals="packed")
    got = both(backend, packed, x, np.ones_like(x))[1]
    np.testing.assert_array_equal(got, ((x >= -0.5) & (x <= 0.5)).astype("float32"))


def test_each_way_keeps_its_bytes() -> None:
    def total(way: str) -> int:
        return xg.memory(xg.get("rectangular").keeping(way), (32, 100)).total

    assert [total(way) for way in WAYS] == [3200, 12800, 3200, 400, 400, 3200]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("way", WAYS)
def test_torch_saves_what_is_told_for_each_way(way: Any) -> None:
    import torch

    for rule in RULES:
        act = xg.activation("ReLU", rule=rule, residuals=way)
        saved: list[int] = []

        def pack(tensor: Any, saved: list[int] = saved) -> Any:
            saved.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            act(torch.randn(SHAPE, requires_grad=True))
        assert sum(saved) == xg.memory(act, SHAPE, torch.float32).total


def squash(x: Any) -> Any:
    """tanh(x) / max |tanh(x)|, the largest a constant."""
    limited = xp.tanh(x)
    largest = xp.norm(limited, ord=xp.inf)

    def grad(grad_out: Any) -> Any:
        return grad_out * (1.0 - limited * limited) / largest

    return limited / largest, grad


def test_what_forward_computed_at_some_cost_is_kept_on_demand(backend: Any) -> None:
    x, g = inputs()
    x = np.nan_to_num(x)
    expected = x.astype("float64")
    limited = np.tanh(expected)
    largest = np.abs(limited).max()
    plain = xg.custom_gradient(squash)
    quick = plain.keeping("time")
    for f in (plain, quick, plain):  # the one does not run what the other keeps
        y, grad_x = both(backend, f, x, g)
        np.testing.assert_allclose(y, limited / largest, rtol=1e-5)
        np.testing.assert_allclose(grad_x, g * (1 - limited**2) / largest, rtol=1e-4)
    for got, one in zip(both(backend, quick, x, g), both(backend, plain, x, g), strict=True):
        np.testing.assert_array_equal(got, one)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("of", ["a function", "an estimator"])
def test_torch_keeps_what_was_costly_and_differentiates_it_again(of: str) -> None:
    import torch

    squashing = xg.function(lambda x: squash(x)[0], lambda g, x: squash(x)[1](g))
    named = {"a function": squashing, "an estimator": xg.estimators.dorefa_weights}
    x = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    f = named[of].keeping("auto")
    outputs = [f(x), f(x)]
    assert [y.grad_fn.saved_tensors[0].shape for y in outputs] == [SHAPE, SHAPE]
    quick = f.keeping("time")
    for each, kept in ((f, 1), (quick, 3), (f, 1)):
        y = each(x)
        assert len(y.grad_fn.saved_tensors) == kept
        total = sum(tensor.nbytes for tensor in y.grad_fn.saved_tensors)
        assert total == xg.memory(each, SHAPE, torch.float64).total
    # Of an estimator, which others use, the latest capture may have its own casts.
    assert "history = tanh(" in xg.show(quick, memory=True)
    assert "history" in xg.source(quick, "torch")
    with torch.no_grad():
        assert quick(x).grad_fn is None
    found = []
    for each in (f, quick):
        (first,) = torch.autograd.grad(each(x).sum(), x, create_graph=True)
        (by_row,) = torch.autograd.grad(
            each(x), x, torch.eye(35).view(35, *SHAPE), True, is_grads_batched=True
        )
        found.append((first, by_row, torch.autograd.grad(first.sum(), x)[0]))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=0.0, atol=0.0)
    assert found[1][2].abs().max() > 0.1


@pytest.mark.needs("jax")
def test_forward_mode_and_transforms_of_jax_read_what_is_packed() -> None:
    import jax

    x, g = inputs()
    act = xg.activation("ReLU", rule="rectangular", residuals="packed")
    _, pull = jax.vjp(act, x)
    assert [leaf.nbytes for leaf in jax.tree_util.tree_leaves(pull)] == [5]
    mask = (x >= -0.5) & (x <= 0.5)
    np.testing.assert_array_equal(jax.jvp(act, (x,), (g,))[1], g * mask)
    by_row = jax.jit(jax.vmap(jax.grad(lambda row: act(row).sum())))
    np.testing.assert_array_equal(by_row(x), mask)


@pytest.mark.needs("torch")
def test_transforms_and_compilers_of_torch_read_what_is_packed() -> None:
    import torch

    x = torch.from_numpy(inputs()[0])
    act = xg.activation("ReLU", rule="rectangular", residuals="packed")
    mask = ((x >= -0.5) & (x <= 0.5)).float()

    def gradient(call: Callable[..., Any]) -> Any:
        own = x.clone().requires_grad_()
        call(own).sum().backward()
        return own.grad

    torch.testing.assert_close(gradient(act), mask)
    torch.testing.assert_close(gradient(torch.compile(act, backend="aot_eager")), mask)
    by_row = torch.func.vmap(torch.func.grad(lambda row: act(row).sum()))
    torch.testing.assert_close(by_row(x), mask)
    own = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(act(own).square().sum(), own, create_graph=True)
    (second,) = torch.autograd.grad(first.nansum(), own)
    torch.testing.assert_close(second[mask > 0], 2 * mask[mask > 0])


def test_functions_take_a_word_or_are_told_later(backend: Any) -> None:
    def forward(x: Any) -> Any:
        return xp.maximum(x, 0.0)

    def backward(grad_out: Any, x: Any) -> Any:
        return grad_out * (x > 0.0)

    x, g = inputs()
    plain, packed = xg.function(forward, backward), xg.function(forward, backward, "packed")
    expected = both(backend, plain, x, g)
    for each in (packed, plain.keeping("recompute"), plain.keeping("input")):
        for got, one in zip(both(backend, each, x, g), expected, strict=True):
            np.testing.assert_array_equal(got, one)
    kept = [xg.memory(f, SHAPE).total for f in (plain, packed, plain.keeping("input"))]
    assert kept == [35, 5, 140]


def test_use_has_the_word_too() -> None:
    with xg.use("rectangular", residuals="packed"):
        assert xg.memory(xg.activation("Heaviside"), (80,)).total == 10
    assert "1 bit per element" in xg.show(xg.get("rectangular").keeping("packed"), memory=True)


@pytest.mark.parametrize("options", [{"residuals": "packed"}, {"fused": True}, {"fused": False}])
def test_a_named_rule_with_a_choice_takes_params_of_a_call(backend: Any, options: Any) -> None:
    x, g = inputs()
    act = xg.activation("Heaviside", "triangular", **options)
    plain = xg.activation("Heaviside", "triangular")
    for params in ({}, {"width": 0.5}, {"width": 2.0}):
        found = both(backend, lambda t, own=params: act(t, **own), x, g)
        expected = both(backend, lambda t, own=params: plain(t, **own), x, g)
        np.testing.assert_array_equal(found[1], expected[1])
    with pytest.raises(TypeError, match="takes no 'widht'; did you mean 'width'"):
        act(backend.array(x), widht=1.0)


def test_a_rule_says_what_it_keeps_and_is_pickled_with_it() -> None:
    rule = xg.get("rectangular").keeping("packed").with_params(a=-1.0)
    again = pickle.loads(pickle.dumps(rule))
    assert repr(again) == repr(rule) == "<Rule rectangular(b=0.5) with a=-1.0, residuals='packed'>"
    assert xg.memory(copy.deepcopy(rule), (80,)).total == 10


def test_a_composition_keeps_what_its_parts_agree_on_and_its_copies_do_too() -> None:
    def copies(whole: Any) -> list[Any]:
        return [whole, copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))]

    def total(whole: Any) -> int:
        return xg.memory(whole, (800,)).total

    def bounded(x: Any) -> Any:
        return np.tanh(x)

    window, relu = xg.get("rectangular"), xg.function(bounded, lambda g, x: g * (x > 0))
    rules = xg.compose(window.keeping("packed"), "clip_value")
    assert list(map(total, copies(rules))) == [100] * 3
    either = xg.compose(window.keeping("packed"), window.with_params(a=0.0).keeping("input"))
    assert total(either) == total(xg.compose(window, window.with_params(a=0.0)))
    functions = xg.compose(relu.keeping("packed"), xg.activation("ReLU", rules))
    assert total(functions) == 200 == total(xg.compose(relu, relu).keeping("packed"))
    told = xg.compose(relu, relu).keeping("packed", fused=False)
    assert [(each.residuals, each.fused) for each in copies(told)] == [("packed", False)] * 3
    assert list(map(total, copies(told))) == [200] * 3
    assert xg.compose(relu.keeping(fused=True), relu).fused is True


def test_words_that_are_none_are_refused() -> None:
    with pytest.raises(RuleValueError, match="expected one of 'auto', 'input'"):
        xg.activation("ReLU", rule="rectangular", residuals="pack")  # type: ignore[arg-type]
    with pytest.raises(RuleValueError, match="did you mean 'packed'"):
        xg.function(abs, None, "paked")  # type: ignore[arg-type]
    with pytest.raises(xg.RuleError, match="needs a rule"):
        xg.activation("ReLU", residuals="packed")
