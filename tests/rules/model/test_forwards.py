"""Forwards: the steps that quantizers need, the names people type, and functions in the place of a
name.
"""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

X = np.array([-2.5, -1.5, -0.5, -0.04, -0.0, 0.0, 0.04, 0.5, 1.5, 2.5, np.inf, np.nan], np.float32)
ONES = np.ones_like(X)
FINITE = X[:-2]


# --- the steps ------------------------------------------------------------------------------------

STEPS = {
    "Sign": np.sign,
    "Round": np.rint,  # ties to even: 0.5 -> 0, 1.5 -> 2, 2.5 -> 2
    "Floor": np.floor,
    "Ternary": lambda x: np.where(np.abs(x) <= 0.05, 0.0, np.sign(x)),
    "Ternary(threshold=1.5)": lambda x: np.where(np.abs(x) <= 1.5, 0.0, np.sign(x)),
    "Ternary(threshold=0)": np.sign,
    "Sign(at_zero=1.0)": lambda x: np.where(x == 0, 1.0, np.sign(x)),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_its_values_and_no_gradient_without_a_rule(backend: Any, name: str) -> None:
    y, (grad,) = pull(backend, xg.activation(name), (X,))
    np.testing.assert_array_equal(y, STEPS[name](X))
    np.testing.assert_array_equal(grad, 0 * ONES)


@pytest.mark.parametrize("name", STEPS)
def test_under_a_rule_a_step_has_the_rules_gradient(backend: Any, name: str) -> None:
    y, (grad,) = pull(backend, xg.activation(name, "clipped_straight_through"), (FINITE,))
    np.testing.assert_array_equal(y, STEPS[name](FINITE))
    np.testing.assert_array_equal(grad, (np.abs(FINITE) <= 1) * 1.0)


def test_a_number_of_a_step_is_a_keyword_or_part_of_the_name() -> None:
    assert repr(xg.activation("Ternary", threshold=0.1)) == "activation('Ternary(threshold=0.1)')"
    assert repr(xg.activation("ternary( threshold = .1 )")) == repr(
        xg.activation("Ternary", threshold=0.1)
    )
    assert repr(xg.activation("Ternary", threshold=0.05)) == "activation('Ternary')"
    assert repr(xg.activation("Sign(at_zero=1)", at_zero=0)) == "activation('Sign')"
    for bad, message in (
        ({"forward": "Sign", "threshold": 0.1}, "'Sign' takes no threshold"),
        ({"forward": "Ternary", "at_zero": 1.0}, "'Ternary' takes no at_zero"),
        ({"forward": "Ternary", "threshold": -0.1}, "threshold is >= 0, got -0.1"),
        ({"forward": "Ternary(threshold=nan)"}, "finite number"),
        ({"forward": np.sign, "at_zero": 1.0}, "leave at_zero= out"),
    ):
        with pytest.raises(xg.RuleError, match=message):
            xg.activation(**bad)


# --- names ----------------------------------------------------------------------------------------


def test_every_activation_is_listed_once_and_found_by_its_name() -> None:
    names = xg.activations()
    assert len(names) == len(set(names)) == 15
    assert [xg.activation(name.lower()).forward.name for name in names] == names


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("Sigmoid", "Logistic"),
        ("Step", "Heaviside"),
        ("binary_step", "Heaviside"),
        ("Identity", "Linear"),
        ("None", "Linear"),
        ("swish", "SiLU"),
        ("leaky_relu", "LeakyReLU"),
        ("leaky-ReLU", "LeakyReLU"),
        ("soft plus", "Softplus"),
        ("step(at_zero=1)", "Heaviside(at_zero=1.0)"),
    ],
)
def test_a_usual_name_means_the_canonical_one(typed: str, name: str) -> None:
    act = pickle.loads(pickle.dumps(xg.activation(typed, "triangular")))
    assert repr(act) == f"activation({name!r}, rule='triangular')"


def test_an_unknown_name_is_answered_with_a_near_one_and_all() -> None:
    with pytest.raises(xg.RuleError, match=r"'Tarnary'; did you mean 'Ternary'.*Linear, ReLU"):
        xg.activation("Tarnary")
    with pytest.raises(xg.RuleError, match="did you mean 'Sigmoid'"):
        xg.activation("sigmoyd")


# --- a function in the place of a name ------------------------------------------------------------


def soft_sign(x: Any) -> Any:
    return x / (1 + abs(x))


def branches(x: Any) -> Any:
    return x if float(x.sum()) > 0 else -x


def two_of_them(x: Any, step: Any) -> Any:
    return x * step


