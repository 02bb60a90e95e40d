"""In-place updates in a rule: each means what the same line means in the library it is written
in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.torch_class import torch_class as make_class

X = np.array([[-1.0, 0.5, 2.0], [3.0, -0.25, np.nan]], np.float32)
G = np.array([[1.0, -2.0, 3.0], [-1.0, 0.5, 4.0]], np.float32)


# Each takes its own copies, so that running it as written leaves the inputs alone.


def np_assigns_by_mask(g: Any, x: Any) -> Any:
    g[x < 0] = 0
    g[(x > 1) & (g > 0)] = -0.5
    g[np.isnan(x)] = g.max()
    return g


def np_assigns_what_the_mask_picks(g: Any, x: Any) -> Any:
    inside = np.abs(x) < 1
    g[inside] = x[inside] * np.float64(2) + g[inside] / 4 - 1.0
    g[~inside] *= -3
    g[inside] = -(abs(g[inside]) ** 2)
    return g


def np_assigns_all(g: Any, x: Any) -> Any:
    h = np.empty_like(g)
    h[:] = g
    h[...] += 1.0
    rest = np.zeros_like(g)
    rest[:] = g.mean(axis=0, keepdims=True)
    rest[...] = rest * np.array([1.0, 2.0, 3.0])
    return h + rest


def np_writes_into_out(g: Any, x: Any) -> Any:
    np.multiply(g, 2.0, out=g)
    np.add(g, x, where=x > 0, out=g)
    np.clip(g, -3.0, 3.0, out=g)
    np.greater(g, 0, out=x)
    return g + x


def np_reaches_the_other_name(g: Any, x: Any) -> Any:
    h = g
    h *= 2
    h += np.array([1.0, 0.0, -1.0])
    h -= x > 0
    np.negative(h, out=h)
    return g


def np_copies(g: Any, x: Any) -> Any:
    before = g.copy()
    same = g.astype(g.dtype)
    g /= 4
    same **= 2
    return before + g + same


def np_assigns_to_parts(g: Any, x: Any) -> Any:
    g[0] = 0.0
    g[1, 2] = x[0, 1]
    g[:, 1] = x[:, 2]
    g[..., -1:] = x[..., :1] * np.array([[2.0], [3.0]])
    x[0, ::2] = -5
    return g + x


def np_updates_parts(g: Any, x: Any) -> Any:
    g[0] += 1
    g[:, 1:] *= x[:, 1:]
    row = g[1]
    row -= 0.5
    row[0] = 7
    g[:, 0] /= 2
    return g


def np_looks_through_views(g: Any, x: Any) -> Any:
    row, column, copied = g[0], np.expand_dims(g, -1), g[[0]]
    cell = row[1:]
    g += 1
    cell *= 3
    g[0, 0] = 9
    return g * row + column[..., 0] * copied


def np_reads_parts(g: Any, x: Any) -> Any:
    first, last = x[:1], x[-1]
    return (g - x.mean(axis=1)[:, None]) * first + last[None] + x[[1, 0]] * g[:, ::-1][:, 2:]


def torch_assigns_by_mask(g: Any, x: Any) -> Any:
    import torch

    g[x < 0] = 0
    g[x > 1] = torch.tensor(7.0)
    g[torch.isnan(x)] = 3
    return g


def torch_methods(g: Any, x: Any) -> Any:
    g.mul_(2).add_(x > 0).sub_(0.5, alpha=2).clamp_(-2, 3)
    g.masked_fill_(x < 0, 9.0)
    x.zero_().fill_(2.0)
    g.div_(x).neg_().abs_()
    return g.sign_() + x.copy_(g) + g.sigmoid_()


def torch_functions(g: Any, x: Any) -> Any:
    import torch
    import torch.nn.functional as F

    torch.mul(g, 2.0, out=g)
    torch.relu_(g)
    F.relu(x, inplace=True)
    torch.exp_(g).clamp_(max=5.0)
    F.hardtanh(g, 0.5, 2.5, inplace=True)
    F.threshold_(g, 1.0, 0.0)
    return torch.nan_to_num(g + x)


def torch_compares_in_place(g: Any, x: Any) -> Any:
    h = g.clone()
    h.gt_(0)
    g.copy_(x > 0)
    return g + h


def torch_reaches_the_other_name(g: Any, x: Any) -> Any:
    h = g
    h.mul_(2)
    same = g.to(g.dtype)
    same += 1
    flat = g.contiguous()
    flat -= 0.5
    return g


def torch_casts_to_its_own_dtype(g: Any, x: Any) -> Any:
    single = g.float()
    single.mul_(3)
    return g


def torch_looks_through_views(g: Any, x: Any) -> Any:
    seen, spread = g.detach(), g[:1].expand_as(g)
    g.mul_(2)
    g[0, 1] = 5
    return seen + g * spread


def torch_clones_a_view(g: Any, x: Any) -> Any:
    h = g.detach().clone()
    h.mul_(2)
    g.mul_(3)
    return g + h


IN_NUMPY = [f for name, f in list(globals().items()) if name.startswith("np_")]
IN_TORCH = [f for name, f in list(globals().items()) if name.startswith("torch_")]


def as_rule(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return function(grad_out, tin)

    return rule


def check(given: Any, wanted: Any) -> None:
    np.testing.assert_allclose(given, wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("function", IN_NUMPY, ids=lambda f: f.__name__)
def test_update_means_what_it_means_in_numpy(function: Any, backend: Any, captured: Any) -> None:
    x = np.nan_to_num(X, nan=-2.0) if "isnan" not in function.__code__.co_names else X
    g, tin = backend.array(G), backend.array(x)
    check(backend.numpy(captured(as_rule(function))(None, g, tin)), function(G.copy(), x.copy()))
    np.testing.assert_array_equal(backend.numpy(g), G)  # the caller's own tensors stay as they are
    np.testing.assert_array_equal(backend.numpy(tin), x)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("function", IN_TORCH, ids=lambda f: f.__name__)
def test_update_means_what_it_means_in_torch(
    function: Any, backend: Any, captured: Any, torch: Any
) -> None:
    rule = captured(as_rule(function))
    wanted = function(torch.tensor(G), torch.tensor(X)).numpy()
    check(backend.numpy(rule(None, backend.array(G), backend.array(X))), wanted)
    wanted = function(torch.tensor(G).double(), torch.tensor(X).double()).numpy()
    check(rule(None, G.astype(np.float64), X.astype(np.float64)), wanted)


# --- what is refused ------------------------------------------------------------------------------

FOREIGN = np.zeros((2, 3), np.float32)


def np_updates_a_view(g: Any, x: Any) -> Any:
    flat = np.ravel(g)
    flat += 1  # a view, where g lies in order
    return g


def np_updates_what_may_be_a_view(g: Any, x: Any) -> Any:
    seen = xg.xp.flip(g, 0)
    g += 1
    return g * seen


def np_assigns_a_full_tensor_by_mask(g: Any, x: Any) -> Any:
    g[x > 0] = x
    return g


def np_assigns_by_another_mask(g: Any, x: Any) -> Any:
    g[x > 0] = x[x >= 0]
    return g


def np_writes_outside(g: Any, x: Any) -> Any:
    np.multiply(g, 2.0, out=FOREIGN)
    return g


def np_floats_into_a_mask(g: Any, x: Any) -> Any:
    mask = x > 0
    mask += g
    return g * mask


REFUSED = {
    np_updates_a_view: r"updates a view of another tensor.*clone\(\)",
    np_assigns_a_full_tensor_by_mask: "assigns to a part of a tensor.*xp.where",
    np_updates_what_may_be_a_view: r"may be a view or a copy.*clone\(\)",
    np_assigns_by_another_mask: "assigns what one mask picks to another place.*xp.where",
    lambda g, x: g * g[x > 0].prod(): "indexes a tensor by a mask.*xp.where",
    lambda g, x: g * np.exp(g[x > 0]): "indexes a tensor by a mask",
    np_writes_outside: "write into a ndarray that the rule did not get or make.*result",
    lambda g, x: np.add(g, x, where=x > 0): "where= and without out=.*np.where",
    np_floats_into_a_mask: "in place",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_update_that_would_mean_something_else_is_refused(function: Any, captured: Any) -> None:
    with pytest.raises(
        xg.TraceError, match=rf"'under test' \(test_capture_in_place.py:\d+\).*{REFUSED[function]}"
    ):
        captured(as_rule(function))(None, G, X)
    assert not FOREIGN.any()


# --- what where= leaves out has no slope ----------------------------------------------------------
LEFT_OUT = {
    "divide": lambda x, out: np.divide(1.0, x, out=out, where=x != 0),
    "reciprocal": lambda x, out: np.reciprocal(x, out=out, where=x != 0),
    "log": lambda x, out: np.log(x, out=out, where=x > 0),
    "sqrt": lambda x, out: np.sqrt(x, out=out, where=x > 0),
    "cbrt": lambda x, out: np.cbrt(x, out=out, where=x != 0),
    "power": lambda x, out: np.power(x, -0.5, out=out, where=x > 0),
    "arctan2": lambda x, out: np.arctan2(x, x, out=out, where=x != 0),
    "arccosh": lambda x, out: np.arccosh(x + 1.0, out=out, where=x > 0),
    "arctanh": lambda x, out: np.arctanh(1.0 - x, out=out, where=(x > 0) & (x < 2)),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_a_ufunc_leaves_out_has_the_slope_of_out(name: str, backend: Any) -> None:
    def function(x: Any) -> Any:
        return LEFT_OUT[name](x, np.multiply(x, 3.0))

    x = np.array([0.0, 0.5], np.float32)
    y, pull = xg.vjp(xg.function(function, dialect="numpy"), backend.array(x))
    np.testing.assert_allclose(backend.numpy(y), function(x), rtol=1e-5)
    (slope,) = pull(backend.array(np.ones(2, np.float32)))
    low, high = (function(np.float64(x + np.array([0.0, h]))).sum() for h in (-1e-6, 1e-6))
    np.testing.assert_allclose(backend.numpy(slope), [3.0, (high - low) / 2e-6], rtol=1e-3)


# --- the shape of a tensor ------------------------------------------------------------------------
RESHAPED = """
    squeeze_(); squeeze_(0); unsqueeze_(0); t_(); transpose_(0, 1); swapaxes_(0, 1); swapdims_(0, 1)
