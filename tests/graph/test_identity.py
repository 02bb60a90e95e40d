"""Which rules, params and arguments are the same: those that are one object, or nothing tells
apart; whatever their `==` says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..written.unseen import Unseen

Tensor: TypeAlias = Any
X = np.array([-1.0, 0.25, 2.0], np.float32)
# TensorFlow (2.21) itself takes -0.0 for the 0.0 that it made a tensor of before.
SIGNED = pytest.mark.backends("numpy", "torch", "jax")


@dataclass(frozen=True)
class Frozen:
    """Equal to all of its kind: its factor is not compared."""

    factor: float = field(compare=False)

    def __call__(self, ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * self.factor

    def rule(self, ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * self.factor


class Liar(Frozen):
    """Equal to all of its kind, in hash and text too."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Liar)

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "Liar"


def run(backend: Any, rule: Any, **params: Any) -> Any:
    return backend.numpy(rule(None, backend.array(X), backend.array(X), **params))


@pytest.mark.parametrize("kind", [Frozen, Liar])
def test_equal_rules_keep_the_gradient_that_is_their_own(kind: Any, backend: Any) -> None:
    rules = [kind(2.0), kind(5.0)]
    for form in (lambda rule: rule, lambda rule: rule.rule):
        found = [run(backend, xg.compose(form(rule))) for rule in rules]
        np.testing.assert_array_equal(found, [2 * X, 5 * X])


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize("kind", [Frozen, Liar])
def test_equal_rules_in_force_one_after_the_other_each_act(kind: Any, backend: Any) -> None:
    act = xg.activation("Linear")
    for factor in (2.0, 5.0):
        with xg.use(kind(factor)):
            np.testing.assert_array_equal(backend.vjp(act, X, X)[1], factor * X)


def test_equal_rules_as_parts_of_a_composed_rule_each_act(backend: Any) -> None:
    for factor in (2.0, 5.0):
        rule = xg.compose(Liar(factor), "scale")
        np.testing.assert_array_equal(run(backend, rule, s=2.0), 2 * factor * X)


def choose(ctx: Any, grad_out: Tensor, tin: Tensor, mode: Any = 1) -> Tensor:
    kind = type(mode).__name__
    return grad_out * {"int": 2.0, "bool": 3.0, "str": 5.0, "tuple": 7.0}[kind]


@pytest.mark.parametrize("many", [[1, True, "1", (1,)], [True, 1], [0, False]])
def test_params_of_different_types_are_different_though_they_are_equal(
    many: list[Any], backend: Any
) -> None:
    for mode in many:
        found = run(backend, xg.compose(choose), mode=mode)
        np.testing.assert_array_equal(found, choose(None, X, X, mode))


def pick(ctx: Any, grad_out: Tensor, tin: Tensor, options: Any = ()) -> Tensor:
    return grad_out * options[0].factor


def test_a_tuple_param_is_told_by_the_objects_in_it(backend: Any) -> None:
    for factor in (2.0, 5.0):
        found = run(backend, xg.compose(pick), options=(Liar(factor),))
        np.testing.assert_array_equal(found, factor * X)


def damping(ctx: Any, grad_out: Tensor, tin: Tensor, w: float = 1.0) -> Tensor:
    return grad_out * w if w < 1.0 else grad_out


@SIGNED
def test_a_param_that_is_branched_on_keeps_the_sign_of_its_zero(backend: Any) -> None:
    ones, rule = backend.array(np.ones(3, np.float32)), xg.compose(damping)
    signs = [np.signbit(backend.numpy(rule(None, ones, ones, w=w))) for w in (0.0, -0.0, 0.0)]
    np.testing.assert_array_equal(signs, [[False] * 3, [True] * 3, [False] * 3])


# --- what the parts of a composed rule have bound -------------------------------------------------


def counted_scale(captures: Unseen) -> xg.Rule:
    def scale(ctx: Any, grad_out: Tensor, tin: Tensor, s: float = 1.0) -> Tensor:
        captures.note_capture(grad_out, s)
        return grad_out * s

    return xg.register("test counted", override=True)(scale)


def test_a_tensor_bound_to_a_part_is_told_from_one_that_prints_alike(backend: Any) -> None:
    wide = X.astype(np.float64)
    with backend.precision(np.float64):
        for number in (1.00001, 1.00002):
            bound = xg.get("scale").with_params(s=backend.array(np.array(number)))
            x = backend.array(wide)
            found = backend.numpy(xg.compose(bound, "scale")(None, x, x, s=1.0))
            np.testing.assert_array_equal(found, wide * number)


@pytest.mark.backends("torch", "tensorflow")
def test_a_tensor_or_variable_bound_to_a_part_is_followed(backend: Any) -> None:
    library: Any = pytest.importorskip(backend.name)
    s = library.tensor(2.0) if backend.name == "torch" else library.Variable(2.0)
    inner = xg.compose(xg.get("scale").with_params(s=s), "scale")
    rule = xg.compose(inner, inner.with_params(s=backend.array(np.float32(1.0))))
    for number in (2.0, 3.0):
        (s.fill_ if backend.name == "torch" else s.assign)(number)
        np.testing.assert_allclose(run(backend, rule, s=1.0), X * number * number)


