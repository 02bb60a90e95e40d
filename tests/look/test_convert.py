"""`multigrad convert`: what it says of other people's custom gradients, one by one and of a module.

What it finds about published packages is the corpus in `tests/foreign`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multigrad.command.guessed_inputs import import_named
from multigrad.look import convert as converting
from multigrad.look.convert import convert

from ..harness import commands
from ..harness.torch_class import torch_class

pytestmark = [
    pytest.mark.needs("typer", "rich"),
    pytest.mark.backends("torch", "jax", "tensorflow"),
]
# One module for each framework: a custom gradient that converts, one that does not, a function
# that applies the first, and one whose first argument is no tensor.
TORCH = """
import torch

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * 2.0

class Branching(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if float(x.sum()) > 100.0:
            return x + 1.0
        return x * 3.0

    @staticmethod
    def backward(ctx, g):
        return g * 5.0

class Numbered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, number, x):
        return x * number.bit_length()

    @staticmethod
    def backward(ctx, g):
        return None, g

def around(x):
    return Doubled.apply(x + 1.0)
"""
JAX = """
import jax

@jax.custom_vjp
def Doubled(x):
    return x * x

Doubled.defvjp(lambda x: (x * x, None), lambda _, g: (g * 2.0,))

@jax.custom_vjp
def Branching(x):
    return x + 1.0 if float(x.sum()) > 100.0 else x * 3.0

Branching.defvjp(lambda x: (Branching(x), None), lambda _, g: (g * 5.0,))

@jax.custom_vjp
def Numbered(number, x):
    return x * number.bit_length()

Numbered.defvjp(lambda n, x: (Numbered(n, x), None), lambda _, g: (None, g))

def around(x):
    return Doubled(x + 1.0)
"""
TENSORFLOW = """
import tensorflow as tf

@tf.custom_gradient
def Doubled(x):
    return x * x, lambda g: g * 2.0

@tf.custom_gradient
def Branching(x):
    y = x + 1.0 if float(tf.reduce_sum(x)) > 100.0 else x * 3.0
    return y, lambda g: g * 5.0

@tf.custom_gradient
def Numbered(number, x):
    return x * float(number.bit_length()), lambda g: (None, g)

def around(x):
    return Doubled(x + 1.0)
"""
POWERS = """
from functools import partial
import jax

@partial(jax.custom_vjp, nondiff_argnums=(1,))
def second(x, n):
    return x**n
second.defvjp(lambda x, n: (x**n, x), lambda n, x, g: (g * n * x ** (n - 1),))

@partial(jax.custom_vjp, nondiff_argnames=("n",))
def first(n, x):
    return x**n
first.defvjp(lambda n, x: (x**n, x), lambda n, x, g: (g * n * x ** (n - 1),))

@partial(jax.custom_jvp, nondiff_argnums=(0,))
def forward(n, x):
    return x**n

@forward.defjvp
def forward_jvp(n, primals, tangents):
    return primals[0]**n, tangents[0] * n * primals[0] ** (n - 1)

@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def summed(x, axis, keepdims: bool):
    assert keepdims is True
    return x.sum(axis, keepdims=keepdims)
summed.defvjp(lambda x, *fixed: (summed(x, *fixed), x), lambda axis, keep, x, g: (g + 0 * x,))
"""
X = np.linspace(-2.0, 2.0, 24, dtype=np.float32).reshape(4, 6)
MODULES = {"torch": TORCH, "jax": JAX, "tensorflow": TENSORFLOW}


@pytest.fixture
def module(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write a module of custom gradients into a package of the current folder; return its name."""
    package = tmp_path / f"others_{backend.name}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "spikes.py").write_text(MODULES[backend.name])
    (package / "broken.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    yield f"{package.name}.spikes"
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]


@pytest.fixture
def invoke(backend: Any) -> Any:
    """Run `multigrad convert` with these words on NumPy and one framework, uncompiled."""
    options = ("--backends", f"numpy,{backend.name}", "--compiled", "")
    return lambda *words: commands.invoke("convert", *words, *options)


def test_a_custom_gradient_is_equal_to_itself_everywhere(
    backend: Any, module: str, invoke: Any
) -> None:
    result = invoke(f"{module}:Doubled", "--input", "4x6")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        f"Doubled, written for {backend.name}",
        "  numpy        converted, equal",
        f"  {backend.name:12} converted, equal",
        "  vmap         equal",
        "  compile      equal",
    ]
    left_out = invoke(f"{module}:Doubled", "--input", "4x6", "--no-transforms")
    assert left_out.output.splitlines() == result.output.splitlines()[:3]


