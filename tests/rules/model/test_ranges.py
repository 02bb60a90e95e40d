"""The ranges of params: an error where a number is given, which names the param, its range and the
number.
"""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.rules.rule_names import OWN
from multigrad.core.support.params import Range
from multigrad.engine.rules.model.rule_graphs import likely_graph
from multigrad_conformance.oracles import DTYPES, FLOAT64, edge_values, finfo, spread

X = np.array([-2.0, 0.25, 0.75], np.float32)
G = np.ones_like(X)
NAN, INF = math.nan, math.inf
LIBRARY = [n for n in xg.rules() if xg.get(n).__module__.startswith(OWN)]
# An axis: which ones there are is the input's to say.
WITHOUT_RANGE = {("centralize", "dim"), ("centralize", "keepdim")}


def window(
    ctx: Any, grad_out: Any, tin: Any, a: float = -1.0, b: float = 1.0, slope: float = 1.0
) -> Any:
    inside = 1.0 if tin is None else (tin >= a) & (tin <= b)
    return grad_out * slope * inside


RANGES = {"a": "<= b", "slope": ">0 and finite"}


@pytest.fixture
def ranged() -> xg.Rule:
    return xg.register("ranged window", ranges=RANGES)(window)


# --- what is in a range ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("> 0", (1e-300, 3, INF), (0, -0.0, -1, NAN)),
        (">= 0", (0, -0.0, INF), (-1e-300, NAN)),
        ("< 2.5e1", (24.9, -INF), (25, NAN)),
        ("!= 0", (1, -1, INF), (0, -0.0, NAN)),
        ("finite", (0, 1e308), (INF, -INF, NAN)),
        (">= 1 and <= 16", (1, 16.0), (0, 17)),
        ("> -1 and < .5 and != 0", (-0.5, 0.4), (-1, 0, 0.5)),
    ],
)
def test_a_range_holds_what_its_conditions_hold(text: str, inside: Any, outside: Any) -> None:
    allowed = Range.read(text)
    assert [value for value in inside if not allowed.holds(value)] == []
    assert [value for value in outside if allowed.holds(value)] == []
    assert Range.read(allowed.text) == allowed == pickle.loads(pickle.dumps(allowed))


def test_a_range_has_ends() -> None:
    assert (Range.read("> 0 and finite").low, Range.read("> 0 and finite").high) == (0, INF)
    assert (Range.read(">= 1 and <= 16").low, Range.read(">= 1 and <= 16").high) == (1, 16)
    assert (Range.read("!= 0").low, Range.read("<= b").high) == (-INF, INF)


@pytest.mark.parametrize("text", ["positive", "", "0 <", "> ", "> 0 or < 0", "in (0, 1)", 3, None])
def test_a_range_that_cannot_be_read_is_an_error_that_shows_the_form(text: Any) -> None:
    with pytest.raises(xg.RuleError, match=r"is not a range; write \"> 0\""):
        xg.register("unreadable", ranges={"slope": text})(window)


def test_a_range_is_for_a_param_that_there_is_and_holds_its_default() -> None:
    with pytest.raises(xg.RuleError, match="'slop', which is no param of it; did you mean 'slope'"):
        xg.register("misnamed", ranges={"slop": "> 0"})(window)
    with pytest.raises(xg.RuleError, match="names 'c', which is no param"):
        xg.register("misnamed", ranges={"a": "<= c"})(window)
    with pytest.raises(ValueError, match=r"param 'slope' is > 3, got 1.0"):
        xg.register("misnamed", ranges={"slope": "> 3"})(window)
    with pytest.raises(xg.RuleError, match="is made of others"):
        xg.register("misnamed", ranges={"slope": "> 3"})(xg.compose("scale", window))


# --- where a number is given ----------------------------------------------------------------------


def enter(rule: Any, params: Any) -> None:
    with xg.use(rule, params):
        pass


