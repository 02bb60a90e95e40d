"""What `multigrad audit` finds in a file, and where it has inputs from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.audit.lock.lockfile import read_lock
from multigrad.command.audit import AuditRequest, audit_named, audit_targets
from multigrad.command.convert import ConvertRequest, convert_one
from multigrad.command.guessed_inputs import import_named
from multigrad.command.lock import write_lock
from multigrad.command.targets import find, find_targets, find_with_inputs, names_of
from multigrad.errors import MultigradError

pytest.importorskip("typer")
PAIRS = '''
import numpy as np


def square(x):
    return x * x


def square_vjp(grad_out, x):
    return 2.0 * x * grad_out


def product(x, y):
    """Multiply.

    Args:
        x: of shape (N, C)
        y: weights (C,)
    """
    assert x.shape[1:] == y.shape
    return x * y


def product_backward(x, y, dy):
    return dy * y, 0.5 * (dy * x).sum(0)


def slope(x):
    return np.sin(x)


def reset():
    return 0.0


def reset_grad():  # nor is this
    return 0.0


def slope_grad(x):  # a derivative, which is no VJP
    return np.cos(x)


def window(ctx, grad_out, tin):  # a rule
    return grad_out * (abs(tin) < 1)
'''
TORCHS = """
import numpy as np
import torch


class Axes:  # as jaxtyping's annotations are
    dim_str, dtypes = "n 3", ("float32",)


@torch.library.custom_op("audited_here::power", mutates_args=())
def power(x: torch.Tensor, exponent: int, scale: float = 1.0) -> torch.Tensor:
    return scale * x**exponent


def power_backward(ctx, grad_out):
    return grad_out * ctx.exponent * ctx.x, None, None  # right for 2 alone


def power_setup(ctx, inputs, output):
    ctx.x, ctx.exponent, _ = inputs


power.register_autograd(power_backward, setup_context=power_setup)
library = torch.library.Library("audited_there", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
torch.library.register_autograd("audited_there::twice", lambda ctx, grad_out: 3 * grad_out)


class Annotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Axes):
        assert x.shape[1] == 3
        return x.clone()

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out


class Tested(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        assert weight.shape == (5, 2)
        return x @ weight

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        return grad_out @ weight.T, 0.5 * x.T @ grad_out


GRADIENT_INPUTS = {"Tested": [torch.ones(3, 5), torch.ones(5, 2)]}


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(5.0 * width).reshape(5, width))

    def forward(self, x):
        return Tested.apply(x, self.weight)


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(7, 5)

    def forward(self, x):
        return Tested.apply(self.first(x), torch.ones(5, 2, dtype=x.dtype))
"""


def run(*targets: str, **asked: Any) -> tuple[int, str]:
    lines: list[str] = []
    given = {"laws": ("derivative",), **asked}
    code = audit_targets(targets, AuditRequest(**given), echo=lines.append)
    return code, "\n".join(lines)


def test_pairs_in_numpy_and_rules_are_targets_of_every_command(tmp_path: Path) -> None:
    file = tmp_path / "pairs.py"
    file.write_text(PAIRS)
    code, said = run(str(file), f"{file}:product", "triangular", "estimators.ste_round")
    assert code == 1
    assert f"{file}:square on numpy with float32[4, 6]: 1 laws kept, 0 broken" in said
    lines = said.splitlines()
    product = f"{file}:product on numpy with float32[4, 6], float32[6]: 0 laws kept, 1 broken"
    assert lines.count(product) == 2
    assert lines[lines.index(product) + 1] == "  inputs: its docstring"
    assert lines[lines.index(product) + 2].startswith("  derivative: broken: y[0]")
    assert "triangular on numpy with float32[41]: 0 laws kept, 0 broken" in said
    assert "estimators.ste_round on numpy with " in said
    assert f"{file}:window on numpy with float32[41]: 0 laws kept, 0 broken" in said
    assert "slope" not in said and "6 audited: 4 keep every law" in said
    names = f"{file}:product, {file}:square, {file}:window"
    with pytest.raises(
        MultigradError, match=re.escape(f"{file} has 3 targets; name one of {names}")
    ):
        find(str(file))


def test_what_a_file_loads_or_composes_is_among_its_targets_and_what_it_imports_is_not(
    tmp_path: Path,
) -> None:
    halved = xg.function(lambda x: 0.5 * x, lambda grad_out, x: 0.5 * grad_out)
    halved(np.ones(2))
    xg.save(halved, tmp_path / "halved.json")
    (tmp_path / "holding.py").write_text(
        "import multigrad as xg\n"
        "ste_round = xg.estimators.ste_round\n"
        f"halved = xg.load({str(tmp_path / 'halved.json')!r})\n"
        "quartered = xg.compose(halved, halved)\n"
        "triangular = xg.get('triangular')\n"
    )
    assert names_of(f"{tmp_path}/holding.py") == tuple(
        f"{tmp_path}/holding.py:{name}" for name in ("halved", "quartered")
    )
    (tmp_path / "importing.py").write_text("from holding import halved\n")
    with pytest.raises(MultigradError, match="defines no rule"):
        names_of(f"{tmp_path}/importing.py")


def test_a_word_that_names_nothing_is_told() -> None:
    with pytest.raises(MultigradError, match=r"did you mean 'json\.decoder:JSON"):
        run("json.decoder.JSONDecoder")
    with pytest.raises(MultigradError, match="there is no module 'triangluar' here"):
        run("triangluar")
    with pytest.raises(MultigradError, match="no_such"):
        run("estimators.no_such")


@pytest.mark.needs("torch")
def test_operators_and_modules_are_found(tmp_path: Path) -> None:
    file = tmp_path / "things.py"
    file.write_text(TORCHS)
    code, said = run(str(file))
    assert code == 1
    found = dict[str, list[str]]()
    for line in said.splitlines():
        if line.startswith(f"{file}:") and " on torch " in line:
            found[line.split()[0].removeprefix(f"{file}:")] = rows = [line]
        else:
            rows.append(line)

    def inputs(name: str) -> str:
        return found[name][1].removeprefix("  inputs: ")

    def given(name: str) -> str:
        return found[name][0].partition(" with ")[2].partition(":")[0]

    assert given("Annotated") == "float32[4, 3]" and inputs("Annotated") == "its annotations"
    assert given("Tested") == "float32[3, 5], float32[5, 2]"
    assert inputs("Tested") == "GRADIENT_INPUTS"
    assert given("Wide") == "float32[4, 7], first.bias float32[5], first.weight float32[5, 7]"
    assert f"{file}:Layer is not made without arguments: name an object of it" in said
    assert given("audited_here::power") == "float32[4, 6], 2"
    assert "1 laws kept" in found["audited_here::power"][0]
    assert "0 laws kept, 1 broken" in found["audited_there::twice"][0]
    assert "power_setup" not in said  # it takes a ctx, as rules do


def test_a_file_is_run_once_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run_once.py").write_text("def twice(x):\n    return 2 * x\n")
    first = import_named("run_once.py")
    assert import_named("./run_once.py") is import_named(f"{tmp_path}/run_once.py") is first


@pytest.mark.needs("torch")
def test_a_decorated_class_is_among_the_targets_of_its_file_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "decorated.py").write_text(
        "import torch\nimport multigrad as xg\n\n\n@xg.convert\n"
        "class Halved(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x: x / 2)\n"
        "    backward = staticmethod(lambda ctx, g: g / 2)\n\n\n"
        "Alias = Halved\n"
    )
    (name,) = find_targets(f"{tmp_path}/decorated.py").kinds
    assert name == f"{tmp_path}/decorated.py:Halved"
    # On the framework that it was written for, with the laws of that.
    report = audit_named(name, AuditRequest(laws=("vmap",)))
    assert (report.home, report.laws[0].state) == ("torch", "kept")


GUESSABLE = """
import torch
from torch.autograd import Function