"""


@pytest.mark.backends("torch")
@pytest.mark.parametrize("call", RESHAPED.strip().split("; "))
def test_a_shape_changed_in_place_is_changed_at_each_call(call: str, backend: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        y = x.clone()
        eval(f"y.{call}", {"y": y})
        return y

    original = make_class(lambda ctx, grad: None)(forward)
    converted = xg.convert(original)
    for shape in ((4, 6), (1, 6)):
        x = backend.array(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
        expected, actual = original.apply(x), converted(x)
        assert actual.shape == expected.shape
        np.testing.assert_array_equal(actual, expected)


def test_an_update_in_arithmetic_alone_means_what_it_means_on_the_tensors_given(
    backend: Any, recwarn: pytest.WarningsRecorder
) -> None:
    def updated(ctx: Any, grad_out: Any, tin: Any) -> Any:
        kept = grad_out
        grad_out += 1.0  # where tensors change, so does what is kept
        return kept * tin + grad_out

    rule = xg.register("test updated", override=True)(updated)
    for array in (np.array, backend.array, np.array):
        g, x = array(np.ones(3, np.float32)), array(np.full(3, 2.0, np.float32))
        expected = updated(None, array(np.ones(3, np.float32)), x)
        assert np.asarray(rule(None, g, x)).tolist() == np.asarray(expected).tolist()
    assert not [each for each in recwarn if issubclass(each.category, UserWarning)]
