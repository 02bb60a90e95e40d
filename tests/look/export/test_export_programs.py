"""Programs of torch that `xg.export` writes: what is loaded has the custom gradient, where
multigrad is and where it is not, and no other one.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.errors import FormatError, GradientError, RuleTypeError, TraceError, UnsupportedOp

from ...harness.hidden import python

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.needs("torch"), pytest.mark.usefixtures("torch_compiles")]
Tensor: TypeAlias = Any

X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


@xg.custom_gradient
def clipped(x: Tensor, limit: float) -> Any:
    def grad(upstream: Tensor) -> Any:
        return 3.0 * upstream * x * (xp.abs(x) < limit), None

    return xp.clip(x, -limit, limit), grad


class Normalize(torch.autograd.Function):
    """A layer norm that returns what it normalized, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        centered = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-5)
        normal = centered * scale
        ctx.save_for_backward(normal, scale, weight)
        return normal * weight + bias, normal

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_normal: Tensor) -> Any:
        normal, scale, weight = ctx.saved_tensors
        inner = grad_out * weight + grad_normal
        mean = inner.mean(-1, keepdim=True) + normal * (inner * normal).mean(-1, keepdim=True)
        return scale * (inner - mean), (grad_out * normal).sum(0), grad_out.sum(0)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(3, 3)
        self.weight = torch.nn.Parameter(torch.randn(3))
        self.bias = torch.nn.Parameter(torch.randn(3))
        self.normalize = xg.convert(Normalize)
        self.spike = xg.Activation("Heaviside", rule="triangular", params={"width": 2.0})
        self.sign = xg.Activation("Sign")

    def forward(self, x: Tensor) -> Tensor:
        y, normal = self.normalize(clipped(self.linear(x), 2.0), self.weight, self.bias)
        return self.spike(y) * normal + self.sign(y)


def pull(model: Any) -> list[Tensor]:
    """Return the output for X, and the gradients of the input and the parameters, by name."""
    x = torch.tensor(X, requires_grad=True)
    y = model(x)
    named = sorted(model.named_parameters()) if isinstance(model, torch.nn.Module) else ()
    return [y, *torch.autograd.grad(y.sum(), [x, *(p for _, p in named)])]


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(map(torch.equal, found, expected)) and len(found) == len(expected)


def operators(program: Any) -> list[str]:
    nodes = (node for node in program.graph.nodes if node.op == "call_function")
    names = [str(node.target) for node in nodes]
    return [name.split(".")[1] for name in names if name.startswith("multigrad.")]


class Exported:
    """A model's program in a file, exported with a batch of four."""

    def __init__(self, folder: Path, strict: bool) -> None:
        self.folder, self.model = folder, Model()
        self.program = xg.export(
            self.model,
            folder / "model.pt2",
            torch.zeros(4, 3),
            dynamic_shapes=({0: "batch"},),
            standalone=folder / "operators.py",
            strict=strict,
        )
        self.expected = pull(self.model)


