"""Parameters of rules: which run, which are fixed, what they take, and what an error says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import pytest

import multigrad as xg

from ...written.unseen import Unseen

X = np.array([-1.0, 0.25, 0.75, 2.0], np.float32)
G = np.array([1.0, -2.0, 3.0, 4.0], np.float32)
frameworks = pytest.mark.backends("torch", "jax", "tensorflow")


@pytest.fixture
def captures() -> Unseen:
    """The params of each capture of `every_kind`."""
    return Unseen()


@pytest.fixture
def every_kind(captures: Unseen) -> xg.Rule:
    """A rule with a param of each kind; it notes each capture."""

    def rule(
        ctx: Any,
        grad_out: Any,
        tin: Any,
        width: float = 1,
        slope=2.0,
        n: int = 2,
        flip: bool = False,
        mode: str = "up",
        axes: tuple[int, ...] = (0,),
        anything=None,
    ) -> Any:
        captures.append({"n": n, "flip": flip, "mode": mode, "axes": axes, "anything": anything})
        for _ in range(n):
            grad_out = grad_out * slope
        down = flip or mode == "down"
        return (grad_out - width if down else grad_out + width) * len(axes)

    return xg.register("every_kind", native=False)(rule)


def run(backend: Any, rule: xg.Rule, **params: Any) -> Any:
    return backend.numpy(rule(None, backend.array(G), backend.array(X), **params))


# --- run-time and static --------------------------------------------------------------------------


@pytest.mark.usefixtures("unproven")
def test_floats_change_without_another_capture(
    every_kind: xg.Rule, captures: Unseen, backend: Any
) -> None:
    for width, slope in ((1.0, 2.0), (0.5, 3.0), (2, 1), (np.float32(0.25), np.float64(0.5))):
        given = run(backend, every_kind, width=width, slope=slope)
        np.testing.assert_allclose(given, G * float(slope) ** 2 + float(width), rtol=1e-6)
    assert len(captures) == 1


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({"n": 1}, G * 2 + 1),
        ({"flip": True}, G * 4 - 1),
        ({"mode": "down"}, G * 4 - 1),
        ({"axes": (0, 1, 2)}, (G * 4 + 1) * 3),
        ({"anything": "text"}, G * 4 + 1),
        ({"anything": (1, "a", None)}, G * 4 + 1),
        ({"n": np.int64(3)}, G * 8 + 1),
        ({"flip": 1}, G * 4 - 1),
        ({"flip": np.True_}, G * 4 - 1),
    ],
)
@pytest.mark.usefixtures("unproven")
def test_other_kinds_are_fixed_in_a_capture_of_their_own(
    params: dict[str, Any], wanted: Any, every_kind: xg.Rule, captures: Unseen
) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(every_kind(None, G, X), G * 4 + 1)
        np.testing.assert_array_equal(every_kind(None, G, X, **params), wanted)
    assert len(captures) == 2
    ((name, value),) = params.items()
    assert captures[1][name] == value


@frameworks
@pytest.mark.usefixtures("unproven")
def test_scalar_tensor_is_a_param(every_kind: xg.Rule, captures: Unseen, backend: Any) -> None:
    for width in (0.5, 2.0):
        given = run(backend, every_kind, width=backend.array(np.float32(width)))
        np.testing.assert_allclose(given, G * 4 + width, rtol=1e-6)
    assert len(captures) == 1


def test_array_of_rank_zero_is_a_number(every_kind: xg.Rule) -> None:
    given = every_kind(None, G, X, width=np.array(0.5), n=np.array(1))
    np.testing.assert_array_equal(given, G * 2 + 0.5)


# --- what decides the kind ------------------------------------------------------------------------


def annotated_float(ctx, grad_out, tin, p: float = 1): ...
def annotated_by_text(ctx, grad_out, tin, p: "float" = 1): ...  # noqa: UP037
def optional(ctx, grad_out, tin, p: float | None = None): ...
def optional_of_typing(ctx, grad_out, tin, p: Optional[float] = None): ...  # noqa: UP045
def none_for_a_float(ctx, grad_out, tin, p: float = None): ...  # noqa: RUF013
def float_default(ctx, grad_out, tin, p=1.0): ...
def no_default(ctx, grad_out, tin, p): ...
def none_default(ctx, grad_out, tin, p=None): ...
def annotated_int(ctx, grad_out, tin, p: int = 1): ...
def int_default(ctx, grad_out, tin, p=1): ...
def tuple_default(ctx, grad_out, tin, p=(1, 2)): ...


FLOAT, INT, NONE = 0.5, 3, None
KINDS: list[tuple[Callable[..., Any], Any, type]] = [
    # the rule, the value given, what the rule gets: a symbol for what runs, else the value itself
    (annotated_float, FLOAT, float),
    (annotated_float, INT, float),
    (annotated_by_text, INT, float),
    (optional, FLOAT, float),
    (optional, INT, float),
    (optional, NONE, type(None)),
    (optional_of_typing, INT, float),
    (optional_of_typing, NONE, type(None)),
    (none_for_a_float, NONE, type(None)),
    (none_for_a_float, FLOAT, float),
    (float_default, INT, float),
    (no_default, FLOAT, float),
    (no_default, INT, int),
    (none_default, FLOAT, float),
    (none_default, NONE, type(None)),
    (annotated_int, INT, int),
    (int_default, INT, int),
    (int_default, FLOAT, float),
    (tuple_default, (1.0, 2), tuple),
]


@pytest.mark.parametrize(("function", "value", "kind"), KINDS)
@pytest.mark.usefixtures("unproven")
def test_annotation_then_default_then_value_decide(
    function: Callable[..., Any], value: Any, kind: type
) -> None:
    seen = Unseen()

    def rule(ctx: Any, grad_out: Any, tin: Any, p: Any) -> Any:
        seen.append(p)
        return grad_out

    rule.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    made = xg.register("probe", native=False)(rule)
    made(None, G, X, p=value)
    (given,) = seen
    if kind is float:
        assert not isinstance(given, float)  # a symbol: it changes without another capture
        made(None, G, X, p=7.5)
        assert len(seen) == 1
    else:
        assert type(given) is kind and given == value


# --- errors ---------------------------------------------------------------------------------------

WRONG = [
    ({"widht": 1.0}, "has no param 'widht'; did you mean 'width'? (it takes anything, axes"),
    ({"width": "1"}, "param 'width' is a float, got str '1'"),
    ({"width": True}, "param 'width' is a float, got bool True"),
    ({"width": None}, "param 'width' is a float, got None"),
    ({"width": [1.0]}, "param 'width' is a float, got list [1.0]"),
    ({"width": 1j}, "param 'width' is a float, got complex 1j"),
    ({"width": 10**400}, "param 'width' is a float, got int 1000"),
    ({"width": object}, "param 'width' is a float, got type"),
    ({"width": np.ones(2)}, "param 'width' is one number, got shape (2,)"),
    ({"width": np.True_}, "param 'width' is a float, got bool True"),
    ({"n": 1.0}, "param 'n' is an int, got float 1.0"),
    ({"n": True}, "param 'n' is an int, got bool True"),
    ({"n": "2"}, "param 'n' is an int, got str '2'"),
    ({"flip": 2}, "param 'flip' is a bool, got int 2"),
    ({"flip": "yes"}, "param 'flip' is a bool, got str 'yes'"),
    ({"mode": 1}, "param 'mode' is a str, got int 1"),
    ({"anything": [1]}, "param 'anything' is a number, bool, str, None or tuple, got list [1]"),
    ({"anything": {}}, "param 'anything' is a number, bool, str, None or tuple, got dict {}"),
]


@pytest.mark.parametrize(("params", "message"), WRONG)
def test_wrong_param_is_an_error_where_it_is_given(
    params: dict[str, Any], message: str, every_kind: xg.Rule
) -> None:
    for attempt in (
        lambda: xg.use(every_kind, params).__enter__(),
        lambda: xg.activation("ReLU", every_kind, params),
        lambda: every_kind(None, G, X, **params),
        lambda: every_kind.with_params(**params),
        lambda: xg.apply_to_gradients([G], every_kind, params),
    ):
        with pytest.raises(xg.RuleError) as raised:
            attempt()
        assert str(raised.value).startswith("rule 'every_kind'")
        assert message in str(raised.value)
        assert isinstance(raised.value, TypeError) and isinstance(raised.value, KeyError)


def test_rule_without_params_says_so() -> None:
    with pytest.raises(
        xg.RuleError, match=r"'full_jam' has no param 'sigma' \(it takes no params\)"
    ):
        xg.use("full_jam", {"sigma": 1.0}).__enter__()


def test_missing_required_param_says_what_to_type() -> None:
    rule = xg.register("needing")(lambda ctx, g, x, width: g * width)
    for attempt in (
        lambda: rule(None, G, X),
        lambda: xg.use(rule).__enter__(),
        lambda: xg.activation("ReLU", rule),
    ):
        with pytest.raises(
            xg.RuleError, match=r"needs a value for param 'width': params=\{'width'"
        ):
            attempt()
    np.testing.assert_array_equal(rule(None, G, X, width=2.0), G * 2)


@pytest.mark.parametrize("params", [[1.0], "width", 3, {("width", 1)}])
def test_params_that_are_no_mapping_are_an_error(params: Any) -> None:
    spike = xg.get("triangular").under("Heaviside")
    for attempt in (
        lambda: xg.use("triangular", params).__enter__(),
        lambda: xg.activation("ReLU", "triangular", params),
        lambda: xg.apply_to_gradients([G], "triangular", params),
        lambda: spike.bind(params),
        lambda: xg.compose(spike, spike).bind(params),
    ):
        with pytest.raises(xg.RuleError, match=r"params are a dict, such as .'width': 1.0., got"):
            attempt()


def test_params_in_the_form_of_another_call_are_an_error_that_says_what_to_write() -> None:
    spike = xg.get("triangular").under("Heaviside")
    for function in (spike, xg.compose(spike, spike)):
        with pytest.raises(xg.RuleError, match=r"write bind\({'width': 2.0}\)"):
            function.bind(width=2.0)  # type: ignore[call-arg]
    with pytest.raises(xg.RuleError, match=r"such as with_params\(width=1.0\), got dict {'width'"):
        xg.get("triangular").with_params({"width": 2.0})  # type: ignore[arg-type]


def test_params_without_a_rule_are_an_error() -> None:
    for attempt in (
        lambda: xg.activation("ReLU", params={"width": 1.0}),
        lambda: xg.apply_to_gradients([G], params={"width": 1.0}),
    ):
        with pytest.raises(xg.RuleError, match=r"params \['width'\] need a rule"):
            attempt()


# --- **params -------------------------------------------------------------------------------------


def test_rule_with_params_receives_everything(backend: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any, **params: Any) -> Any:
        return grad_out * params["s"] * len(params["label"])

    made = xg.register("greedy", native=False)(rule)
    given = run(backend, made, s=0.5, label="abc", n=1)
    np.testing.assert_array_equal(given, G * 1.5)
    assert made.params == {}


def test_freegrad_style_rule_takes_names_it_does_not_know(backend: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any, s: float = 1.0, **_: Any) -> Any:
        return grad_out * s

    made = xg.register("freegrad_style", native=False)(rule)
    with xg.use(made, {"s": 2.0, "unknown": 3.0}, scope="params"):
        given = xg.apply_to_gradients(backend.array(G))
    np.testing.assert_array_equal(backend.numpy(given), G * 2)


@frameworks
def test_a_call_gives_values_of_its_own(backend: Any) -> None:
    spike = xg.activation("Heaviside", rule="triangular", params={"width": 2.0})
    for given in (0.5, backend.array(np.float32(0.5))):
        _, grad = backend.vjp(lambda x, width=given: spike(x, width=width), X, G)
        np.testing.assert_allclose(grad, G * np.maximum(1 - np.abs(X) / 0.5, 0), rtol=1e-6)
    _, grad = backend.vjp(spike, X, G)
    np.testing.assert_allclose(grad, G * np.maximum(1 - np.abs(X) / 2.0, 0), rtol=1e-6)


@pytest.mark.backends("jax")
def test_a_call_takes_a_traced_value(backend: Any) -> None:
    import jax

    spike = xg.activation("Heaviside", rule="triangular")
    slope = jax.jit(jax.grad(lambda x, width: spike(x, width=width).sum()))
    for width in (1.0, 4.0):
        expected = np.maximum(1 - np.abs(X) / width, 0)
        np.testing.assert_allclose(np.array(slope(X, width)), expected, rtol=1e-6)


def test_what_a_call_does_not_take_is_said_with_what_to_write() -> None:
    spike = xg.activation("Heaviside", rule="triangular")
    with pytest.raises(xg.RuleError, match=r"takes no 'witdh'; did you mean 'width'.*\.under\("):
        spike(X, witdh=1.0)
    with pytest.raises(xg.RuleError, match="has no rule of its own"):
        xg.activation("Heaviside")(X, width=1.0)
    with pytest.raises(xg.RuleError, match="'width' is >= 0"):
        spike(X, width=-1.0)


def test_a_word_that_is_near_nothing_is_not_suggested() -> None:
    with pytest.raises(AttributeError) as said:
        getattr(xg, "no_such_thing_here")  # noqa: B009
    assert "did you mean" not in str(said.value)
    with pytest.raises(AttributeError, match="did you mean 'heatmap'"):
        getattr(xg, "heat_map")  # noqa: B009