WAYS = {
    "use": lambda rule, params: enter(rule.name, params),
    "use of a rule": enter,
    "call": lambda rule, params: rule(None, G, X, **params),
    "factor": lambda rule, params: rule.factor(X, **params),
    "with_params": lambda rule, params: rule.with_params(**params),
    "activation": lambda rule, params: xg.activation("ReLU", rule, params),
    "gradients": lambda rule, params: xg.apply_to_gradients([G], rule, params),
    "function": lambda rule, params: rule.under("ReLU")(X, **params),
    "bound function": lambda rule, params: rule.under("ReLU").bind(params)(X),
    "in series": lambda rule, params: enter(xg.compose("scale", rule), params),
    "inside of a rule": lambda rule, params: outer(rule, params)(None, G, X),
    "what was saved": lambda rule, params: enter(xg.from_dict(rule.to_dict()), params),
    "what was saved in series": lambda rule, params: enter(
        xg.from_dict(xg.compose("scale", rule).to_dict()), params
    ),
    "a copy": lambda rule, params: enter(copy.deepcopy(rule), params),
}


def outer(rule: xg.Rule, params: dict[str, Any]) -> xg.Rule:
    def around(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return rule(None, grad_out, tin, **params)

    return xg.register("around a ranged one", native=False, override=True)(around)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [-1.0, 0, NAN, np.float32(-1), np.array(-INF)])
def test_a_number_out_of_its_range_is_an_error_wherever_it_is_given(
    ranged: xg.Rule, way: str, value: Any
) -> None:
    WAYS[way](ranged, {"slope": 2.0})
    for error in (xg.RuleError, ValueError):
        with pytest.raises(error, match="'ranged window': param 'slope' is > 0 and finite, got"):
            WAYS[way](ranged, {"slope": value})


def test_two_params_are_compared_once_both_are_known(ranged: xg.Rule) -> None:
    message = "param 'a' is <= b, got 2.0 with b = 1.0"
    above = ranged.with_params(a=2.0)
    np.testing.assert_array_equal(above(None, G, X + 2, b=3.0), [0, 1, 1])
    for fails in (lambda: above(None, G, X), lambda: ranged.with_params(a=2.0, b=1.0)):
        with pytest.raises(ValueError, match=message):
            fails()
    with pytest.raises(ValueError, match=message):
        enter(xg.compose("scale", above), {})
    with pytest.raises(ValueError, match=r"got -1.0 with b = -3.0"):
        enter(ranged, {"b": -3.0})
    # The one that was given is named, not the default that it does not fit.
    with pytest.raises(ValueError, match=r"param 'b' is >= a, got -2.0 with a = -0.5"):
        enter(xg.get("rectangular"), {"b": -2.0})


def test_parts_of_a_series_have_ranges_of_their_own() -> None:
    xg.register("narrow", ranges={"width": "< 1"})(lambda ctx, g, x, width=0.5: g * width)
    both = xg.compose("triangular", "narrow", xg.get("noise").with_params(sigma=0.5))
    assert {name: each.text for name, each in both.ranges.items()} == {"width": ">= 0 and < 1"}
    with pytest.raises(ValueError, match=r"'narrow': param 'width' is < 1, got 2.0"):
        enter(both, {"width": 2.0})
    with pytest.raises(ValueError, match=r"'triangular': param 'width' is >= 0, got -2.0"):
        both.with_params(width=-2.0)


def test_a_tensor_is_not_read_and_meets_its_range_as_a_number(backend: Any) -> None:
    if backend.name == "numpy":
        pytest.skip("an array without axes is a number there")
    x, minus = backend.array(X), backend.array(np.float32(-1.0))
    xg.get("arctan")(None, x, x, alpha=minus)
    with pytest.raises(ValueError, match=r"param 'alpha' is > 0 and finite, got -1.0"):
        xg.get("arctan")(None, x, x, alpha=-1.0)
    xg.get("arctan").under("ReLU")(x, minus)
    with pytest.raises(ValueError, match=r"param 'alpha' is > 0 and finite, got -2.0"):
        xg.get("arctan").under("ReLU")(x, -2.0)


@pytest.mark.needs("torch")
def test_compiled_code_asks_as_eager_code_does() -> None:
    import torch

    spike, x = xg.get("arctan").under("Heaviside"), torch.ones(3)
    for f in (lambda x: spike(x, -2.0), lambda x: xg.get("arctan")(None, x, x, alpha=-2.0)):
        with pytest.raises(ValueError, match=r"param 'alpha' is > 0 and finite, got -2.0"):
            torch.compile(f, backend="eager")(x)


def test_a_number_bound_behind_others_does_not_take_their_place() -> None:
    moved = xg.get("gaussian").under("Linear").bind({"sigma": 2.0})  # mean, scale, sigma
    _, pull = xg.vjp(moved, X)
    np.testing.assert_array_equal(pull(G)[0], xg.get("gaussian")(None, G, X, sigma=2.0))