@pytest.mark.backends("torch")
def test_tensors_among_the_inputs_are_tensors_on_every_backend(module: str, invoke: Any) -> None:
    import torch

    doubled = import_named(module).Doubled
    found = convert(doubled, torch.ones(2, 3), backends=["numpy"])
    assert [str(each) for each in found.verdicts] == ["converted, equal"]


def test_a_function_that_applies_one_is_compared_with_its_gradient(
    backend: Any, module: str, invoke: Any
) -> None:
    result = invoke(f"{module}:around", "--input", "4x6", "--json")
    found = json.loads(result.output)
    assert found["home"] == backend.name
    assert {row["state"] for row in found["verdicts"].values()} == {"converted, equal"}
    states = {name: row["state"] for name, row in found["transforms"].items()}
    assert states == {"vmap": "equal", "compile": "equal"}


def test_what_is_not_captured_is_refused_by_its_line_and_runs_at_home(
    backend: Any, module: str, invoke: Any
) -> None:
    result = invoke(f"{module}:Branching", "--input", "4x6")
    assert result.exit_code == 0, result.output
    _, on_numpy, at_home, mapped, compiled = result.output.splitlines()
    assert "refused: " in on_numpy
    assert "spikes.py:" in on_numpy
    assert at_home.startswith(f"  {backend.name:12} as it is")
    assert mapped.startswith("  vmap         refused: ")
    assert compiled.startswith("  compile      refused: ")


def test_a_package_is_a_table_of_what_its_modules_define(
    backend: Any, module: str, invoke: Any
) -> None:
    package = module.partition(".")[0]
    result = invoke(package)
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.output.splitlines() if line.strip()}
    heading = ["numpy", backend.name, "vmap", "compile"]
    assert heading in [line.split() for line in result.output.splitlines()]
    assert lines[f"{module}:Doubled"].split()[1:] == ["equal"] * 4
    assert "refused" in lines[f"{module}:Branching"]
    assert "under vmap: 1 refused, 2 equal" in result.output
    assert lines[f"{module}:Numbered"].split()[1:] == ["equal"] * 4
    assert f"{module}:around" not in lines
    assert "3 of 3 custom gradients: " in result.output
    assert f"{package}.broken" in result.output
    assert "no_such_library" in result.output


def test_inputs_come_in_the_order_of_the_arguments_or_from_the_module(
    module: str, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = {"Numbered": [5, np.ones((4, 6), np.float32)]}
    for words in (("--input", "5", "--input", "4x6"), ()):
        result = invoke(f"{module}:Numbered", *words, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.output)["verdicts"]["numpy"]["state"] == "converted, equal"
        monkeypatch.setattr(import_named(module), "GRADIENT_INPUTS", stated, raising=False)


@pytest.mark.backends("jax")
def test_an_argument_that_takes_no_tensor_is_tried_with_a_number(
    module: str, invoke: Any, tmp_path: Path
) -> None:
    file = tmp_path / "powers.py"
    file.write_text(POWERS)
    result = invoke(str(file))
    assert result.exit_code == 0, result.output
    assert result.output.count(f"\n{file}:") == 4
    assert "4 of 4 custom gradients: 4 converted, equal" in result.output


def test_other_numbers_than_the_originals_are_an_error(
    module: str, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = converting.find_original

    def find_another(obj: Any, *options: Any) -> Any:
        own = find(obj, *options)
        return dataclasses.replace(own, call=lambda *args: own.call(*args) * 1.001)

    monkeypatch.setattr(converting, "find_original", find_another)
    result = invoke(f"{module}:Doubled", "--input", "4x6")
    assert result.exit_code == 1
    assert result.output.count("differs: output: ") == 4  # of vmap and compile, too


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("{}:Dubled", (), "did you mean 'Doubled'?"),
        ("{}z:Doubled", (), "did you mean 'spikes'?"),
        ("{}:Doubled", ("--input", "4by6"), "--input '4by6' is not a value; write 4x6"),
        ("{}:Doubled", ("--input", "4x6:flat32"), "'flat32' is not a dtype"),
        ("{}:Numbered", ("--input", "4x6", "--input", "4x6"), "needs --input"),
        ("{}:Numbered", ("--input", "4x6", "--input", "12"), "; 12 is a number, 12:float32 is a"),
    ],
)
def test_a_mistake_is_said_with_what_to_write(
    module: str, invoke: Any, name: str, words: tuple[str, ...], message: str
) -> None:
    result = invoke(name.format(module), *words)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.backends("jax", "tensorflow")