@pytest.mark.needs("jax")
def test_a_traced_number_bound_to_a_part_serves_each_trace() -> None:
    import jax
    import jax.numpy as jnp

    x = jnp.asarray(X)

    def step(s: Tensor, x: Tensor) -> Tensor:
        rule = xg.compose(xg.get("scale").with_params(s=s), "scale")
        return rule(None, x, x, s=1.0)

    for fn in (jax.jit(step), jax.jit(lambda s, x: step(s, x) * 1.0)):
        for number in (2.0, 3.0):
            np.testing.assert_allclose(fn(number, x), X * number, rtol=1e-6)


def test_numbers_bound_to_parts_share_one_capture(backend: Any) -> None:
    captures = Unseen()
    scale = counted_scale(captures)
    for number in (1.5, 2.0, 2.5):
        rule = xg.compose(scale.with_params(s=number), scale.with_params(s=2.0), "scale")
        np.testing.assert_allclose(run(backend, rule, s=3.0), 6 * number * X, rtol=1e-6)
    assert len(captures) == 1


def test_a_part_that_branches_on_what_it_has_bound_is_captured_for_each_value(backend: Any) -> None:
    for number, expected in ((0.5, 0.5), (2.0, 1.0), (-0.5, -0.5)):
        rule = xg.compose(xg.compose(damping).with_params(w=number), "scale")
        np.testing.assert_allclose(run(backend, rule, s=1.0), expected * X)


def test_what_a_part_has_bound_does_not_reach_a_part_that_takes_everything(backend: Any) -> None:
    def greedy(ctx: Any, grad_out: Tensor, tin: Tensor, **params: Any) -> Tensor:
        return grad_out * float(10 ** len(params))

    rule = xg.compose(xg.get("scale").with_params(s=2.0), greedy)
    np.testing.assert_allclose(run(backend, rule), 2 * X)
    native = xg.compose(xg.get("scale").with_params(s=2.0), xg.compose(greedy).copy(native=True))
    np.testing.assert_allclose(run(backend, native), 2 * X)
    assert set(rule.params) == set() and rule.bound_rule().params == {}


# --- arguments of Functions -----------------------------------------------------------------------


@xg.function
def times(x: Tensor, how: Any) -> Tensor:
    return x * how.factor


def test_objects_given_to_a_function_are_told_apart_though_they_are_equal(backend: Any) -> None:
    for factor in (2.0, 5.0):
        np.testing.assert_array_equal(
            backend.numpy(times(backend.array(X), Liar(factor))), factor * X
        )


def test_an_object_given_to_a_function_may_change_between_calls(backend: Any) -> None:
    how = SimpleNamespace(factor=2.0, inner=[SimpleNamespace(more=1.0)])
    for factor in (2.0, 5.0, 2.0):
        how.factor = factor
        np.testing.assert_array_equal(backend.numpy(times(backend.array(X), how)), factor * X)

    @xg.function
    def deeper(x: Tensor, how: Any) -> Tensor:
        return x * how.inner[0].more

    for factor in (2.0, 5.0):
        how.inner[0].more = factor
        np.testing.assert_array_equal(backend.numpy(deeper(backend.array(X), how)), factor * X)


def test_an_object_with_a_dtype_is_no_tensor(backend: Any) -> None:
    for factor in (2.0, 5.0):
        how = SimpleNamespace(factor=factor, dtype="float32")
        np.testing.assert_array_equal(backend.numpy(times(backend.array(X), how)), factor * X)


def test_unhashable_objects_in_the_same_memory_are_different(backend: Any) -> None:
    for n in range(20):  # each may lie where the one before lay
        how = SimpleNamespace(factor=float(n))
        np.testing.assert_array_equal(backend.numpy(times(backend.array(X), how)), float(n) * X)
        del how


@xg.function
def weigh(x: Tensor, how: Any) -> Tensor:
    return x * {"int": 2.0, "bool": 3.0}[type(how).__name__]


def test_one_and_true_are_different_arguments(backend: Any) -> None:
    x = backend.array(X)
    found = [backend.numpy(weigh(x, how)) for how in (1, True, 1)]
    np.testing.assert_array_equal(found, [2 * X, 3 * X, 2 * X])


@xg.function
def damp(x: Tensor, w: float) -> Tensor:
    return x * w if w < 1.0 else x


@SIGNED
def test_a_number_that_a_function_branches_on_keeps_the_sign_of_its_zero(backend: Any) -> None:
    ones = backend.array(np.ones(3, np.float32))
    signs = [np.signbit(backend.numpy(damp(ones, w))) for w in (0.0, -0.0, 0.0)]
    np.testing.assert_array_equal(signs, [[False] * 3, [True] * 3, [False] * 3])
