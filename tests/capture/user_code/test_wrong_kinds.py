"""Things of a wrong kind where a tensor, a function or a folder is expected: told, never computed
with as if they were right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import suggest

MATRIX = np.full((2, 2), 0.5).view(np.matrix)
MASKED = np.ma.array([0.5, 0.5], mask=[False, True])
TRIANGULAR = xg.get("triangular")
SPIKE = xg.activation("Heaviside", "triangular")


def double(x: Any) -> Any:
    return x * 2


CALLS: list[tuple[str, Callable[[Any], Any]]] = [
    ("rule", lambda x: TRIANGULAR(None, x, x)),
    ("factor", TRIANGULAR.factor),
    ("activation", SPIKE),
    ("vjp", lambda x: xg.vjp(SPIKE, x)),
    ("Function", xg.function(double)),
    ("estimator", xg.estimators.ste_sign),
    ("gradients", lambda x: xg.apply_to_gradients([x], "clip_norm")),
]


@pytest.mark.parametrize(
    ("array", "said"),
    [(MATRIX, "product of matrices; give numpy.asarray"), (MASKED, "its mask would be lost")],
    ids=["matrix", "masked"],
)
@pytest.mark.parametrize("call", [call for _, call in CALLS], ids=[name for name, _ in CALLS])
def test_arrays_whose_operators_mean_something_else_are_refused(
    call: Callable[[Any], Any], array: Any, said: str
) -> None:
    with pytest.raises(xg.GradientError, match=said):
        call(array)


def test_a_number_is_no_tensor_for_a_rule() -> None:
    with pytest.raises(xg.GradientError, match=r"got float 0\.5; expected a tensor: numpy\.array"):
        TRIANGULAR(None, np.ones(1), 0.5)
    with pytest.raises(xg.GradientError, match=r"got int 1; expected a tensor"):
        TRIANGULAR(None, 1, np.ones(1))
    assert TRIANGULAR(None, np.float64(1.0), np.float64(0.5)) == 0.5


def test_use_decorates_no_class_as_its_methods_run_later() -> None:
    with pytest.raises(xg.RuleError, match=r"cannot decorate the class 'Net'.*Decorate the method"):

        @xg.use("triangular")
        class Net:
            pass


def test_use_decorates_functions_alone() -> None:
    decorate: Any = xg.use("triangular")
    with pytest.raises(xg.RuleError, match="use decorates a function, got str 'rectangular'"):
        decorate("rectangular")


def test_a_use_says_what_it_puts_in_force() -> None:
    assert repr(xg.use("noise", {"sigma": 0.1}, "params", key=3)) == (
        "use('noise', params={'sigma': 0.1}, scope='params', key=3)"
    )
    assert repr(xg.use(TRIANGULAR)) == "use('triangular')"


@pytest.mark.parametrize("kind", [np.int32, np.uint32, np.int64])
def test_a_key_may_be_an_int_of_numpys(kind: Any) -> None:
    def draw(key: Any) -> Any:
        with xg.use("noise", key=key):
            return xg.apply_to_gradients(np.zeros(3))

    np.testing.assert_array_equal(draw(kind(5)), draw(5))


def test_vjp_of_no_function_says_what_it_takes() -> None:
    wrong: Any = "triangular"
    with pytest.raises(xg.RuleError, match="expected a function, got str"):
        xg.vjp(wrong, np.ones(2))


@pytest.mark.parametrize("ask", [xg.check, xg.parity])
def test_an_activation_is_checked_with_one_tensor(ask: Callable[..., Any]) -> None:
    with pytest.raises(xg.RuleError, match=r"takes a tensor, got a list: give numpy\.array"):
        ask(SPIKE, [1.0, 2.0])
    with pytest.raises(xg.RuleError, match="takes one tensor, got 2 inputs"):
        ask(SPIKE, np.ones(2), np.ones(2))


def test_of_names_that_differ_by_case_the_nearer_one_is_suggested() -> None:
    known = ["Activation", "activation"]
    assert "'Activation'" in suggest("Activatoin", known)
    assert "'activation'" in suggest("activatoin", known)
    assert "'activation'" in suggest("activatoin", known[::-1])
    assert "'Activation'" in suggest("Activatoin", known[::-1])