@pytest.fixture(scope="module", params=[False, True], ids=["non-strict", "strict"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Exported]:
    yield Exported(tmp_path_factory.mktemp("exported"), request.param)


# --- what is loaded -------------------------------------------------------------------------------


def test_each_custom_gradient_is_one_node(exported: Exported) -> None:
    names = [name.rpartition("_")[0] for name in operators(exported.program)]
    assert names == ["clipped", "Normalize", "triangular_under_Heaviside", "d_Sign_under_Sign"]
    assert list(xg.load_operators(exported.folder / "model.pt2")) == operators(exported.program)


def test_a_loaded_program_has_the_custom_gradients(exported: Exported) -> None:
    program = torch.export.load(exported.folder / "model.pt2")
    assert equal(pull(program.module()), exported.expected)
    assert equal(pull(program.run_decompositions().module()), exported.expected)


def test_a_loaded_program_is_compiled_with_the_custom_gradients(exported: Exported) -> None:
    torch.compiler.reset()
    module = torch.export.load(exported.folder / "model.pt2").module()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert equal(pull(compiled), exported.expected)


LOAD = """
import sys, pathlib, torch
folder = pathlib.Path(sys.argv[1])
def load():
    return torch.export.load(folder / "model.pt2").module()
try:
    load()
except RuntimeError as error:
    assert "deserializing" in str(error), error
else:
    raise AssertionError("the operators were not known, and the program was loaded")
{register}
module, x = load(), torch.load(folder / "x.pt").requires_grad_()
y = module(x)
named = sorted(module.named_parameters())
torch.save([y, *torch.autograd.grad(y.sum(), [x, *(p for _, p in named)])], folder / "found.pt")
"""
IMPORT = "sys.path.insert(0, str(folder)); import operators"
BY_TORCH = f"sys.modules['multigrad'] = None; {IMPORT}"  # it cannot be imported then
BY_BOTH = f"import multigrad as xg; xg.load_operators(folder / 'model.pt2'); {IMPORT}"


@pytest.mark.parametrize("register", [BY_TORCH, BY_BOTH], ids=["torch alone", "multigrad first"])
@pytest.mark.parametrize("exported", [False], indirect=True)
def test_another_process_has_them_once_it_knows_the_operators(
    register: str, exported: Exported
) -> None:
    torch.save(torch.tensor(X), exported.folder / "x.pt")
    python("-c", LOAD.format(register=register), exported.folder)
    assert equal(torch.load(exported.folder / "found.pt"), exported.expected)


def test_a_length_that_was_left_open_is_one_in_backward_too(tmp_path: Path) -> None:
    torch.compiler.reset()
    act = xg.activation("Tanh", "clip_rms", {"threshold": 0.5})
    example = torch.zeros(4, 3)
    program = xg.export(act, tmp_path / "f.pt2", example, dynamic_shapes=({0: "batch"},))
    compiled = torch.compile(program.module(), backend="aot_eager", dynamic=True)
    for found, expected in zip(pull(compiled), pull(act), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_a_second_derivative_is_that_of_the_function(tmp_path: Path) -> None:
    def second(function: Callable[..., Any]) -> Tensor:
        x = torch.tensor(X, requires_grad=True)
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    cubed = xg.function(xp.tanh, lambda grad_out, x: grad_out * x**3)
    program = xg.export(cubed, tmp_path / "cubed.pt2", torch.tensor(X))
    assert torch.equal(second(program.module()), second(cubed))
    nested = xg.function(xp.tanh, lambda grad_out, x: grad_out * cubed(x))
    program = xg.export(nested, tmp_path / "nested.pt2", torch.tensor(X))
    with pytest.raises(GradientError, match="'tanh' uses a function with a gradient of its own"):
        second(program.module())


def test_forward_mode_is_refused_where_torch_would_give_zeros(tmp_path: Path) -> None:
    x = torch.tensor(X)
    module = xg.export(clipped, tmp_path / "clipped.pt2", x, 2.0).module()
    with pytest.raises(GradientError, match=r"operator 'clipped_\w+' has no forward mode"):
        torch.func.jvp(lambda x: module(x, 2.0), (x,), (x,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(GradientError, match="no forward"):
        module(torch.autograd.forward_ad.make_dual(x, x), 2.0)


def test_a_model_with_rules_attached_keeps_them(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    xg.attach(model, {torch.nn.ReLU: "triangular"})
    expected = pull(model)
    program = xg.export(model, tmp_path / "model.pt2", torch.tensor(X))
    assert equal(pull(program.module()), expected)


def test_a_rule_in_force_is_exported_as_it_is_then(tmp_path: Path) -> None:
    act = xg.activation("Tanh")
    with xg.use("triangular", {"width": xg.schedule.linear(3.0, 4.0, 5)}):
        expected = pull(act)
        program = xg.export(act, tmp_path / "act.pt2", torch.tensor(X))
    assert equal(pull(program.module()), expected)
    assert not equal(pull(act), expected)


def test_what_torch_exports_by_itself_has_no_gradient_before_and_after(tmp_path: Path) -> None:
    act, x = xg.Activation("Tanh", rule="triangular"), torch.tensor(X, requires_grad=True)
    for _ in range(2):
        assert not torch.export.export(act, (x,)).module()(x).requires_grad
        assert operators(xg.export(act, tmp_path / "act.pt2", x))


# --- names ----------------------------------------------------------------------------------------


def test_an_operator_is_named_by_what_it_computes(tmp_path: Path) -> None:
    def name_of(factor: float) -> str:
        function = xg.function(xp.tanh, lambda grad_out, x: factor * grad_out)
        (name,) = operators(xg.export(function, tmp_path / "f.pt2", torch.tensor(X)))
        return name

    assert name_of(2.0) == name_of(2.0)
    assert name_of(2.0) != name_of(3.0)


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the documents in a program's file."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, change(data) if name.endswith("/multigrad.json") else data)


def with_another_gradient(text: bytes) -> bytes:
    document = json.loads(text)
    (function,) = document["operators"].values()
    nodes = function["forms"][0]["backward"]["nodes"]
    (constant,) = [node for node in nodes if node.get("attrs", {}).get("value") == 2.0]
    constant["attrs"]["value"] = 3.0
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_another_gradient, "its graphs are those of 'tanh_"),
        (lambda text: text.replace(b'"operators"', b'"operas"', 1), "expected 'operators'"),
        (lambda text: text[:-9], "the document is no JSON"),
    ],
    ids=["changed", "other kind", "cut off"],
)
def test_a_file_that_was_changed_is_refused(
    change: Callable[[bytes], bytes], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "f.pt2"
    xg.export(xg.function(xp.tanh, lambda grad_out, x: 2.0 * grad_out), path, torch.tensor(X))
    rewrite(path, change)
    with pytest.raises(FormatError, match=words):
        xg.load_operators(path)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.pt2"
    path.write_bytes(b"no archive")
    with pytest.raises(FormatError, match=r"f\.pt2' is not an exported program"):
        xg.load_operators(path)
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.tensor(X),)), path)
    with pytest.raises(FormatError, match=r"no operators of multigrad: write it by xg\.export"):
        xg.load_operators(path)


