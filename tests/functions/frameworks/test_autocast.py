"""Converted classes under torch.autocast: in the dtypes of the class itself, forward and backward,
whatever was on when it was captured.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest

import multigrad as xg
from multigrad import xp

from ...harness.ejecting import load
from ...harness.torch_class import torch_class

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.needs("torch"), pytest.mark.backends("torch")]
F = torch.nn.functional
FLOAT, BF, HALF = torch.float32, torch.bfloat16, torch.float16


def linear(ctx: Any, x: Any, w: Any) -> Any:
    ctx.save_for_backward(x, w)
    return F.linear(x, w)


def with_bias(ctx: Any, x: Any, w: Any) -> Any:
    ctx.save_for_backward(x, w)
    return F.linear(x, w, torch.ones(w.shape[0]))


def apart(ctx: Any, x: Any, w: Any) -> Any:
    ctx.save_for_backward(x, w)
    with torch.autocast("cpu", enabled=False):
        return F.linear(x, w)


def cast_back(ctx: Any, x: Any, w: Any) -> Any:
    ctx.save_for_backward(x, w)
    return F.linear(x, w).to(x.dtype)


def squares(ctx: Any, x: Any, w: Any) -> Any:
    ctx.save_for_backward(x, w)
    return F.mse_loss(x @ w.t(), torch.zeros(x.shape[0], w.shape[0]), reduction="none")


def joined(ctx: Any, x: Any, w: Any) -> Any:
    ctx.save_for_backward(x, w)
    return torch.cat([x @ w.t(), x.sum(1, keepdim=True).expand(-1, w.shape[0])], 1)[:, ::2]


def by_dtype(ctx: Any, g: Any) -> Any:
    x, w = ctx.saved_tensors
    g = g[:, : w.shape[0]]
    w, g = w[: g.shape[1]], g.to(w.dtype)
    return g @ w, F.pad(g.to(x.dtype).t() @ x, (0, 0, 0, 5 - g.shape[1]))


def by_type_as(ctx: Any, g: Any) -> Any:
    x, w = ctx.saved_tensors
    return g.type_as(w) @ w, g.type_as(x).t() @ x


def to_gradient(ctx: Any, g: Any) -> Any:
    x, w = ctx.saved_tensors
    return g @ w.to(g.dtype), g.t() @ x.to(g.dtype)


def to_widest(ctx: Any, g: Any) -> Any:
    x, w = ctx.saved_tensors
    wide = torch.promote_types(g.dtype, torch.promote_types(w.dtype, x.dtype))
    return g.to(wide) @ w.to(wide), g.to(wide).t() @ x.to(wide)


def if_other(ctx: Any, g: Any) -> Any:
    x, w = ctx.saved_tensors
    g = g.to(w.dtype) if g.dtype != w.dtype else g
    return g @ w, g.t() @ x.to(g.dtype)


def amp(forward: Any, backward: Any, **options: Any) -> Any:
    on = {"device_type": "cpu"}
    return torch.amp.custom_fwd(forward, **on, **options), torch.amp.custom_bwd(backward, **on)


CLASSES = {
    "dtype": (linear, by_dtype),
    "type_as": (linear, by_type_as),
    "gradient": (linear, to_gradient),
    "widest": (linear, to_widest),
    "if": (linear, if_other),
    "bias": (with_bias, by_dtype),
    "apart": (apart, by_dtype),
    "cast back": (cast_back, by_dtype),
    "squares": (squares, by_type_as),
    "joined": (joined, by_dtype),
    "decorated": amp(linear, by_dtype),
    "in float32": amp(linear, by_dtype, cast_inputs=FLOAT),
    "in bfloat16": amp(with_bias, by_dtype, cast_inputs=BF),
}


def make(name: str) -> Any:
    forward, backward = CLASSES[name]
    return torch_class(backward)(forward)


def autocast(dtype: Any) -> Any:
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype)


def inputs(dtypes: Any = (FLOAT, FLOAT)) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (5, 3))
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    return [x.to(d).requires_grad_() for x, d in zip(made, dtypes, strict=True)]


def run(apply: Callable[..., Any], dtypes: Any, forward: Any, backward: Any) -> Any:
    """Return the results and gradients of a call; None where torch refuses it."""
    given = inputs(dtypes)
    try:
        with autocast(forward):
            y = apply(*given)
        with autocast(backward):
            y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape))
    except RuntimeError:
        return None
    return [y.detach(), *[x.grad for x in given]]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_itself_under_autocast_that_began_after_the_capture(name: str) -> None:
    cls = make(name)
    converted = xg.convert(cls)
    converted(*inputs())
    pairs = ((FLOAT, FLOAT), (BF, BF), (BF, FLOAT), (FLOAT, BF), (HALF, HALF))
    casts = ((BF, None), (BF, BF), (None, BF), (HALF, None), (None, None))
    for dtypes, (forward, backward) in product(pairs, casts):
        expected = run(cls.apply, dtypes, forward, backward)
        if expected is None:
            continue
        found = run(converted, dtypes, forward, backward)
        exact = forward is not None and backward is None
        limits = {"rtol": 0, "atol": 0} if exact else {"rtol": 2e-2, "atol": 2e-2}
        assert found is not None, (dtypes, forward, backward)
        for ours, own in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, own, **limits, msg=str((dtypes, forward, backward)))


@pytest.mark.parametrize("name", ["dtype", "bias", "cast back", "in float32"])
def test_compiled_code_follows_autocast(name: str) -> None:
    cls = make(name)
    converted = xg.convert(cls)
    for forward in (None, BF, None, HALF):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, w: converted(x, w), backend="aot_eager", fullgraph=True)
        dtypes = (FLOAT, FLOAT)
        found, own = run(compiled, dtypes, forward, None), run(cls.apply, dtypes, forward, None)
        torch.testing.assert_close(found, own, rtol=2e-2, atol=2e-2)


# F.linear with a bias gives float32 in torch's own vmap (2.13).
@pytest.mark.parametrize("name", ["dtype", "type_as", "cast back", "in float32"])
def test_transforms_follow_autocast(name: str) -> None:
    cls = make(name)
    converted = xg.convert(cls)
    x, w = (each.detach() for each in inputs())
    rows = x[:, None]
    converted(rows[0], w)

    def loss(row: Any) -> Any:
        return converted(row, w).float().sum()

    with torch.autocast("cpu", BF):
        y = torch.func.vmap(lambda row: converted(row, w))(rows)
        own = torch.stack([cls.apply(row, w) for row in rows])
        gradient = torch.func.vmap(torch.func.grad(loss))(rows)
    torch.testing.assert_close(y, own, rtol=2e-2, atol=2e-2)
    x.requires_grad_()
    with torch.autocast("cpu", BF):
        loss_all = sum(cls.apply(row, w).float().sum() for row in x[:, None])
    loss_all.backward()
    torch.testing.assert_close(gradient[:, 0], x.grad, rtol=2e-2, atol=2e-2)


def test_a_function_written_in_torch_runs_as_written_under_autocast() -> None:
    def forward(x: Any, w: Any) -> Any:
        return F.linear(x, w)

    def backward(g: Any, x: Any, w: Any) -> Any:
        return g.to(w.dtype) @ w, g.to(x.dtype).t() @ x

    function = xg.function(forward, backward)
    function(*inputs())
    found = run(function, (FLOAT, FLOAT), BF, None)
    own = run(make("dtype").apply, (FLOAT, FLOAT), BF, None)
    torch.testing.assert_close(found, own, rtol=0, atol=0)


def test_a_graph_from_elsewhere_keeps_its_dtypes_under_autocast() -> None:
    function = xg.function(
        lambda x, w: xp.matmul(x, w.T),
        lambda g, x, w: (xp.matmul(g, w), xp.matmul(g.T, x)),
    )
    plain = run(function, (FLOAT, FLOAT), None, None)
    compiled = torch.compile(lambda x, w: function(x, w), backend="aot_eager", fullgraph=True)
    for apply, forward in product((function, compiled), (BF, HALF)):
        found = run(apply, (FLOAT, FLOAT), forward, None)
        torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-6)


def straight_through(ctx: Any, g: Any) -> Any:
    nearest, codebook = ctx.saved_tensors
    return g, torch.zeros_like(codebook).index_add_(0, nearest, g)


@torch_class(straight_through)
def Nearest(ctx: Any, x: Any, codebook: Any) -> Any:
    """The nearest row of a codebook, with the gradient of a straight-through estimator."""
    distances = (codebook**2).sum(1) - 2.0 * (x @ codebook.t())
    nearest = distances.argmin(1)
    ctx.save_for_backward(nearest, codebook)
    return codebook[nearest]


@pytest.mark.parametrize("backward_inside", [False, True])
def test_what_backward_computes_again_is_what_forward_computed(backward_inside: bool) -> None:
    torch.manual_seed(0)
    x, codebook = torch.randn(500, 6), torch.randn(300, 6)
    function = xg.convert(Nearest)
    function(x.clone().requires_grad_(), codebook.clone().requires_grad_())
    from_file = load(str(xg.source(function, "torch", standalone=True)))
    for call in (function, xg.lower(function, "torch").apply, from_file):
        leaf = codebook.clone().requires_grad_()
        with torch.autocast("cpu", dtype=BF):
            rows = call(x.clone().requires_grad_(), leaf)
            if backward_inside:
                rows.sum().backward()
        if not backward_inside:
            rows.sum().backward()
        used = (rows.detach()[:, None] == codebook).all(-1).sum(0)
        torch.testing.assert_close(leaf.grad, used[:, None].expand(-1, 6).to(FLOAT))
