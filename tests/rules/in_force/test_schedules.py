"""Schedules: numbers that move, as a rule's params. A backward uses the number of its forward."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from tests.conftest import is_installed

from ...harness.models.surrogates import triangle
from ...support.threads import on_threads

X = np.array([-1.5, -0.5, 0.25, 0.75], np.float32)
ONES = np.ones_like(X)
FORMULAS: dict[str, Callable[[], Any]] = {
    "linear": lambda: xg.schedule.linear(2.0, 0.5, steps=4, begin=2),
    "cosine": lambda: xg.schedule.cosine(2.0, 0.5, steps=4, begin=2),
    "exponential": lambda: xg.schedule.exponential(2.0, 0.5, every=3),
    "staircase": lambda: xg.schedule.exponential(2.0, 0.5, every=3, staircase=True, begin=1),
    "to an end": lambda: xg.schedule.exponential(2.0, 0.5, end=0.3),
    "piecewise": lambda: xg.schedule.piecewise({0: 1.0, 3: 0.5, 5: 2.0}),
}


def expected(name: str, step: int) -> float:
    done = min(max((step - 2) / 4, 0.0), 1.0)
    if name == "linear":
        return 2.0 + (0.5 - 2.0) * done
    if name == "cosine":
        return 0.5 + 1.5 * (1.0 + math.cos(math.pi * done)) / 2.0
    if name == "exponential":
        return 2.0 * 0.5 ** (step / 3)
    if name == "staircase":
        return 2.0 * 0.5 ** (max(step - 1, 0) // 3)
    if name == "to an end":
        return max(2.0 * 0.5**step, 0.3)
    return 1.0 if step < 3 else 0.5 if step < 5 else 2.0


def slope(backend: Any, f: Any) -> Any:
    return backend.vjp(f, X, ONES)[1]


@pytest.fixture
def width() -> Any:
    return xg.schedule.linear(2.0, 0.5, steps=6)


# --- the numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
def test_a_schedule_gives_its_formulas_numbers_stepwise_and_at_any_step(name: str) -> None:
    schedule = FORMULAS[name]()
    for step in range(9):
        assert schedule.count == step
        assert schedule.value == pytest.approx(expected(name, step), rel=1e-12)
        assert schedule(step) == schedule.value
        schedule.step()


@pytest.mark.parametrize("name", FORMULAS)
def test_a_tensor_of_steps_gives_a_tensor_of_numbers(backend: Any, name: str) -> None:
    steps = backend.array(np.arange(9, dtype=np.int32))
    found = backend.numpy(FORMULAS[name]()(steps))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [expected(name, i) for i in range(9)], rtol=1e-6)


def test_a_step_without_axes_gives_a_number_without_axes(backend: Any) -> None:
    found = FORMULAS["linear"]()(backend.array(np.asarray(3, np.int32)))
    assert tuple(found.shape) == ()
    assert float(backend.numpy(found)) == pytest.approx(expected("linear", 3))


def test_piecewise_takes_boundaries_and_values_too() -> None:
    schedule = xg.schedule.piecewise([3, 5], [1.0, 0.5, 2.0])
    assert [schedule(i) for i in range(9)] == [expected("piecewise", i) for i in range(9)]


def test_any_function_of_the_step_is_a_schedule() -> None:
    calls: list[int] = []

    def fn(step: int) -> float:
        calls.append(step)
        return 1.0 / (1 + step)

    schedule = xg.schedule.of(fn)
    schedule.step(3)
    assert (schedule.value, schedule.value) == (0.25, 0.25)
    assert calls == [0, 3]  # once per step


def test_its_repr_says_the_formulas_numbers_and_where_it_stands(width: Any) -> None:
    width.step(2)
    assert repr(width) == "linear(start=2.0, end=0.5, steps=6, begin=0) at step 2: 1.5"
    assert "at step 2" in repr(xg.get("triangular").with_params(width=width))


# --- applied --------------------------------------------------------------------------------------

HOLDERS: dict[str, Callable[[Any], Any]] = {
    "activation": lambda s: xg.activation("Heaviside", "triangular", {"width": s}),
    "with_params": lambda s: xg.activation("Heaviside", bound(s)),
    "series": lambda s: xg.activation("Heaviside", xg.compose(bound(s), bound(1e9))),
    "under": lambda s: bound(s).under("Heaviside"),
    "bind": lambda s: xg.get("triangular").under("Heaviside").bind({"width": s}),
    "Function": lambda s: around(xg.activation("Heaviside", "triangular", {"width": s})),
}


def bound(width: Any) -> Any:
    return xg.get("triangular").with_params(width=width)


def around(act: Any) -> Any:
    @xg.custom_gradient
    def f(x: Any) -> Any:
        return act(x), lambda upstream: xg.vjp(act, x)[1](upstream)[0]

    return f


@pytest.mark.parametrize("holder", HOLDERS)
def test_whatever_holds_a_schedule_follows_it(backend: Any, holder: str, width: Any) -> None:
    f = HOLDERS[holder](width)
    for _ in range(3):
        found = gradient(backend, f)
        np.testing.assert_allclose(found, triangle(X, width.value), rtol=1e-5, atol=1e-6)
        width.step(2)


def gradient(backend: Any, f: Any) -> Any:
    if backend.name == "numpy":
        return np.asarray(xg.vjp(f, X)[1](ONES)[0])
    return slope(backend, f)


def test_a_bare_rule_and_gradients_take_what_stands_now(backend: Any, width: Any) -> None:
    norm = xg.schedule.linear(1.0, 0.1, steps=9)
    for _ in range(2):
        found = xg.apply_to_gradients([backend.array(10 * X)], "clip_norm", {"max_norm": norm})
        assert np.linalg.norm(backend.numpy(found[0])) == pytest.approx(norm.value, rel=1e-5)
        factor = xg.get("triangular").factor(backend.array(X), width=width)
        np.testing.assert_allclose(backend.numpy(factor), triangle(X, width.value), rtol=1e-5)
        norm.step(4)
        width.step()


def test_a_step_within_a_use_acts_on_the_next_forward_of_all_that_share_the_schedule(
    backend: Any, width: Any
) -> None:
    outer, inner = xg.activation("Heaviside", bound(width)), xg.activation("Heaviside")
    with xg.use("triangular", {"width": width}), xg.use("triangular", {"width": width}):
        for _ in range(3):
            for act in (outer, inner):
                found = gradient(backend, act)
                np.testing.assert_allclose(found, triangle(X, width.value), rtol=1e-5, atol=1e-6)
            width.step(2)


def test_threads_share_a_schedule(width: Any) -> None:
    act = xg.activation("Heaviside")
    with xg.use("triangular", {"width": width}):
        on_threads(width.step, 3)
        np.testing.assert_allclose(xg.vjp(act, X)[1](ONES)[0], triangle(X, 1.25), rtol=1e-5)
    on_threads(lambda times: [width.step() for _ in range(times)], *[200] * 4)
    assert width.count == 803


def test_a_new_number_makes_no_new_entry(width: Any) -> None:
    act = xg.activation("Heaviside", "triangular", {"width": width})
    act(X)
    own = act.own_in_force()
    assert own is not None
    under = own.specialization.functions_under["Heaviside"]
    before = len(under.entries.known), len(own.specialization.captures[True].variants)
    for _ in range(6):
        width.step()
        act(X)
    assert (len(under.entries.known), len(own.specialization.captures[True].variants)) == before


# --- saved and copied -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
def test_pickles_copies_documents_and_states_stand_where_it_stood(name: str) -> None:
    schedule, restored = FORMULAS[name](), FORMULAS[name]()
    schedule.step(3)
    restored.load_state_dict(schedule.state_dict())
    for made in (
        restored,
        pickle.loads(pickle.dumps(schedule)),
        copy.deepcopy(schedule),
        xg.schedule.from_dict(schedule.to_dict()),
    ):
        assert (made.count, made.value, repr(made)) == (3, schedule.value, repr(schedule))
        made.step()
        assert schedule.count == 3


def test_layers_that_share_a_schedule_share_it_in_a_copy(width: Any) -> None:
    layers = [xg.activation("Heaviside", "triangular", {"width": width}) for _ in range(2)]
    first, second = copy.deepcopy(layers)
    assert first.params["width"] is second.params["width"] is not width


def module_level(step: Any) -> Any:
    return 1.0 / (1.0 + step)


def test_a_function_of_a_module_is_saved_by_name_and_no_other() -> None:
    made = xg.schedule.from_dict(xg.schedule.of(module_level).to_dict())
    assert made(3) == 0.25
    with pytest.raises(xg.FormatError, match="top of a module"):
        xg.schedule.of(lambda step: 1.0).to_dict()
    with pytest.raises(xg.FormatError, match="import 'no_such_module' first"):
        xg.schedule.from_dict({"schedule": "of", "fn": "no_such_module:f", "count": 0})


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: xg.schedule.linear(1.0, 2.0, 0), "steps is >= 1, got 0"),
        (lambda: xg.schedule.linear(1.0, 2.0, 2.5), "steps is a whole number"),
        (lambda: xg.schedule.cosine("1", 2.0, 3), "start is a number, got str"),
        (lambda: xg.schedule.cosine(1.0, math.nan, 3), "end is finite, got nan"),
        (lambda: xg.schedule.exponential(1.0, 0.0), "rate is > 0"),
        (lambda: xg.schedule.piecewise({1: 1.0}), "the value at step 0"),
        (lambda: xg.schedule.piecewise([2, 1], [1.0, 2.0, 3.0]), "ascend"),
        (lambda: xg.schedule.piecewise([2], [1.0]), "one value more"),
        (lambda: xg.schedule.of(1.0), "function of the step"),
        (lambda: xg.schedule.of(lambda step: "a"), "gives 'a'; expected a number"),
        (lambda: xg.schedule.linear(1.0, 2.0, 3)("x"), "takes a step"),
        (lambda: xg.schedule.linear(1.0, 2.0, 3).step(-1), "n is >= 0"),
        (lambda: xg.schedule.linear(1.0, 2.0, 3).load_state_dict({}), "'count'"),
        (lambda: xg.schedule.from_dict({"schedule": "lineal"}), "did you mean 'linear'"),
    ],
)
def test_what_is_no_schedule_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(xg.MultigradError, match=message):
        make()


def test_a_schedule_that_gives_nan_says_for_whom_and_stays_where_it_is() -> None:
    schedule = xg.schedule.of(lambda step: math.nan if step == 2 else 1.0)
    act = xg.activation("Heaviside", "triangular", {"width": schedule})
    schedule.step()
    with pytest.raises(xg.MultigradError, match=r"'width' of rule 'triangular', at step 2, .*nan"):
        schedule.step()
    assert schedule.count == 1
    act(X)


def test_a_schedule_that_leaves_the_params_range_is_refused_at_the_step() -> None:
    schedule = xg.schedule.linear(1.0, -1.0, steps=4)
    act = xg.activation("Heaviside", "triangular", {"width": schedule})
    with pytest.raises(xg.MultigradError, match=r"'width' is >= 0, got -0.5 .* at step 3"):
        schedule.step(3)
    assert schedule.count == 0
    del act
    schedule.step(3)  # nobody has it any more
    with pytest.raises(xg.MultigradError, match=r"'width' is >= 0, got -0.5 .* at step 3"):
        xg.activation("Heaviside", "triangular", {"width": schedule})(X)


def test_what_holds_numbers_refuses_a_schedule(width: Any) -> None:
    with pytest.raises(xg.RuleError, match="follows a schedule"):
        xg.lower(bound(width), "numpy")
    with pytest.raises(xg.TraceError, match="bound to a number that moves"):
        bound(width).to_dict()


def test_a_word_or_a_count_is_no_number_that_moves(width: Any) -> None:
    @xg.register("counts_in_schedules")
    def counts(ctx: Any, grad_out: Any, tin: Any, times: int = 2) -> Any:
        return grad_out * times

    with pytest.raises(xg.RuleError, match="'times' is an int, got Schedule"):
        xg.activation("Heaviside", counts, {"times": width})


def test_code_that_looks_at_the_number_is_captured_for_each(width: Any) -> None:
    @xg.register("looks_in_schedules")
    def looks(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return grad_out * 2.0 if width > 1.2 else grad_out * 3.0

    act = xg.activation("Heaviside", looks, {"width": width})
    for _ in range(3):
        wanted = 2.0 if width.value > 1.2 else 3.0
        np.testing.assert_allclose(xg.vjp(act, X)[1](ONES)[0], wanted * ONES)
        width.step(2)


@pytest.mark.skipif(not is_installed("optax"), reason="optax is not installed")
def test_exponential_is_optaxs() -> None:
    import optax

    theirs = optax.exponential_decay(2.0, 3, 0.9, 1, staircase=True, end_value=1.2)
    ours = xg.schedule.exponential(2.0, 0.9, every=3, staircase=True, end=1.2, begin=1)
    np.testing.assert_allclose(
        [ours(i) for i in range(25)], [theirs(i) for i in range(25)], rtol=1e-6
    )


def test_a_function_for_a_number_is_told_of_schedules() -> None:
    with pytest.raises(
        xg.RuleError, match=r"'width' is a float, got the function .*xg\.schedule\.of"
    ):
        xg.use("triangular", {"width": make_width}).__enter__()


def make_width(step: int) -> float:
    return 1.0 / (1 + step)