# --- what is refused ------------------------------------------------------------------------------


def as_it_is(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * float(tin.sum())


REFUSED = {
    "draws": (lambda: xg.activation("Tanh", "noise"), UnsupportedOp, "'noise' draws random"),
    "as it is": (
        lambda: xg.activation("Tanh", xg.register("as it is", native=True)(as_it_is)),
        UnsupportedOp,
        "rule 'as it is' under Tanh runs as written",
    ),
    "not captured": (
        lambda: xg.function(lambda x: x * float(x.sum()), lambda g, x: g, native=False),
        TraceError,
        r"test_export_programs\.py:\d+",
    ),
    "another library": (
        lambda: lambda x: np.tanh(x.tolist()),
        TypeError,
        r"'f\.pt2' holds a program of torch, and function .* gives arrays of numpy",
    ),
    "opaque": (
        lambda: xg.opaque(np.tanh, lambda g, x: g, result="x"),
        UnsupportedOp,
        "'tanh' runs on NumPy's arrays",
    ),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("case", REFUSED)
def test_what_can_be_no_operator_is_refused_by_name(
    case: str, strict: bool, tmp_path: Path
) -> None:
    make, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        xg.export(make(), tmp_path / "f.pt2", torch.tensor(X), strict=strict)
    assert not (tmp_path / "f.pt2").exists()


def test_what_asks_for_lengths_that_shall_stay_open_is_named(tmp_path: Path) -> None:
    rows = xg.function(lambda x: x.reshape((*x.shape[:-1], -1)), lambda g, x: 3.0 * g)
    with pytest.raises(UnsupportedOp, match="'<lambda>' asks for lengths in Python"):
        xg.export(rows, tmp_path / "f.pt2", torch.tensor(X), dynamic_shapes=({0: "batch"},))
    # The lengths of one tensor are those of no other.
    wide = xg.function(lambda x, w: x * w.reshape((*w.shape[:-1], -1)), lambda g, x, w: (g, None))
    inputs, shapes = (torch.tensor(X), torch.ones(3)), ({0: "batch"}, None)
    program = xg.export(wide, tmp_path / "f.pt2", *inputs, dynamic_shapes=shapes)
    assert program.module()(torch.ones(7, 3), torch.ones(3)).shape == (7, 3)


def test_a_param_that_is_a_tensor_is_refused(tmp_path: Path) -> None:
    act = xg.Activation("Tanh")
    with (
        xg.use("triangular", {"width": torch.tensor(2.0)}),
        pytest.raises(UnsupportedOp, match="'triangular' under Tanh takes a tensor for a param"),
    ):
        xg.export(act, tmp_path / "f.pt2", torch.tensor(X))


@pytest.mark.parametrize(
    ("obj", "name", "error", "words"),
    [
        ("triangular", "f.pt2", RuleTypeError, "got str 'triangular'; a rule is exported within"),
        (clipped, "f.tflite", FormatError, r"files in \.pt2 and \.onnx"),
        (clipped, "f", FormatError, "no exporter here writes 'f'"),
    ],
)
def test_what_cannot_be_exported_is_told_what_can(
    obj: Any, name: str, error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        xg.export(obj, tmp_path / name, torch.tensor(X), 2.0)