def test_it_also_runs_compiled(backend: Any, module: str) -> None:
    spikes = import_named(module)
    report = convert(spikes.around, X, backends=[backend.name], compiled=[backend.name])
    assert report.ok
    assert str(report.verdicts[0]) == "converted, equal"
    # What the original cannot do under a compiler is no fault of ours.
    branching = convert(spikes.Branching, X, backends=[backend.name], compiled=[backend.name])
    assert branching.verdicts[0].state == "as it is"


def test_the_corpus_has_a_verdict_of_each_row_and_none_that_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(__file__).parents[2]
    from pages.conversions import read_rows

    monkeypatch.chdir(root)
    rows = read_rows()
    cases = tomllib.loads((root / "tests/foreign/cases.toml").read_text(encoding="utf-8"))
    assert [row.name for row in rows] == [name for names in cases.values() for name in names]
    assert len(rows) >= 250
    assert len(cases) >= 30
    states = {text.partition(":")[0] for row in rows for text in row.verdicts.values()}
    assert not states & {"differs", "failed", "absent", "needs input"}


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        ("refused: function 'f' (f.py:3) calls g, which is not captured. Write it out", 0),
        ("refused: function 'f' (f.py:3) calls h, which is not captured", 1),
        ("equal", 1),
        ("differs: output: 1.0 instead of 2.0", 1),
    ],
)
def test_a_row_that_does_better_or_worse_than_expected_fails_the_corpus(
    verdict: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(__file__).parents[1] / "foreign" / "run.py"
    spec = importlib.util.spec_from_file_location("run_corpus", path)
    runner = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_corpus", runner)
    spec.loader.exec_module(runner)
    row = runner.Row("package", "module:f", ("4x6",))
    expected = {"numpy": "refused: (f.py:3) calls g, which is not captured"}
    monkeypatch.setattr(runner, "read_cases", lambda chosen=(): [row])
    monkeypatch.setattr(runner, "read_expected", lambda: {"module:f": expected})
    monkeypatch.setattr(runner, "run_rows", lambda rows, seconds: [(row, {"numpy": verdict})])
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert runner.main() == status


@pytest.mark.backends("torch")
def test_float64_code_that_computes_in_float32_is_as_exact_as_it_itself_is(backend: Any) -> None:
    import torch

    @torch_class(lambda ctx, g: (g.float() * ctx.saved_tensors[0]).to(g.dtype))
    def Normalized(ctx: Any, x: Any) -> Any:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True))
        ctx.save_for_backward(scale)
        return (x.float() * scale).to(x.dtype)

    x = np.random.default_rng(0).normal(size=(4, 6))
    found = convert(Normalized, x, backends=["numpy", "torch"])
    assert [verdict.state for verdict in found.verdicts] == [converting.EQUAL] * 2


def in_words(found: Any) -> dict[str, str]:
    return {each.backend: each.state for each in found.transforms}


@pytest.mark.backends("torch")
def test_a_class_that_is_equal_but_for_vmap_says_so(backend: Any) -> None:
    @torch_class(lambda ctx, g: g * ctx.saved_tensors[0])
    def Rounded(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        y = x.round()
        y.scale = 2.0
        return y

    found = convert(Rounded, X, backends=["torch"], transforms=True)
    assert in_words(found)["vmap"] == "refused"
    reason = found.transforms[0].reason
    assert "'Rounded'" in reason
    assert "sets attributes of tensors (scale; return them as results)" in reason
    assert "setup_context(ctx, inputs, output)" in reason
    assert found.ok


def test_other_numbers_under_a_transform_differ(
    backend: Any, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, doubled = converting.run_mapped, import_named(module).Doubled

    def run_otherwise(*given: Any) -> Any:
        return {name: found * 1.001 for name, found in run(*given).items()}

    monkeypatch.setattr(converting, "run_mapped", run_otherwise)
    found = convert(doubled, X, backends=[backend.name], transforms=True)
    assert in_words(found) == {"vmap": "differs", "compile": "equal"}
    assert "instead of" in found.transforms[0].reason
    assert not found.ok


def test_numbers_and_words_among_the_inputs_stay_fixed_under_transforms(
    backend: Any, module: str
) -> None:
    numbered = import_named(module).Numbered
    found = convert(numbered, 5, X, backends=[backend.name], transforms=True)
    assert in_words(found) == {"vmap": "equal", "compile": "equal"}
