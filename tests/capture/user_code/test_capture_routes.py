"""How a function in a rule is reached: by a protocol, by substitution, by its jaxpr, or not at
all.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

from ...harness.capturing import find_rule
from ...written.unseen import Unseen

HERE = Path(__file__).name
G = np.linspace(-1.3, 1.9, 12).reshape(3, 4).astype(np.float32)
X = np.linspace(-2.3, 2.9, 12).reshape(3, 4).astype(np.float32)


def as_written(function: Callable[..., Any], grad_out: Any, tin: Any) -> Any:
    """Run the user's function in jax, without us."""
    import jax.numpy as jnp

    return np.asarray(function(None, jnp.asarray(grad_out), jnp.asarray(tin)))


def origin_of(rule: xg.Rule) -> str:
    """Return what `xg.show` says behind the header, without the name of the rule."""
    return xg.show(rule).splitlines()[0].partition("  # ")[2]


# --- the jaxpr ------------------------------------------------------------------------------------


@pytest.mark.needs("jax")
def test_a_jaxpr_serves_every_shape_of_its_rank_in_each_dtype(
    captured: Any, jax: Any, jnp: Any
) -> None:
    traced = Unseen()

    def rule(ctx: Any, g: Any, x: Any) -> Any:
        traced.append(1)
        centered = jax.vmap(lambda row: row - jnp.mean(row))(x)
        return g * centered + jnp.size(x)

    made, dtypes = captured(rule), (np.float16, np.float32, np.float64)
    for dtype in dtypes:
        made(None, G.astype(dtype), X.astype(dtype))
    before = len(traced)
    for dtype in dtypes:
        x = np.arange(10, dtype=dtype).reshape(2, 5)
        given = made(None, np.ones_like(x), x)
        assert given.dtype == dtype
        np.testing.assert_array_equal(given, x - x.mean(1, keepdims=True) + 10)
    assert len(traced) == before
    made(None, np.ones((2, 2, 2), np.float32), np.ones((2, 2, 2), np.float32))
    assert len(traced) > before


@pytest.mark.needs("jax")
def test_a_tensor_that_a_jaxpr_makes_has_the_shape_of_what_is_given(
    captured: Any, jax: Any, jnp: Any
) -> None:
    traced = Unseen()

    def rule(ctx: Any, g: Any, x: Any) -> Any:
        traced.append(1)
        return g + jax.vmap(lambda row: jnp.cumsum(jnp.full_like(row, jnp.max(row))))(x)

    made = captured(rule)
    made(None, G, X)
    before = len(traced)
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    given = made(None, np.zeros_like(x), x)
    np.testing.assert_array_equal(given, np.outer([4, 9], np.arange(1, 6)))
    assert len(traced) == before


@pytest.mark.needs("jax")
def test_a_jaxpr_is_imported_while_jax_compiles(captured: Any, jax: Any, jnp: Any) -> None:
    def rule(ctx: Any, g: Any, x: Any) -> Any:
        return g * jax.vmap(jnp.cumsum)(x) * jnp.asarray([1.0, 2.0, 3.0, 4.0])

    act = xg.activation("ReLU", captured(rule))
    given = jax.jit(jax.grad(lambda x: jnp.sum(act(x))))(jnp.asarray(X))
    np.testing.assert_allclose(given, np.cumsum(X, 1) * [1, 2, 3, 4], rtol=1e-5)


# --- what cannot be captured ----------------------------------------------------------------------


@pytest.mark.needs("jax")
def test_a_value_as_a_number_stays_an_error(captured: Any, jnp: Any) -> None:
    def rule(ctx: Any, g: Any, x: Any) -> Any:
        return g * max(0.0, float(jnp.sum(x)))

    line = inspect.getsourcelines(rule)[1] + 1
    with pytest.raises(
        xg.TraceError, match=rf"{HERE}:{line}\) turns a tensor into a Python number"
    ):
        captured(rule)(None, G, X)


@pytest.mark.needs("jax")
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("jax.numpy.fft.hfft", lambda jax, x: jax.numpy.fft.hfft(x, x.shape[-1])),
        ("jax.numpy.linalg.lstsq", lambda jax, x: jax.numpy.linalg.lstsq(x, x)[0]),
        ("jax.numpy.nonzero", lambda jax, x: x * jax.numpy.nonzero(x)[0][0]),
    ],
)
def test_a_name_without_an_op_is_named_with_its_place_and_a_way_out(
    name: str, call: Callable[..., Any], captured: Any, jax: Any
) -> None:
    def rule(ctx: Any, g: Any, x: Any) -> Any:
        return g * call(jax, x)

    with pytest.raises(
        xg.TraceError,
        match=rf"'under test' \({HERE}:\d+\) calls {name}, which is not captured.*xg.xp",
    ):
        captured(rule)(None, G, X)


@pytest.mark.needs("jax")
def test_a_draw_of_jax_says_how_rules_draw(captured: Any, jax: Any) -> None:
    def rule(ctx: Any, g: Any, x: Any) -> Any:
        return g + jax.random.normal(jax.random.key(0), x.shape)

    with pytest.raises(xg.TraceError, match=r"calls jax.random.key.*xp.randn_like\(grad_out\)"):
        captured(rule)(None, G, X)