class Levels(Function):  # LSQ: numbers of levels, the lower one negated by the code
    @staticmethod
    def forward(ctx, v, s, qn, qp):
        ctx.save_for_backward(v, s)
        ctx.levels = -qn, qp
        low, high = torch.full_like(v, -qn), torch.full_like(v, qp)
        return torch.minimum(torch.maximum(v / s, low), high).round() * s

    @staticmethod
    def backward(ctx, g):
        v, s = ctx.saved_tensors
        passes = (v / s > ctx.levels[0]) & (v / s < ctx.levels[1])
        assert passes.any() and (v / s < ctx.levels[0]).any() and (v / s > ctx.levels[1]).any()
        of_s = torch.where(passes, (v / s).round() - v / s, (v / s).clamp(*ctx.levels))
        gradients = [g * passes, (g * of_s).sum().reshape(s.shape)]
        return (*gradients, None, None)


class Entropy(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits.softmax(1), labels)
        return -logits.log_softmax(1).gather(1, labels[:, None]).mean()

    @staticmethod
    def backward(ctx, g):
        p, labels = ctx.saved_tensors
        return g * (p - torch.nn.functional.one_hot(labels, p.shape[1])) / len(p), None


class Warm(Function):  # its gradient fits a scalar alone
    @staticmethod
    def forward(ctx, x, t):
        ctx.save_for_backward(x, torch.as_tensor(t))
        return x * t

    @staticmethod
    def backward(ctx, g):
        x, t = ctx.saved_tensors
        return g * t, (g * x).sum()


class Reverse(Function):  # its scalar is a tensor, and has no gradient
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(alpha)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.saved_tensors[0] * g, None


class Stated(Warm):
    pass


GRADIENT_INPUTS = {"Stated": [torch.ones(3), 2]}
"""
STATED = "GRADIENT_INPUTS states others"
ARRAY = "give an array, by GRADIENT_INPUTS in its module"


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("Levels", "float32[4, 6], float32[], 4, 3"),
        ("Entropy", "float32[4, 6], int64[4]"),
        ("Warm", "float32[4, 6], float32[]"),
        ("Reverse", "float32[4, 6], float32[]"),
    ],
)
def test_all_commands_choose_the_same_inputs(tmp_path: Path, name: str, given: str) -> None:
    (tmp_path / "guessable.py").write_text(GUESSABLE)
    target = f"{tmp_path}/guessable.py:{name}"
    assert audit_named(target, AuditRequest(laws=("zero",))).inputs == given
    _, inputs, _ = find_with_inputs(target)  # of show, check, parity and lock
    words = [f"{x.dtype}{[*x.shape]}" if hasattr(x, "shape") else str(x) for x in inputs]
    assert ", ".join(words) == given
    assert convert_one(target, ConvertRequest(transforms=False), ["torch"]).ok


@pytest.mark.needs("torch")
def test_a_lock_says_which_inputs_were_guessed_and_which_gradient_it_lacks(tmp_path: Path) -> None:
    (file := tmp_path / "guessable.py").write_text(GUESSABLE)
    lock_file = tmp_path / "gradients.lock"
    said, _ = write_lock([f"{file}:Warm", f"{file}:Stated"], lock_file, (), None)
    assert said.splitlines()[1:] == [
        f"  {file}:Warm: locked with inputs that were guessed: 4x6, scalar:1..3; {STATED}",
        f"  {file}:Stated: its vectors have no gradient of t, given as a plain number; {ARRAY}",
    ]
    vectors = read_lock(lock_file).objects[f"{file}:Warm"]["vectors"]
    assert all("t" in vector["gradients"] for vector in vectors)
