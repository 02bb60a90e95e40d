"""What users hand to us goes when they let it go: models, closures, tensors, arguments; and what
was made of it goes with it.
"""

from __future__ import annotations

import gc
import linecache
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.rules import specialization as codes

from ..written.unseen import Unseen

Tensor: TypeAlias = Any
X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)
pytestmark = [
    pytest.mark.filterwarnings("ignore::multigrad.errors.NativeRuleWarning"),
    pytest.mark.usefixtures("quick_collections"),
]


class Model:
    """Something large that a rule belongs to, or closes over."""

    def __init__(self, factor: float = 3.0) -> None:
        self.factor = factor
        self.weights = np.ones(1000)

    def rule(self, ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * self.factor

    def branching(self, ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        """Not captured: it runs as it is."""
        return grad_out * (self.factor if float(grad_out[0]) > -9.0 else 0.0)

    def asking(self, ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * self.factor * float(tin.ndim)


def registered(model: Model) -> Any:
    xg.register("test lifetime", override=True)(model.rule)
    return "test lifetime"


MAKERS: dict[str, Callable[[Model], Any]] = {
    "method": lambda model: model.rule,
    "closure": lambda model: lambda ctx, grad_out, tin: grad_out * model.factor,
    "native": lambda model: xg.compose(model.rule).copy(native=True),
    "registered": registered,
    "uncapturable": lambda model: model.branching,
    "asking": lambda model: model.asking,
    "part": lambda model: xg.compose(model.rule, "scale").with_params(s=1.0),
}


def act_under(backend: Any, rule: Any) -> Any:
    if backend.name == "numpy":
        found = xg.get(rule) if isinstance(rule, str) else xg.compose(rule)
        return found(None, X, X)
    with xg.use(rule):
        act = xg.activation("Linear")
        grad_in = backend.vjp(act, X, X)[1]
    backend.vjp(xg.activation("Linear", rule), X, X)
    return grad_in


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_rule_that_was_used_lets_go_of_what_it_belongs_to(
    make: Callable[[Model], Any], backend: Any
) -> None:
    model = Model()
    gone = weakref.ref(model)
    try:
        np.testing.assert_allclose(act_under(backend, make(model)), 3 * X, rtol=1e-6)
    finally:
        if make is registered:
            xg.unregister("test lifetime")
    del model
    gc.collect()
    gc.collect()  # what a framework's own code let go of in the first
    assert gone() is None


def test_a_rule_that_was_replaced_is_let_go() -> None:
    models = [Model(float(n)) for n in range(3)]
    gone = [weakref.ref(model) for model in models]
    act = xg.activation("Linear", rule=xg.register("test lifetime", override=True)(models[0].rule))
    follower = xg.activation("Linear")
    for model in models:
        xg.register("test lifetime", override=True)(model.rule)
        with xg.use("test lifetime"):
            np.testing.assert_array_equal(xg.apply_to_gradients([X])[0], model.factor * X)
            follower(X)
    xg.register("test lifetime", override=True)(lambda ctx, grad_out, tin: grad_out)
    with xg.use("test lifetime"):
        follower(X)
    del model, models
    act = None
    gc.collect()
    assert [each() for each in gone] == [None] * 3
    xg.unregister("test lifetime")
    assert act is None


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_a_native_rule_acts_in_a_backward_that_runs_when_its_owner_is_gone(backend: Any) -> None:
    def vjp_later(x: Tensor) -> Tensor:
        model = Model()
        with xg.use(xg.compose(model.rule).copy(native=True)):
            y = act(x)
        del model
        gc.collect()
        return y

    act = xg.activation("Linear")
    np.testing.assert_array_equal(backend.vjp(vjp_later, X, X)[1], 3 * X)


def test_rules_made_anew_each_time_leave_nothing(backend: Any) -> None:
    x, gone = backend.array(X), []

    def use_once(n: int) -> None:
        held = Model(float(n % 5))
        gone.append(weakref.ref(held))
        rule = xg.compose(lambda ctx, grad_out, tin: grad_out * held.factor, "scale")
        np.testing.assert_array_equal(backend.numpy(rule(None, x, x, s=1.0)), X * (n % 5))

    for n in range(30):
        use_once(n)
    gc.collect()
    assert [each() for each in gone] == [None] * 30


def test_a_rule_that_is_held_keeps_its_code_through_many_uses() -> None:
    captures = Unseen()

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        captures.note_capture(grad_out, 0)
        return grad_out * 3.0

    for _ in range(3):
        with xg.use(rule):
            xg.apply_to_gradients([X])
        xg.compose(rule, "scale")(None, X, X, s=1.0)
        gc.collect()
    assert len(captures) == 2  # alone, and in the chain


# --- Functions ------------------------------------------------------------------------------------


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_a_custom_gradient_that_runs_as_it_is_keeps_no_calls_tensors(backend: Any) -> None:
    gone: list[weakref.ref[Model]] = []

    @xg.custom_gradient
    def f(x: Tensor) -> Any:
        held = Model()
        gone.append(weakref.ref(held))
        scale = max(float(backend.numpy(x).max()), 1.0)  # not captured
        return x * 2.0, lambda up: up * (held.factor / scale)

    for _ in range(5):
        np.testing.assert_allclose(backend.vjp(f, X, X)[1], 1.5 * X, rtol=1e-6)
    gc.collect()
    assert {each() for each in gone} == {None}


def test_a_function_made_inside_of_another_lets_go_of_what_it_closes_over(backend: Any) -> None:
    def once() -> weakref.ref[Model]:
        model = Model()

        @xg.custom_gradient
        def f(x: Tensor) -> Any:
            return x * model.factor, lambda up: up * model.factor

        np.testing.assert_array_equal(backend.numpy(f(backend.array(X))), 3 * X)
        return weakref.ref(model)

    gone = [once() for _ in range(3)]
    gc.collect()
    assert [each() for each in gone] == [None] * 3


@pytest.mark.parametrize("kind", ["captured", "as it is", "not to be captured"])
def test_a_function_keeps_no_object_that_it_was_given(kind: str, backend: Any) -> None:
    @xg.custom_gradient(native=True if kind == "as it is" else None)
    def f(x: Tensor, how: Model) -> Any:
        if kind == "not to be captured":
            backend.numpy(x)
        return x * how.factor, lambda up: (up * how.factor, None)

    def once(factor: float) -> weakref.ref[Model]:
        model = Model(factor)
        found = backend.numpy(f(backend.array(X), model))
        np.testing.assert_array_equal(found, factor * X)
        return weakref.ref(model)

    gone = [once(factor) for factor in (2.0, 5.0)]
    gc.collect()
    assert [each() for each in gone] == [None] * 2


# --- what is bounded ------------------------------------------------------------------------------


def test_memory_stays_when_rules_come_and_go() -> None:
    def work(times: int) -> None:
        for n in range(times):
            xg.compose(lambda ctx, grad_out, tin: grad_out * 3.0)(None, X, X)
            with xg.use("scale", {"s": float(n)}):
                xg.apply_to_gradients([X])

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    sources = len(linecache.cache)
    work(50)
    tracemalloc.start()
    work(50)
    marks = [held()]
    for _ in range(3):
        work(100)
        marks.append(held())
    tracemalloc.stop()
    # The least of three: a large table of the process that grows in between is no leak, and grows
    # once.
    assert min(np.diff(marks)) < 60_000, "bytes are kept of 100 rules"
    assert len(linecache.cache) < sources + 50, "sources are kept of rules that are gone"


def test_no_python_code_runs_where_emitted_code_dies() -> None:
    """An interrupt that comes while Python code of a finalizer runs is printed, and lost."""
    f = xg.lower(xg.compose(lambda ctx, grad_out, tin: grad_out * 3.0), "numpy", forward="ReLU")
    f.vjp(X)
    gc.collect()
    sources, entered = len(linecache.cache), []
    sys.setprofile(lambda frame, event, arg: entered.append((event, frame.f_globals["__name__"])))
    del f
    gc.collect()
    sys.setprofile(None)
    assert len(linecache.cache) < sources
    assert not [name for event, name in entered if event == "call" and "multigrad" in name]


def test_an_activation_with_a_number_of_its_own_goes_with_its_last_user() -> None:
    act = xg.activation("Heaviside", lambda ctx, grad_out, tin: grad_out, at_zero=0.125)
    xg.vjp(act, X)[1](X)
    row = weakref.ref(act.forward)
    assert xg.activation("Heaviside", at_zero=0.125).forward is row()
    del act
    gc.collect()
    assert row() is None


def test_what_is_kept_of_one_rule_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(ctx: Any, grad_out: Tensor, tin: Tensor, mode: str = "") -> Tensor:
        return grad_out * len(mode)

    monkeypatch.setattr(codes, "MOST_CODES", 8)
    rule = xg.compose(scaled)
    finalizers = len(weakref.finalize._registry)  # type: ignore[attr-defined]
    for n in range(20):
        np.testing.assert_array_equal(rule(None, X, X, mode="m" * n), n * X)
    assert len(codes._codes) <= 8
    kept = len(weakref.finalize._registry) - finalizers  # type: ignore[attr-defined]
    assert kept <= 8, "finalizers are kept of codes gone"
