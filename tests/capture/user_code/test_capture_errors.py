"""What cannot be captured: the error names the rule, the file, the line and a way out."""

from __future__ import annotations

import inspect
import math
import random
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.core.ir.graph import Graph
from multigrad.core.ir.op import INPUT
from multigrad.core.trace.trace import Trace
from multigrad.engine.capture.copies.witness import numbers_from_elsewhere

HERE = Path(__file__).name
ONES = np.ones((2, 3), np.float32)


def assigns_by_a_tensor(ctx, grad_out, tin):
    grad_out[tin * 2] = 0.0  # here
    return grad_out


def updates_with_another_shape(ctx, grad_out, tin):
    row = tin.sum(axis=0)
    row += grad_out  # here
    return row


def fails_in_a_helper(ctx, grad_out, tin):
    return grad_out * helper(tin)


def helper(x):
    return x.histogram(8)  # here


def takes_an_ambiguous_deviation(ctx, grad_out, tin):
    return grad_out / grad_out.std()


# Rules, each a lambda on one line or with a line that ends with "# here".
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "chains comparisons": (
        lambda ctx, g, x: g * (-1 <= x <= 1),
        "branches on a tensor value.*xp.where",
    ),
    "asks and": (lambda ctx, g, x: g * (x > 0 and x < 1), "branches on a tensor value"),
    "makes a float": (lambda ctx, g, x: g * float(g.sum()), "turns a tensor into a Python number"),
    "takes a math function": (
        lambda ctx, g, x: g * math.exp(x.mean()),
        "turns a tensor into a Python number",
    ),
    "indexes by a tensor": (
        lambda ctx, g, x: g * x[x * 2],
        "indexes a tensor in a way not captured.*floats; cast it to int64",
    ),
    "assigns by a tensor": (
        assigns_by_a_tensor,
        "assigns to a part of a tensor.*floats; cast it to int64",
    ),
    "updates with another shape": (updates_with_another_shape, "in place"),
    "looks inside": (lambda ctx, g, x: g * (0.0 in x), "looks for a value in a tensor"),
    "makes an array": (
        lambda ctx, g, x: g * np.ascontiguousarray(x),
        "turns a symbolic tensor into a NumPy array",
    ),
    "calls an unknown function": (
        lambda ctx, g, x: np.unwrap(g, axis=0),
        "calls numpy's unwrap, which is not captured.*xg.xp.*native=True",
    ),
    "calls an unknown ufunc": (
        lambda ctx, g, x: np.ldexp(g, x),
        "calls numpy's ldexp, which is not captured",
    ),
    "reduces by a ufunc": (lambda ctx, g, x: g * np.add.reduce(x), "add.reduce"),
    "uses an unknown attribute": (lambda ctx, g, x: g.names, "uses .names, which is not captured"),
    "wants numpy": (lambda ctx, g, x: g * x.numpy(), r"calls .numpy\(\)"),
    "casts to integers": (lambda ctx, g, x: g * x.astype("uint16"), "casts to uint16"),
    "casts to complex": (
        lambda ctx, g, x: g * x.astype("complex64"),
        "casts to complex64.*float dtype.*real and the imaginary part",
    ),
    "reads bits": (
        lambda ctx, g, x: g * x.view(np.int32),
        r"calls .view\(\).*reads the bits of one dtype as another's.*\.astype\(dtype\)",
    ),
    "uses not bools": (lambda ctx, g, x: g * (x & g), "uses and wrongly: it needs bools"),
    "fails by itself": (lambda ctx, g, x: g * {}["w"], "raised KeyError while captured: 'w'"),
    "looks a dtype up": (
        lambda ctx, g, x: g * {np.float32: 1.0}[x.dtype],
        "raised KeyError while captured",
    ),
    "fails in a helper": (fails_in_a_helper, "uses .histogram, which is not captured"),
}


def marked_line(function: Callable[..., Any]) -> int:
    """Give the number of a lambda's line, or of the one that ends with "# here"."""
    if function.__name__ == "<lambda>":
        return function.__code__.co_firstlineno
    for candidate in (function, helper):
        lines, first = inspect.getsourcelines(candidate)
        for offset, line in enumerate(lines):
            if line.rstrip().endswith("# here"):
                return first + offset
    raise AssertionError("no marked line")


