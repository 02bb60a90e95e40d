"""The model of multigrad in 300 lines has multigrad's numbers, residuals and names."""

from __future__ import annotations

import itertools
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from .test_examples import EXAMPLES, run_example

pytestmark = pytest.mark.needs("torch")

FILE = EXAMPLES / "multigrad_in_300_lines.py"
ROOT = EXAMPLES.parent
RULES = (
    "d(ReLU)", "rectangular", "triangular", "fast_sigmoid", "guided", "deconvnet",
    "gradient_reversal", "snnax.superspike",
)  # fmt: skip
VALUES = [-np.inf, -2.0, -0.7, -0.5, -1e-40, -0.0, 0.0, 1e-40, 0.3, 0.5, 1.0, np.inf, np.nan]
GRAD_OUT, TIN = (each.ravel() for each in np.meshgrid(*[np.array(VALUES, np.float32)] * 2))


@pytest.fixture
def model() -> Any:
    import multigrad_in_300_lines

    return multigrad_in_300_lines


def register_in(model: Any, name: str) -> None:
    """Register the code of one of our rules in the model, where NumPy's functions are `xp`'s."""
    function: Callable[..., Any] = xg.get(name).function  # type: ignore[assignment]
    names = {**function.__globals__, "xp": np}
    code, defaults = function.__code__, function.__defaults__
    model.register(name)(types.FunctionType(code, names, name, defaults, function.__closure__))


def params_of(name: str) -> list[dict[str, Any]]:
    """Return a rule's defaults, and other values."""
    return [{}, {key: 1.5 * value for key, value in xg.get(name).params.items()}]


def run(framework: str, act: Any, vjp: Any) -> list[Any]:
    """Return the output and the gradient of an activation as arrays."""
    if framework == "numpy":
        output, pull = vjp(act, TIN)
        (grad_in,) = pull(GRAD_OUT)
        return [output, grad_in]
    import torch

    tin = torch.tensor(TIN, requires_grad=True)
    output = act(tin)
    output.backward(torch.tensor(GRAD_OUT))
    assert tin.grad is not None
    return [output.detach().numpy(), tin.grad.numpy()]


def vjp_of_model(act: Any, tin: Any) -> Any:
    output, pull = act(tin)
    return output, lambda grad_out: (pull(grad_out),)


def assert_same_bits(a: Any, b: Any, framework: str) -> None:
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
    # The sign of a NaN is open, and that of a zero where torch's `maximum` has both to choose from.
    if framework == "numpy":
        numbers = ~np.isnan(a)
        np.testing.assert_array_equal(np.signbit(a)[numbers], np.signbit(b)[numbers])


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("name", RULES)
def test_the_model_computes_the_bits_of_multigrad(model: Any, name: str, framework: str) -> None:
    register_in(model, name)
    for forward, params in itertools.product(model.FORWARDS, params_of(name)):
        act = xg.activation(forward, name, params=params)
        with model.use(name, **params), np.errstate(all="ignore"):
            results = run(framework, model.activation(forward), vjp_of_model)
            expected = run(framework, act, xg.vjp)
        for result, own in zip(results, expected, strict=True):
            assert_same_bits(result, own, framework)


@pytest.mark.parametrize("name", RULES)
def test_the_model_keeps_as_many_bytes_as_multigrad(model: Any, name: str) -> None:
    register_in(model, name)
    kept = model.residuals(model.put_under(model.RULES[name], "Heaviside"))
    bytes_of = {model.TENSOR: 4, model.MASK: 1}
    total = xg.memory(xg.activation("Heaviside", name), (8,)).total
    assert 8 * sum(bytes_of[node.type] for node in kept) == total


def test_a_second_derivative_is_that_of_multigrad(model: Any) -> None:
    import torch

    register_in(model, "fast_sigmoid")
    x = torch.linspace(-1, 1, 7, dtype=torch.float64, requires_grad=True)
    curvatures = []
    for act in (model.activation("Linear"), xg.activation("Linear", "fast_sigmoid")):
        with model.use("fast_sigmoid"):
            (slope,) = torch.autograd.grad(act(x).sum(), x, create_graph=True)
            curvatures.append(torch.autograd.grad(slope.sum(), x)[0])
    torch.testing.assert_close(*curvatures)
    assert curvatures[0].abs().max() > 1


def test_a_rule_whose_code_says_something_else_next_time_is_refused(model: Any) -> None:
    calls: list[int] = []

    @model.register("counts")  # type: ignore[untyped-decorator]
    def counts(ctx: Any, grad_out: Any, tin: Any) -> Any:
        calls.append(1)
        return grad_out * len(calls)

    with model.use("counts"), pytest.raises(ValueError, match="counts gives"):
        model.activation("Linear")(np.ones(3))


def test_a_rule_that_branches_on_a_tensor_is_refused_by_name(model: Any) -> None:
    @model.register("branches")  # type: ignore[untyped-decorator]
    def branches(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out if tin > 0 else -grad_out

    with model.use("branches"), pytest.raises(TypeError, match="branches branches on a value"):
        model.activation("Linear")(np.ones(3))


def test_a_traceback_shows_the_line_of_emitted_code(model: Any) -> None:
    register_in(model, "triangular")
    with model.use("triangular"), pytest.raises(ValueError, match="broadcast") as raised:
        model.activation("Linear")(np.ones(3))[1](np.ones(2))
    assert "return [(grad_out * xp.maximum(" in str(raised.traceback[-1])


def test_it_runs_alone_and_prints_a_gradient_and_its_code(tmp_path: Path) -> None:
    output = run_example(FILE.name, tmp_path)
    assert output.startswith("tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])")
    assert "def backward(grad_out, tin, width):" in output


def test_it_has_300_lines_and_names_files_and_things_that_exist(model: Any) -> None:
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    assert "import multigrad" not in text
    titles = re.findall(r"^# --- .*", text, re.MULTILINE)
    files = [file for title in titles for file in re.findall(r"[\w/]+(?:\.py|/\w+)", title)]
    tops = (ROOT / "multigrad", ROOT / "backends")
    assert len(files) > 8
    assert [file for file in files if not any((top / file).exists() for top in tops)] == []
    sources = [path.read_text("utf-8") for path in ROOT.glob("multigrad/**/*.py")]
    for name in ("Trace", "Value", "Node", "Graph", "Function", "Rule", "Op"):
        assert any(f"class {name}" in source for source in sources)