# --- documents ------------------------------------------------------------------------------------


def test_a_document_keeps_ranges_and_needs_none(ranged: xg.Rule) -> None:
    data = ranged.to_dict()
    saved = xg.from_dict(data)
    assert saved.ranges == ranged.ranges
    assert pickle.loads(pickle.dumps(saved)).ranges == ranged.ranges
    for param in data["params"]:
        param.pop("range", None)
    xg.from_dict(data)(None, G, X, slope=-1.0)
    data["params"][0]["range"] = "positive"
    with pytest.raises(xg.FormatError, match=r"params\[0\].range: 'positive' is not a range"):
        xg.from_dict(data)


def test_a_document_that_binds_a_number_out_of_range_is_refused(ranged: xg.Rule) -> None:
    data = ranged.with_params(slope=2.0).to_dict()
    data["bound"]["slope"] = -2.0
    with pytest.raises(xg.FormatError, match=r"param 'slope' is > 0 and finite, got -2.0"):
        xg.from_dict(data)


# --- the library ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIBRARY)
def test_every_number_of_the_library_has_a_range(name: str) -> None:
    rule = xg.get(name)
    wanted = {p for p in rule.params if (name, p) not in WITHOUT_RANGE and is_number(rule, p)}
    assert rule.ranges.keys() == wanted


def is_number(rule: xg.Rule, param: str) -> bool:
    return isinstance(rule.params[param], int | float) and type(rule.params[param]) is not bool


DIVIDES = (
    ("circle", "alpha", 0.0),
    ("gaussian", "sigma", 0.0),
    ("multi_gaussian", "s", 0.0),
    ("periodic_exponential", "width", 0.0),
    ("periodic_exponential", "threshold", 0.0),
    ("q_pseudo_spike", "alpha", 1.0),
    ("sinabs.Heaviside", "threshold", 0.0),
    ("squarewave_fourier", "period", 0.0),
    ("fast_sigmoid", "slope", -1.0),
    ("exponential", "alpha", -1e3),
    ("arctan", "alpha", INF),
    ("normalize", "scale", INF),
)


@pytest.mark.parametrize(("name", "param", "value"), DIVIDES)
@pytest.mark.filterwarnings("ignore:.*(divide by zero|invalid value|overflow)")
def test_out_of_its_range_a_formula_fails(name: str, param: str, value: float) -> None:
    rule, x = xg.get(name), np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    assert not rule.ranges[param].holds(value)
    unchecked = rule.copy(ranges={})
    assert not np.isfinite(unchecked(None, np.ones(5), x, **{param: value})).all()


def numbers_at_the_edges(allowed: Range) -> list[float]:
    """The ends that belong to it, and numbers near the ends of float16."""
    low = [allowed.low, allowed.low + 1e-4, allowed.low + 0.25, -1e4, 1e-4, 1e4]
    return sorted({v for v in (*low, allowed.high) if math.isfinite(v) and allowed.holds(v)})


@pytest.mark.parametrize("name", LIBRARY)
def test_in_its_range_no_number_makes_nan_of_what_is_finite(name: str) -> None:
    rule = xg.get(name)
    for param, allowed in rule.ranges.items():
        if type(rule.params[param]) is not float:
            continue
        for value in numbers_at_the_edges(allowed):
            beside = {n: value for n, other in rule.ranges.items() if param in other.others}
            params = {param: value, **{n: v for n, v in beside.items() if n in allowed.others}}
            for dtype in DTYPES:
                check_finite(rule, params, dtype)


def check_finite(rule: xg.Rule, params: dict[str, float], dtype: Any) -> None:
    edges = edge_values(dtype)
    x = np.concatenate([edges[np.isfinite(edges)], spread(20, dtype)])
    graph, _ = likely_graph(rule.bound_rule(), True)
    given = params if graph is None or graph.input("key") is None else {**params, "key": 1}
    grad_in = np.asarray(rule(None, np.ones_like(x), x, **given), np.float64)
    assert not np.isnan(grad_in).any(), f"{params}, {dtype}: {x[np.isnan(grad_in)]}"
    if np.isinf(grad_in).any():  # only where the curve itself is too high for the dtype
        wide = x.astype(FLOAT64)
        height = np.abs(rule(None, np.ones_like(wide), wide, **given)).max()
        assert height > 0.9 * float(finfo(dtype).max), f"{params}, {dtype}"