@pytest.mark.parametrize("name", REFUSED)
def test_error_names_rule_file_line_and_way_out_at_each_call(name: str, captured: Any) -> None:
    function, message = REFUSED[name]
    with pytest.raises(xg.TraceError, match=message) as raised:
        captured(function)(None, ONES, ONES)
    assert f"rule 'under test' ({HERE}:{marked_line(function)})" in str(raised.value)
    # At forward, not in backward.
    with xg.use(captured(function)), pytest.raises(xg.TraceError, match="under test"):
        xg.activation("ReLU")(ONES)


def test_a_number_drawn_in_python_is_not_frozen(captured: Any) -> None:
    with pytest.raises(xg.TraceError, match=r"another graph each time.*xp.rand_like"):
        captured(lambda ctx, g, x: g * random.random())(None, ONES, ONES)


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (lambda x: xp.clip(x, 0.0, math.inf), set()),
        (lambda x: xp.clip(xp.where(x > 0, x, math.inf), 0.0, math.inf), {math.inf}),
        (lambda x: xp.clip(x, 0.0, 2.5), {2.5}),
    ],
    ids=["open side", "infinity beside", "limit"],
)
def test_an_open_side_of_a_clip_is_no_number_that_may_have_been_drawn(
    record: Callable[[Any], Any], found: set[float]
) -> None:
    trace = Trace("clipped")
    x = trace.input("tin", INPUT)
    graph = Graph("clipped", (x.node,), (record(x).node,))
    assert numbers_from_elsewhere([graph], trace, {}) == found


def test_deviation_of_an_unknown_library_is_ambiguous_without_tensors(captured: Any) -> None:
    rule = captured(types.FunctionType(takes_an_ambiguous_deviation.__code__, {}))
    with pytest.raises(xg.TraceError, match="torch divides by n - 1, NumPy by n; write correction"):
        xg.show(rule)


def test_the_rank_of_a_computed_value_is_known(captured: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out / (xp.sum(tin, axis=0).ndim + 1)

    for x in (ONES, np.ones((2, 3), np.float32), np.ones((2, 3, 2), np.float32)):
        assert np.all(captured(rule)(None, x, x) == np.float32(1) / np.float32(x.ndim))


@pytest.mark.needs("torch")
def test_tensor_param_in_a_branch_is_refused(captured: Any, torch: Any) -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return grad_out if width > 0 else tin

    made, x = captured(rule), torch.ones(3)
    with pytest.raises(
        xg.TraceError, match=r"value of param 'width' in Python.*Pass a Python number"
    ):
        made(None, x, x, width=torch.tensor(1.0))
    assert made(None, x, x, width=1.0).tolist() == [1.0, 1.0, 1.0]


IN_TORCH: dict[str, tuple[Callable[..., Any], str]] = {
    "fft": (lambda torch, g: torch.fft.hfft(g), "calls torch's fft_hfft"),
    "bins": (lambda torch, g: torch.histc(g, 8), "calls torch's histc, which is not captured"),
    "function of the class": (lambda torch, g: torch.Tensor.exp(g), "hands a tensor to what needs"),
    "large constant": (lambda torch, g: g * torch.ones(70_000), r"constant Tensor of shape"),
    "draw of a static shape": (lambda torch, g: g * torch.rand(3), "another graph each time"),
    "integers": (lambda torch, g: g.gcd(g), "uses .gcd|calls .gcd"),
    "another device": (lambda torch, g: g.cuda(), "moves a tensor from cpu to cuda"),
    "generator": (lambda torch, g: g.uniform_(generator=torch.Generator()), "a generator.*key"),
    "matrix norm": (lambda torch, g: g / torch.linalg.norm(g, 3), "a matrix norm of order 3"),
    "diagonal": (lambda torch, g: torch.einsum("ii->i", g), "each once"),
    "expand": (lambda torch, g: g.expand(-1, *g.shape), "keeps no length"),
    "large border": (
        lambda torch, g: torch.nn.functional.pad(g, (4, 4), mode="reflect"),
        "Padding size should be less than the corresponding input dimension",
    ),
    "backward": (lambda torch, g: g.backward(), "Return the gradient"),
    "grad": (
        lambda torch, g: torch.autograd.grad(g.sum(), g)[0],
        r"'under test' \(\S+:\d+\).*is the backward pass",
    ),
    "requires_grad_": (
        lambda torch, g: g.requires_grad_(),
        r"'under test' \(\S+:\d+\).*carry no gradient",
    ),
}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", IN_TORCH)
def test_what_torch_has_and_a_graph_has_not(name: str, captured: Any, torch: Any) -> None:
    call, message = IN_TORCH[name]
    rule = captured(lambda ctx, grad_out, tin: call(torch, grad_out))
    with pytest.raises(xg.TraceError, match=message):
        rule(None, ONES, ONES)
