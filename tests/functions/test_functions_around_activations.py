"""A Function or a rule that contains an activation, a name or another Function follows what these
mean at each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.trace.lookups import is_in_force
from multigrad_conformance.under_test import pull

from ..harness.models.surrogates import triangle
from ..harness.traced import OPTIONS, Traced

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([-1.25, -0.75, -0.25, 0.25, 0.75, 1.25], np.float32)
ZERO = np.zeros_like(X)


WINDOW = (np.abs(X) <= 0.5).astype(np.float32)


@pytest.fixture
def scaled() -> Callable[[float], None]:
    """Register a rule that scales by a number, as often as asked; it is gone after the test."""

    def register(number: float) -> None:
        @xg.register("scaled by a number", override=True)
        def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
            return grad_out * number

    register(2.0)
    return register


def holding(act: Callable[[Tensor], Tensor]) -> list[Callable[[Tensor], Tensor]]:
    """Return Functions that hold an activation: by their own derivative, at one and at two
    levels.
    """
    inner = xg.function(lambda x: act(x) * 1.0)
    return [inner, xg.function(lambda x: inner(x) + 0.0)]


def pulled(f: Callable[[Tensor], Tensor], backend: Any) -> Array:
    return pull(backend, f, (X,))[1][0]


def test_an_activation_is_captured_as_a_forward(backend: Any) -> None:
    bound = xg.get("triangular").under("Heaviside").bind({"width": 2.0})
    for given in (xg.activation("Heaviside", "triangular", {"width": 2.0}), bound):
        f = xg.function(given)
        np.testing.assert_allclose(pulled(f, backend), triangle(X, 2.0), rtol=1e-6)
        assert "heaviside" in xg.show(xg.function(given))  # not called before
        loaded = xg.from_dict(f.to_dict())
        np.testing.assert_allclose(pulled(loaded, backend), triangle(X, 2.0), rtol=1e-6)
    assert xg.function(xg.activation("Heaviside")).name == "Heaviside"
    rest = xg.function(xg.get("triangular").under("Heaviside").bind())
    assert [*rest.parameters.parameters] == ["tin", "width"]


def test_the_rule_of_use_acts_in_a_function_that_holds_an_activation(backend: Any) -> None:
    act = xg.activation("Heaviside")
    inner, outer = holding(act)
    for f in (inner, outer, xg.function(lambda x: inner(x) * 2.0 - act(x))):
        np.testing.assert_array_equal(pulled(f, backend), ZERO)
        for _ in range(2):
            with xg.use("triangular"):
                np.testing.assert_allclose(pulled(f, backend), triangle(X), rtol=1e-6)
            with xg.use("rectangular"):
                np.testing.assert_array_equal(pulled(f, backend), WINDOW)
            with xg.use("triangular", {"width": 2.0}):
                np.testing.assert_allclose(pulled(f, backend), triangle(X, 2.0), rtol=1e-6)
            np.testing.assert_array_equal(pulled(f, backend), ZERO)


def test_a_number_given_as_a_tensor_acts_in_a_function(backend: Any) -> None:
    f, _ = holding(xg.activation("Heaviside"))
    for width in (0.5, 2.0):
        given = backend.array(np.float32(width))
        with xg.use("triangular", {"width": given}):
            np.testing.assert_allclose(pulled(f, backend), triangle(X, width), rtol=1e-6)


def test_a_use_inside_of_the_function_wins_over_the_one_around_it(backend: Any) -> None:
    act = xg.activation("Heaviside")

    def forward(x: Tensor) -> Tensor:
        with xg.use("triangular"):
            return act(x) * 1.0

    f = xg.function(forward)
    for rule in ("rectangular", "triangular", "rectangular"):
        with xg.use(rule):
            np.testing.assert_allclose(pulled(f, backend), triangle(X), rtol=1e-6)
    assert len(f.captures.variants) == 1


def test_a_use_of_parameters_inside_of_the_function_leaves_activations_to_the_one_around(
    backend: Any,
) -> None:
    act = xg.activation("Heaviside")

    def forward(x: Tensor) -> Tensor:
        with xg.use("scale", {"s": 3.0}, scope="params"):
            return act(x) * 1.0

    f = xg.function(forward)
    with xg.use("triangular"):
        np.testing.assert_allclose(pulled(f, backend), triangle(X), rtol=1e-6)
    with xg.use("rectangular"):
        np.testing.assert_array_equal(pulled(f, backend), WINDOW)


def test_a_rule_registered_anew_acts_in_functions_that_name_it(backend: Any, scaled: Any) -> None:
    own = xg.activation("Linear", rule="scaled by a number")
    composed = xg.activation("Linear", rule=xg.compose("scaled by a number", "scale"))
    named = xg.function(lambda x: x * 1.0, lambda g, x: xg.get("scaled by a number")(None, g, x))

    def inside(x: Tensor) -> Tensor:
        with xg.use("scaled by a number"):
            return plain(x) * 1.0

    plain = xg.activation("Linear")
    functions = [*holding(own), *holding(composed), named, xg.function(inside)]
    for number in (2.0, 3.0, 2.0):
        scaled(number)
        for f in functions:
            np.testing.assert_array_equal(pulled(f, backend), np.full_like(X, number))


def test_a_rule_that_holds_an_activation_or_a_name_follows_both(backend: Any, scaled: Any) -> None:
    act = xg.activation("Linear")
    inner, _ = holding(act)

    def by_activation(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * act(tin)

    def by_function(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return inner(grad_out)

    def by_name(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return xg.get("scaled by a number")(ctx, grad_out, tin)

    for rule in (by_name, xg.compose(by_name, by_name), xg.compose(by_name, by_function)):
        layer = xg.activation("Linear", rule=rule)
        times = 2 if rule is not by_name and rule.parts[1].function is by_name else 1
        for number in (2.0, 3.0, 2.0):
            scaled(number)
            np.testing.assert_array_equal(pulled(layer, backend), np.full_like(X, number**times))
    layer = xg.activation("Linear", rule=by_activation)
    np.testing.assert_array_equal(pulled(layer, backend), X)
    with xg.use("triangular"):
        np.testing.assert_array_equal(pulled(layer, backend), X)


def compiled_gradient(
    backend: Any, f: Callable[[Tensor], Tensor], jit: bool
) -> Callable[[], Array]:
    """Return the gradient of `f(x).sum()`, compiled by the framework or by `xg.jit`."""
    options = OPTIONS.get(backend.name, {})
    call = xg.jit(f, backend.name, **options) if jit else Traced(backend, f, is_ours=False).fn
    return lambda: backend.vjp(call, X, np.ones(X.shape, np.float32))[1]


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "xg.jit"])
def test_compiled_code_that_holds_such_a_function_follows_or_is_refused(
    backend: Any, jit: bool, scaled: Any
) -> None:
    if backend.name == "numpy":
        pytest.skip("NumPy has no compiler")
    if backend.name == "mlx" and not jit:
        pytest.skip("mx.compile has no guard: test_mlx.py has what is refused")
    act, named = xg.activation("Heaviside"), xg.activation("Linear", rule="scaled by a number")
    inner, outer = holding(act)
    by_name = xg.function(lambda x: named(x) * 1.0)

    def both(x: Tensor) -> Tensor:
        return inner(x) + outer(x) + by_name(x)

    grad = compiled_gradient(backend, both, jit)
    steps: list[tuple[float, str, dict[str, float], Array]] = [
        (2.0, "triangular", {}, triangle(X)),
        (2.0, "rectangular", {}, WINDOW),
        (2.0, "triangular", {"width": 2.0}, triangle(X, 2.0)),
        (3.0, "triangular", {}, triangle(X)),
    ]
    for number, rule, params, expected in steps:
        scaled(number)
        with xg.use(rule, params):
            try:
                found = grad()
            except xg.StaleTraceError:
                assert backend.name == "tensorflow" and not jit and grad is not None
                found = compiled_gradient(backend, both, jit)()
        np.testing.assert_allclose(found, 2 * expected + number, rtol=1e-6)


def test_what_a_name_means_costs_no_second_capture(backend: Any, scaled: Any) -> None:
    runs = []
    for rule in ("scaled by a number", xg.get("scaled by a number")):
        own = xg.activation("Linear", rule=rule)

        def f(x: Tensor, own: Any = own) -> Tensor:
            return own(x) * x

        function = xg.function(f)
        np.testing.assert_array_equal(pulled(function, backend), 3 * X)
        runs.append(len(function.captures.variants))
    assert runs[0] == runs[1]


def test_functions_that_read_no_rule_are_captured_once_under_all(backend: Any) -> None:
    own = xg.activation("Heaviside", rule=xg.get("triangular"))
    f, g = xg.function(lambda x: own(x) * 1.0), xg.function(lambda x: x * x)
    for rule in ("rectangular", "triangular"):
        with xg.use(rule):
            np.testing.assert_allclose(pulled(f, backend), triangle(X), rtol=1e-6)
            np.testing.assert_array_equal(pulled(g, backend), 2 * X)
    assert len(f.captures.variants) == len(g.captures.variants) == 1
    assert not any(map(is_in_force, f.captures.facts)) and not g.captures.facts


def test_check_and_parity_take_the_rule_in_force() -> None:
    f, _ = holding(xg.activation("Heaviside"))
    for rule, expected in (("triangular", triangle(X)), ("rectangular", WINDOW)):
        with xg.use(rule):
            assert xg.parity(f, X.astype(np.float64), backends=["numpy"]).ok
            np.testing.assert_allclose(xg.vjp(f, X)[1](np.ones_like(X))[0], expected, rtol=1e-6)


def test_what_is_saved_is_the_function_under_the_rule_in_force(tmp_path: Any) -> None:
    f, _ = holding(xg.activation("Heaviside"))
    gradient = lambda f: xg.vjp(f, X)[1](np.ones_like(X))[0]
    with xg.use("triangular"):
        gradient(f)
        triangular = xg.from_dict(f.to_dict())
    with xg.use("rectangular"):
        xg.save(f, tmp_path / "f.json")
        source = xg.source(f, "numpy")
    loaded = xg.load(tmp_path / "f.json")
    for rule in ("scale", "triangular"):
        with xg.use(rule):  # a document is data: it follows nothing
            np.testing.assert_allclose(gradient(triangular), triangle(X), rtol=1e-6)
            np.testing.assert_array_equal(gradient(loaded), WINDOW)
    with xg.use("rectangular"):
        assert xg.source(f, "numpy") == source


def test_a_random_rule_under_a_key_is_refused_in_a_function_also_once_captured() -> None:
    act = xg.activation("Linear", rule="full_jam")
    f = xg.function(lambda x: act(x) * 1.0, native=False)
    f(X)
    with xg.use("scale", key=7), pytest.raises(xg.TraceError, match="under a key"):
        f(X)
    f(X)


@pytest.mark.needs("jax")
def test_a_gradient_taken_of_an_activation_in_jax_follows_the_rule_in_force() -> None:
    import jax
    import jax.numpy as jnp

    act, x = xg.activation("Heaviside"), jnp.array([0.25, -0.5])

    def slope(x: Any) -> Any:
        return jax.grad(lambda x: act(x).sum())(x)

    @xg.register("slope of an activation")
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * slope(tin)

    ways: dict[str, Any] = {
        "forward": xg.function(lambda x: slope(x)),
        "backward": lambda x: jax.grad(lambda x: reading(x).sum())(x),
        "rule": lambda x: jax.grad(lambda x: ruled(x).sum())(x),
    }
    reading = xg.function(lambda x: x * 2, lambda g, x: g * slope(x))
    ruled = xg.activation("ReLU", rule)
    for name in ("triangular", "rectangular", "triangular"):
        with xg.use(name):
            expected = slope(x)
            for way, f in ways.items():
                np.testing.assert_array_equal(f(x), expected, err_msg=way)


@pytest.mark.needs("jax")
def test_it_follows_the_meaning_of_its_own_rules_name() -> None:
    import jax
    import jax.numpy as jnp

    xg.register("of a name")(lambda ctx, grad_out, tin: 2 * grad_out)
    act, x = xg.activation("ReLU", "of a name"), jnp.array([0.25, -0.5])
    f = xg.function(lambda x: jax.grad(lambda x: act(x).sum())(x))
    np.testing.assert_array_equal(f(x), [2, 2])
    xg.register("of a name", override=True)(lambda ctx, grad_out, tin: 7 * grad_out)
    np.testing.assert_array_equal(f(x), [7, 7])
