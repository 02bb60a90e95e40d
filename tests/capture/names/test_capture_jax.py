"""Rules written in `jax.numpy`: captured as they stand, they give JAX's numbers on every
backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.capturing import inputs, rules_in
from ...written.unseen import Unseen

pytestmark = [
    pytest.mark.needs("jax"),
    # jax says that without its 64-bit mode float64 is float32.
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64"),
]

RULES = rules_in("rules_in_jax")
# They call a function of jax's that is captured by its jaxpr.
BY_JAXPR = "activations along_axes log_tailed partial_of_a_function rounding running_sums"


def find_rule(name: str) -> Callable[..., Any]:
    from ...written import rules_in_jax

    return getattr(rules_in_jax, name)


def as_written(function: Callable[..., Any], grad_out: Any, tin: Any) -> Any:
    """Run the user's function in jax, without us."""
    import jax.numpy as jnp

    return np.asarray(function(None, jnp.asarray(grad_out), jnp.asarray(tin)))


@pytest.mark.parametrize("name", RULES)
def test_rule_gives_jaxs_numbers(name: str, backend: Any, captured: Callable[..., xg.Rule]) -> None:
    function = find_rule(name)
    tin, grad_out = inputs(np.float32)
    wanted = as_written(function, grad_out, tin)
    rule = captured(function)
    given = backend.numpy(rule(None, backend.array(grad_out), backend.array(tin)))
    assert given.dtype == np.float32 and given.shape == tin.shape
    np.testing.assert_allclose(given, wanted, rtol=4e-6, atol=4e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("name", RULES)
def test_rule_gives_jaxs_numbers_in_float64(name: str, captured: Callable[..., xg.Rule]) -> None:
    import jax

    function = find_rule(name)
    tin, grad_out = inputs(np.float64)
    with jax.enable_x64(True):
        wanted = as_written(function, grad_out, tin)
        given = captured(function)(None, grad_out, tin)  # on NumPy
    assert wanted.dtype == given.dtype == np.float64 and given.shape == tin.shape
    np.testing.assert_allclose(given, wanted, rtol=1e-13, atol=1e-13 * np.abs(wanted).max())


@pytest.mark.parametrize("name", RULES)
def test_rule_is_captured_by_the_way_meant(name: str, captured: Callable[..., xg.Rule]) -> None:
    tin, grad_out = inputs(np.float32)
    rule = captured(find_rule(name))
    rule(None, grad_out, tin)
    try:
        shown = xg.show(rule)
    except xg.MultigradError as error:
        assert "one graph per" in str(error)
    else:
        assert "written in jax.numpy" in shown.splitlines()[0]
        assert ("jaxpr" in shown) is (name in BY_JAXPR.split())


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize("name", RULES[::5])
def test_rule_acts_under_an_activation(
    name: str, backend: Any, captured: Callable[..., xg.Rule]
) -> None:
    function = find_rule(name)
    tin, grad_out = inputs(np.float32)
    wanted = as_written(function, grad_out, tin)
    y, grad_in = backend.vjp(xg.activation("Heaviside", captured(function)), tin, grad_out)
    np.testing.assert_array_equal(y, tin > 0)
    np.testing.assert_allclose(grad_in, wanted, rtol=4e-6, atol=4e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.usefixtures("unproven")
def test_one_capture_serves_every_rank_and_dtype(
    shape: tuple[int, ...], dtype: Any, captured: Callable[..., xg.Rule]
) -> None:
    import jax.numpy as jnp

    captures = Unseen()

    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 2.0) -> Any:
        captures.append(1)
        return grad_out * jnp.exp(-jnp.square(tin) / width) / jnp.size(tin)

    made = captured(rule)
    made(None, np.ones(3, np.float32), np.ones(3, np.float32))
    x = np.full(shape, 0.5, dtype)
    given = made(None, x, x)
    assert given.dtype == dtype and given.shape == shape
    if x.size:
        np.testing.assert_allclose(given, 0.5 * np.exp(-0.125) / x.size, rtol=1e-3)
    assert len(captures) == 1