WRITTEN: dict[str, Callable[[], Any]] = {
    "function": lambda: soft_sign,
    "lambda": lambda: lambda x: x * 2.0,
    "partial": lambda: functools.partial(np.clip, a_min=-1.0, a_max=1.0),
    "ufunc": lambda: np.tanh,
    "Function": lambda: xg.function(xg.xp.sign, lambda grad_out, x: 5.0 * grad_out),
    "Function with defaults": lambda: xg.get("arctan").under("Round"),
    "bound Function": lambda: xg.get("arctan").under("Sign").bind({"alpha": 3.0}),
    "activation": lambda: xg.activation("Round", "arctan"),
}


def values(forward: Any, x: Any) -> Any:
    return np.asarray(forward(x))


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_rule_acts_over_a_function_whose_values_stay(backend: Any, kind: str) -> None:
    forward = WRITTEN[kind]()
    expected = np.maximum(1 - np.abs(FINITE) / 2, 0)
    under = xg.get("triangular").with_params(width=2.0).under(forward)
    for act in (xg.activation(forward, "triangular", {"width": 2.0}), under):
        y, (grad,) = pull(backend, act, (FINITE,))
        np.testing.assert_allclose(y, values(forward, FINITE), rtol=1e-6)
        np.testing.assert_allclose(grad, expected, rtol=1e-6)
    rule = xg.get("triangular").with_params(width=2.0)
    y, grad = backend.vjp(xg.lower(rule, backend.name, forward=forward), FINITE, 1 + 0 * FINITE)
    np.testing.assert_allclose(y, values(forward, FINITE), rtol=1e-6)
    np.testing.assert_allclose(grad, expected, rtol=1e-6)


def test_without_a_rule_its_own_gradient_acts_and_use_decides(backend: Any) -> None:
    own = xg.activation(WRITTEN["Function"]())
    true = xg.activation(soft_sign)
    for act, expected in ((own, 5 + 0 * FINITE), (true, (1 + np.abs(FINITE)) ** -2.0)):
        before = pull(backend, act, (FINITE,))[1][0]
        with xg.use("d(ReLU)"):
            np.testing.assert_array_equal(pull(backend, act, (FINITE,))[1][0], (FINITE > 0) * 1.0)
        for grad in (before, pull(backend, act, (FINITE,))[1][0]):
            np.testing.assert_allclose(grad, expected, rtol=1e-6)


def test_functions_of_one_name_share_nothing(backend: Any) -> None:
    def make(factor: float) -> Any:
        return xg.activation(lambda x: x * factor, "triangular")

    acts = [make(factor) for factor in (2.0, 3.0)]
    for _ in range(2):
        for act, factor in zip(acts, (2.0, 3.0), strict=True):
            y = backend.numpy(act(backend.array(FINITE)))
            np.testing.assert_array_equal(y, FINITE * np.float32(factor))


def test_compiled_code_follows_the_rule_over_a_function(backend: Any) -> None:
    acts = [xg.activation(soft_sign), xg.activation(lambda x: x * 2.0)]

    def both(x: Any) -> Any:
        return acts[0](x) + acts[1](x)

    compiled = both if backend.name == "numpy" else xg.jit(both)
    for rule in (None, "d(ReLU)", None, "triangular"):
        with xg.use(rule) if rule else xg.use("d(Linear)", scope="params"):
            slopes = [pull(backend, run, (FINITE,), FINITE)[1][0] for run in (compiled, both)]
        np.testing.assert_allclose(*slopes, rtol=1e-5)


def test_a_forward_that_needs_its_inputs_rank_has_a_graph_for_each(backend: Any) -> None:
    act = xg.activation(lambda x: xg.xp.flip(x, axis=x.ndim - 1), "triangular")
    for shape in ((4,), (2, 4), (2, 2, 2)):
        x = np.linspace(-0.9, 0.9, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        y, (grad,) = pull(backend, act, (x,))
        np.testing.assert_array_equal(y, x[..., ::-1])
        np.testing.assert_allclose(grad, 1 - np.abs(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda x: xg.xp.sum(x), r"shape \(\) for an input of \(10,\)"),
        (lambda x: x[::2], r"shape \(5,\) for an input of \(10,\)"),
        (lambda x: x > 0, "the dtype bool"),
        (lambda x: (x, x), "gives a tuple"),
    ],
)
def test_under_a_rule_the_output_has_the_inputs_shape_and_dtype(
    backend: Any, forward: Any, message: str
) -> None:
    act = xg.activation(forward, "triangular")
    with pytest.raises(xg.GradientError, match=message):
        act(backend.array(FINITE))


def test_what_is_not_captured_is_said_with_its_line(backend: Any) -> None:
    with pytest.raises(xg.TraceError, match=r"test_forwards\.py:\d+.*forward 'branches' has to be"):
        xg.activation(branches, "triangular")(backend.array(FINITE))
    assert xg.get("triangular")(None, FINITE, FINITE).shape == FINITE.shape  # no fault of the rule