@pytest.mark.needs("jax")
def test_what_no_route_reaches_runs_as_it_is_on_jax_with_a_warning(
    registered: Any, jnp: Any
) -> None:
    def rule(ctx: Any, g: Any, x: Any) -> Any:
        return g * jnp.fft.hfft(jnp.fft.ihfft(x), x.shape[-1])

    with pytest.warns(xg.NativeRuleWarning, match="jax.numpy.fft.ihfft, which is not captured"):
        given = registered(rule)(None, jnp.asarray(G), jnp.asarray(X))
    np.testing.assert_allclose(given, G * X, rtol=1e-4, atol=1e-5)


# --- which library a name belongs to --------------------------------------------------------------


@pytest.mark.needs("jax")
def test_a_users_class_and_module_keep_their_own_state(captured: Any, jnp: Any) -> None:
    class Counter:
        calls = 0

        def __init__(self) -> None:
            self.seen: list[Any] = []

        def scaled(self, x: Any) -> Any:
            self.calls += 1
            self.seen.append(x.shape)
            return jnp.multiply(x, 2.0)

    counter = Counter()

    def rule(ctx: Any, g: Any, x: Any) -> Any:
        assert isinstance(counter, Counter)
        return counter.scaled(g)

    with pytest.warns(xg.NativeRuleWarning):  # noqa: PT031
        made = xg.register("under test", override=True)(rule)
        given = made(None, jnp.asarray(G), jnp.asarray(X))  # in its own framework
    np.testing.assert_array_equal(given, G * 2)
    assert (counter.calls, counter.seen) == (1, [G.shape]) and type(counter) is Counter


@pytest.mark.needs("jax")
def test_functions_keep_working_on_arrays_that_are_no_symbols(captured: Any, jnp: Any) -> None:
    def rule(ctx: Any, g: Any, x: Any) -> Any:
        kernel = jnp.cumsum(jnp.asarray([0.5, 0.25, 0.25, 1.0]))
        assert float(kernel[-1]) == 2.0 and jnp.where(kernel > 1, 1, 0).sum() == 1
        return g * jnp.sort(kernel)

    np.testing.assert_allclose(captured(rule)(None, G, X), G * [0.5, 0.75, 1.0, 2.0])


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (lambda ctx, g, x: g * xp.tanh(x), "written in xg.xp"),
        (lambda ctx, g, x: g * np.tanh(x), "written in numpy; captured by protocol"),
        (lambda ctx, g, x: g * x * np.pi, "written in numpy"),
    ],
)
def test_show_says_which_dialect_and_which_route(rule: Any, said: str) -> None:
    assert origin_of(rule) == said


@pytest.mark.needs("jax")
def test_show_says_so_of_jax_and_of_mixed_rules(captured: Any, jnp: Any) -> None:
    def substituted(ctx: Any, g: Any, x: Any) -> Any:
        return g * jnp.tanh(x)

    def mixed(ctx: Any, g: Any, x: Any) -> Any:
        return jnp.tanh(x) * np.sqrt(g)

    assert origin_of(captured(substituted)) == "written in jax.numpy; captured by substitution"
    shown = origin_of(captured(mixed))
    assert shown == "written in jax.numpy and numpy; captured by substitution and protocol"


@pytest.mark.needs("jax")
def test_show_of_a_rule_with_one_graph_per_rank_is_that_of_its_last_use(
    captured: Any, jax: Any
) -> None:
    def squared(ctx: Any, g: Any, x: Any) -> Any:
        return jax.vjp(jax.numpy.square, x)[1](g)[0]

    rule = captured(squared)
    assert origin_of(rule).endswith("one graph per ndim of its input, this one for ndim 2")
    rule(None, G, X)
    assert origin_of(rule) == (
        "written in jax.numpy; captured by import of its jaxpr; "
        "one graph per ndim of its input, this one the last"
    )


@pytest.mark.needs("torch")
def test_show_says_so_of_torch(captured: Any, torch: Any) -> None:
    def rule(ctx: Any, g: Any, x: Any) -> Any:
        return g * torch.tanh(x)

    assert origin_of(captured(rule)) == "written in torch; captured by protocol"


@pytest.mark.needs("jax")
def test_no_warning_where_a_jaxpr_can_be_imported(registered: Any) -> None:
    rule = registered(find_rule("rules_by_jaxpr", "pulled_back"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = rule(None, G, X)
    assert type(given) is np.ndarray


@pytest.mark.needs("jax", "torch")
def test_the_same_name_keeps_each_dialects_default(captured: Any, jnp: Any, torch: Any) -> None:
    def in_jax(ctx: Any, g: Any, x: Any) -> Any:
        return g * jnp.std(x) + x.std()

    def in_torch(ctx: Any, g: Any, x: Any) -> Any:
        return g * torch.std(x) + x.std()

    for rule, n in ((in_jax, 0), (in_torch, 1)):
        given = captured(rule)(None, G, X)
        np.testing.assert_allclose(given, (G + 1) * np.std(X, ddof=n), rtol=1e-5)