def test_what_is_no_forward_is_refused() -> None:
    for given, message in (
        (3, "a name .* or a function of one tensor, got int 3"),
        (None, "got NoneType"),
        (np.float32, "got the class 'float32': give an object of it"),
        (two_of_them, r"'two_of_them' is to be a function of one tensor, and it needs step"),
        (xg.function(two_of_them), r"needs step: give it values by f\.bind\("),
    ):
        with pytest.raises(xg.RuleError, match=message):
            xg.activation(given)  # type: ignore[arg-type]
        with pytest.raises(xg.RuleError, match=message):
            xg.get("triangular").under(given)  # type: ignore[arg-type]


class Scaled:
    """A function that holds a number."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return x * self.factor


def test_an_object_is_taken_as_it_is_then() -> None:
    scaled = Scaled(2.0)
    act = xg.activation(scaled, "triangular")
    scaled.factor = 3.0
    other = xg.activation(scaled, "triangular")
    np.testing.assert_array_equal(act(FINITE), FINITE * 2)
    np.testing.assert_array_equal(other(FINITE), FINITE * 3)


@pytest.mark.parametrize("kind", [*WRITTEN, "object"])
def test_it_is_copied_and_pickled(kind: str) -> None:
    forward = Scaled(2.0) if kind == "object" else WRITTEN[kind]()
    act = xg.activation(forward, "triangular", {"width": 2.0})
    for other in (copy.deepcopy(act), pickle.loads(pickle.dumps(act))):
        assert repr(other) == repr(act)
        y, back = xg.vjp(other, FINITE)
        np.testing.assert_allclose(y, values(forward, FINITE), rtol=1e-6)
        expected = np.maximum(1 - np.abs(FINITE) / 2, 0)
        np.testing.assert_allclose(back(1 + 0 * FINITE)[0], expected, rtol=1e-6)


def test_it_is_shown_checked_compared_and_saved() -> None:
    act = xg.activation(soft_sign, "triangular")
    assert repr(act) == "activation(soft_sign, rule='triangular')"
    shown = xg.show(act)
    assert shown.startswith("soft_sign(tin: T[...])") and "triangular(grad_out" in shown
    assert "differs from the true derivative" in str(xg.check(act))
    assert xg.check(xg.activation(soft_sign)).ok
    assert xg.parity(act, FINITE, backends=["numpy"]).ok
    assert "def forward(tin)" in xg.source("triangular", "numpy", forward=soft_sign)
    assert xg.source(act, "numpy") == xg.source("triangular", "numpy", forward=soft_sign)
    loaded = xg.from_dict(xg.get("triangular").under(soft_sign).to_dict())
    np.testing.assert_allclose(loaded(FINITE, 1.0), soft_sign(FINITE), rtol=1e-6)


# --- each framework's own -------------------------------------------------------------------------


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_a_frameworks_own_functions_are_forwards(backend: Any) -> None:
    library: Any = pytest.importorskip(backend.name)
    nn = library.nn
    forwards = {
        "torch": lambda: (nn.functional.hardswish, library.sign, nn.Mish(), nn.LeakyReLU(0.2)),
        "jax": lambda: (nn.mish, library.numpy.sign, library.jit(soft_sign), nn.softmax),
        "tensorflow": lambda: (nn.swish, library.sign),
    }[backend.name]()
    options = {"backend": "aot_eager", "fullgraph": True} if backend.name == "torch" else {}
    x = np.linspace(-4, 4, 9, dtype=np.float32)
    for forward in forwards:
        act = xg.activation(forward, "triangular", {"width": 3.0})
        for run in (act, xg.jit(act, **options)):
            y, grad = backend.vjp(run, x, x)
            np.testing.assert_allclose(y, backend.numpy(forward(backend.array(x))), rtol=1e-5)
            np.testing.assert_allclose(grad, x * np.maximum(1 - abs(x) / 3, 0), rtol=1e-5)


@pytest.mark.needs("torch")
def test_a_module_of_torch_is_a_forward_that_an_activation_keeps() -> None:
    torch = pytest.importorskip("torch")
    x, forward = torch.linspace(-4, 4, 9, requires_grad=True), torch.nn.Mish()
    act = xg.Activation(forward)
    for rule, slope in (("triangular", (1 - x.abs()).clamp(min=0)), ("d(ReLU)", x > 0)):
        act.rule = rule
        torch.testing.assert_close(act(x), forward(x))
        torch.testing.assert_close(torch.autograd.grad(act(x).sum(), x)[0], slope.float())
    with pytest.raises(xg.RuleError, match=r"'Linear' holds tensors \(weight, bias\)"):
        xg.Activation(torch.nn.Linear(2, 2))
    with pytest.raises(xg.RuleError, match=r"got the class 'ReLU': give an object of it, ReLU\(\)"):
        xg.Activation(torch.nn.ReLU)
