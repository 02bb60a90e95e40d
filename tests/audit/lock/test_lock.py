"""Locks: what is written is read again, what changed is named, and what is damaged is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.audit.lock import lockfile, runner, verify
from multigrad.audit.lock.lockfile import (
    Answer,
    Asking,
    LockFile,
    Probe,
    find_probes,
    format_lock,
    probes_of,
    read_lock,
    read_table,
)
from multigrad.audit.lock.verify import make_entry, verify_frameworks
from multigrad.engine.functions.documents.format import digest
from multigrad.errors import FormatError, MultigradError

from ...harness import commands
from ...harness.formats import fits
from ...harness.hidden import run_python
from ...versions.conventions import differences

needs_cli = pytest.mark.needs("typer", "rich")
CLAMP = Probe("torch.clamp(x, 0.0, 1.0)", "at its lower bound", {"x": "0x0p+0"})
POW = Probe("torch.pow(x, y)", "at (0, 0)", {"x": "0x0p+0", "y": "0x0p+0"})


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run the command with these words, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return commands.invoke


def gives(value: str, **derivative: str | None) -> dict[str, Any]:
    found = {name: None if each is None else [each] for name, each in derivative.items()}
    return {"value": [value], "derivative": found}


def lock_of(*rows: tuple[Probe, Any], version: str = "2.13.0") -> LockFile:
    answer = Answer(version, outcomes={probe.name: outcome for probe, outcome in rows})
    return LockFile({probe.name: probe for probe, _ in rows}, {"torch": answer})


def sentences(probe: Probe, before: Any, after: Any) -> list[str]:
    lock, now = lock_of((probe, before)), Answer("2.4.0", outcomes={probe.name: after})
    result = verify_frameworks(lock, {"torch": now})
    return [change.sentence for change in result.changes]


# --- the table -----------------------------------------------------------------------------------


def test_every_row_of_the_table_is_a_call_that_may_be_made() -> None:
    table = read_table()
    assert len(table) > 1500
    for probe in table.values():
        runner.read_call(probe.call)
        assert probe.framework in runner.NAMESPACES
    places: dict[tuple[str, str], Any] = {}
    for probe in table.values():
        assert places.setdefault((probe.framework, probe.at), probe.inputs) == probe.inputs


def test_the_table_asks_what_upgrades_have_changed() -> None:
    names = {probe.path.rpartition(".")[2] for probe in read_table().values()}
    assert names >= {"clamp", "clip", "relu", "abs", "max", "amax", "norm", "reduce_max", "sort"}
    assert {probe.framework for probe in read_table().values()} == set(runner.NAMESPACES)
    assert len(probes_of("torch.tanh")) == 15
    assert {probe.path for probe in probes_of("torch.clamp").values()} == {"torch.clamp"}


@pytest.mark.parametrize(
    "call",
    [
        "torch.load(x)",
        "torch.os.system(x)",
        "torch.hub.load(x)",
        "torch._dynamo.reset(x)",
        "torch.__class__(x)",
        "torch.save(x, 'name')",
        "torch.clamp(1.0)",
        "torch.sum(x, 'a/b')",
        "torch.sum(x, **y)",
        "torch.sum(x)(x)",
        "torch.sum((lambda: x)())",
        "torch.sum(tensor)",
        "torch.sum(x).real",
        "torch.sum(x",
        "x",
        "os.system(x)",
        "__import__('os')",
        "jax.numpy.save(x)",
        "tf.py_function(x)",
        "multigrad.save(x)",
        "torch.sum(" + "x, " * 200 + "x)",
    ],
)
def test_what_is_no_call_with_a_tensor_is_refused(call: str) -> None:
    with pytest.raises(runner.RefusedProbe):
        runner.read_call(call)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0x0p+0"), (-0.0, "-0x0p+0"), (1.5, "0x1.8p+0"), (1e-320, "0x0.00000000007e8p-1022"),
        (float("nan"), "nan"), (float("-inf"), "-inf"), (0.1, "0x1.999999999999ap-4"),
    ],
)  # fmt: skip
def test_floats_are_written_as_c_prints_them(number: float, text: str) -> None:
    assert runner.hex_of(number) == text
    assert str(float.fromhex(text)) == str(number)


# --- asking --------------------------------------------------------------------------------------

EXPECTED = {
    "torch": ("torch.abs(x) at 0", [0.0]),
    "jax": ("jax.numpy.maximum(x, y) of equal operands", [0.5]),
    "tensorflow": ("tf.nn.relu(x) at 0", [0.0]),
    "multigrad": ("multigrad.xp.clip(x, 0.0, 1.0) at its lower bound", [1.0]),
}


@pytest.mark.parametrize(
    "framework",
    [
        pytest.param(name, marks=() if name == "multigrad" else pytest.mark.needs(name))
        for name in EXPECTED
    ],
)
def test_a_framework_answers(framework: str) -> None:
    name, derivative = EXPECTED[framework]
    probe = find_probes([framework])[name]
    given = {name: {"call": probe.call, "inputs": probe.inputs}}
    missing = {"call": probe.call.replace("(", "_of_old(", 1), "inputs": probe.inputs}
    version, found, other = runner.answer(framework, {**given, "~": missing})
    assert version["version"][0].isdigit()
    assert found["probe"] == name
    assert [float.fromhex(n) for n in found["outcome"]["derivative"]["x"]] == derivative
    assert other["outcome"] == {"missing": True}


@pytest.mark.needs("tensorflow")
def test_tensorflow_is_given_the_zero_that_is_meant() -> None:
    call = "tf.sqrt(x)"
    both = {sign: {"call": call, "inputs": {"x": f"{sign}0x0p+0"}} for sign in ("-", "")}
    _, *answers = runner.answer("tensorflow", both)
    values = {answer["probe"]: answer["outcome"]["value"] for answer in answers}
    assert values == {"-": ["-0x0p+0"], "": ["0x0p+0"]}


def test_a_call_that_ends_its_process_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "runner.py"
    file.write_text(
        "import json, os, signal, sys\n"
        "print(json.dumps({'version': '1.0'}))\n"
        "for name in sorted(json.load(sys.stdin)['probes']):\n"
        "    if 'abs' in name: sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "    print(json.dumps({'probe': name, 'outcome': {'missing': True}}))\n"
    )
    monkeypatch.setattr(lockfile, "RUNNER", file)
    probes = {
        n: p for n, p in find_probes(["torch"]).items() if p.path in ("torch.abs", "torch.relu")
    }
    answer = Asking(probes, ["torch"]).run()["torch"]
    assert answer.outcomes["torch.abs(x) at 0"] == {"raises": lockfile.ENDS}
    assert answer.outcomes["torch.relu(x) at 0"] == {"missing": True}
    assert answer.outcomes.keys() == probes.keys()


def test_a_python_that_is_not_there_is_an_error() -> None:
    with pytest.raises(MultigradError, match="/nowhere/python cannot be run"):
        Asking({CLAMP.name: CLAMP}, ["torch"], "/nowhere/python").run()


# --- sentences -----------------------------------------------------------------------------------


ZERO, ONE, INFINITE = (gives("0x0p+0", x=each) for each in ("0x0p+0", "0x1p+0", "inf"))
GONE = {"missing": True}
EARLIER, NOW = "in torch 2.13.0", "in this one (2.4.0)"
SLOPE = "clamp's derivative at its lower bound is"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (ONE, ZERO, f"{SLOPE} 1 {EARLIER} and 0 {NOW}"),
        (ZERO, gives("nan", x="0x0p+0"), f"clamp at its lower bound is 0 {EARLIER} and NaN {NOW}"),
        (ONE, gives("0x0p+0", x=None), f"{SLOPE} 1 {EARLIER} and none {NOW}"),
        (INFINITE, ONE, f"{SLOPE} inf {EARLIER} and 1 {NOW}"),
        (ZERO, GONE, f"torch.clamp is {EARLIER}, and is not {NOW}"),
        (GONE, ZERO, f"torch.clamp is not {EARLIER}, and is {NOW}"),
        (
            {"raises": "RuntimeError"},
            ZERO,
            f"clamp at its lower bound raises RuntimeError {EARLIER} and runs {NOW}",
        ),
    ],
)
def test_a_change_is_named_in_a_sentence(before: Any, after: Any, said: str) -> None:
    assert sentences(CLAMP, before, after) == [said]
    assert sentences(CLAMP, before, before) == sentences(CLAMP, after, after) == []


def test_a_function_of_two_says_which() -> None:
    before, after = (gives("0x1p+0", x="0x0p+0", y=each) for each in ("-inf", "nan"))
    said = f"pow's derivative for y at (0, 0) is -inf {EARLIER} and NaN {NOW}"
    assert sentences(POW, before, after) == [said]


def test_roundings_and_signs_of_zeros_are_said_and_not_failed() -> None:
    lock = lock_of((CLAMP, gives("0x1p+0", x="0x0p+0")))
    now = Answer("2.4.0", outcomes={CLAMP.name: gives("0x1.000002p+0", x="-0x0p+0")})
    result = verify_frameworks(lock, {"torch": now})
    assert result.ok
    assert result.remarks[1:] == [
        "torch: 1 numbers differ in their last bits", "torch: 1 zeros have the other sign"
    ]  # fmt: skip


def test_what_is_not_installed_is_said() -> None:
    lock = lock_of((CLAMP, gives("0x0p+0", x="0x1p+0")))
    absent = Answer(absent="ModuleNotFoundError: No module named 'torch'")
    result = verify_frameworks(lock, {"torch": absent})
    assert result.ok
    assert "torch 2.13.0 was locked and is not available here" in result.remarks[0]


def test_the_page_groups_the_places_where_releases_differ_alike() -> None:
    rows = {
        "torch.fmax(x, y) at (0, 0)": gives("0x0p+0", x="0x1p+0", y="0x0p+0"),
        "torch.fmax(x, y) of equal operands": gives("0x0p+0", x="0x1p+0", y="0x0p+0"),
        "torch.abs(x) at 0": gives("0x0p+0", x="0x0p+0"),
        "torch.i0(x) at 0": {"missing": True},
    }
    half = gives("0x0p+0", x="0x1p-1", y="0x0p+0")
    later = {n: half if "fmax" in n else gives("0x0p+0", x="0x0p+0") for n in rows}
    found = list(differences([Answer("1", outcomes=rows), Answer("2", outcomes=later)]))
    assert [(each["function"], each["what"], each["cells"]) for each in found] == [
        ("torch.i0", "function", ["-", "there"]),
        ("torch.fmax", "derivative for x", ["1", "0.5"]),
    ]
    assert found[1]["at"] == ["of equal operands", "at (0, 0)"]


# --- files ---------------------------------------------------------------------------------------


def written(path: Path, **changed: Any) -> Path:
    """Write a lock, with other fields and the hash of these."""
    data = lock_of((CLAMP, gives("0x0p+0", x="0x1p+0"))).to_dict() | changed
    data["hash"] = changed.get("hash", digest({n: d for n, d in data.items() if n != "hash"}))
    path.write_text(json.dumps(data))
    return path


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    lock = lock_of((CLAMP, gives("0x0p+0", x="0x1p+0")), (POW, {"raises": "RuntimeError"}))
    (tmp_path / "a.lock").write_text(format_lock(lock))
    again = read_lock(tmp_path / "a.lock")
    assert again == lock
    assert format_lock(again) == format_lock(lock)
    assert all(line.count("derivative") < 2 for line in format_lock(lock).splitlines())


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"format": "multigrad"}, "this is not a lock"),
        ({"version": 2}, f"version 2, newer than 1, which multigrad {xg.__version__} reads"),
        ({"version": "1"}, "version: expected 1, got '1'"),
        ({"hash": "sha256:00"}, "not as it was written: write it again"),
        ({"frameworks": []}, "frameworks: expected an object"),
        ({"frameworks": {"theano": {}}}, r"frameworks.theano: expected one of torch, jax"),
        ({"extra": 1}, "there is no field 'extra'"),
    ],
)
def test_a_damaged_lock_is_refused(tmp_path: Path, changed: Any, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        read_lock(written(tmp_path / "a.lock", **changed))


@pytest.mark.parametrize(
    ("call", "outcome", "problem"),
    [
        ("torch.load(x)", gives("0x0p+0", x="0x0p+0"), "none of the functions"),
        ("jax.nn.relu(x)", gives("0x0p+0", x="0x0p+0"), "is a call of jax"),
        ("torch.abs(x)", gives("0.5", x="0x0p+0"), "expected a hex float, got '0.5'"),
        ("torch.abs(x)", {"value": ["0x0p+0"]}, "the field 'derivative' is missing"),
        ("torch.abs(x)", gives("0x0p+0", y="0x0p+0"), "the field 'x' is missing"),
        ("torch.abs(x)", {"raises": 1}, "the field 'value' is missing"),
    ],
)
def test_a_lock_asks_for_nothing_but_probes(
    tmp_path: Path, call: str, outcome: Any, problem: str
) -> None:
    places = {"at 0": {"inputs": {"x": "0x0p+0"}, "calls": {call: outcome}}}
    file = written(tmp_path / "a.lock", frameworks={"torch": {"version": "1", "places": places}})
    with pytest.raises(FormatError, match=problem):
        read_lock(file)


# --- commands ------------------------------------------------------------------------------------


@needs_cli
def test_what_is_locked_is_verified(invoke: Any, tmp_path: Path) -> None:
    xg.save(xg.get("triangular").with_params(width=2.0), tmp_path / "narrow.json")
    done = invoke("lock", "narrow.json", "numpy:clip")
    assert done.exit_code == 0, done.output
    assert "1 rule or Function, 8 probes of multigrad" in done.output
    text = (tmp_path / "gradients.lock").read_text()
    lock = read_lock(tmp_path / "gradients.lock")
    assert lock.objects["narrow.json"]["vectors"]
    done = invoke("verify", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["changes"] == []

    xg.save(xg.get("triangular").with_params(width=1.0), tmp_path / "narrow.json")
    tampered = text.replace('"derivative": {"x": ["0x1p+0"]}', '"derivative": {"x": ["0x0p+0"]}')
    (tmp_path / "gradients.lock").write_text(tampered)
    done = invoke("verify")
    assert done.exit_code == 2
    assert "not as it was written" in done.output
    data = json.loads(tampered)
    data["hash"] = digest({name: each for name, each in data.items() if name != "hash"})
    (tmp_path / "gradients.lock").write_text(json.dumps(data))
    done = invoke("verify")
    assert done.exit_code == 1
    assert "xp.clip's derivative at its lower bound is 0 in multigrad" in done.output
    assert "narrow.json is not what was locked: its content is sha256:" in done.output
    assert "its numbers differ in 1 of 2 vectors on numpy" in done.output


@needs_cli
def test_what_cannot_be_locked_or_verified_is_an_error(invoke: Any, tmp_path: Path) -> None:
    for words, problem in [
        (("verify",), "gradients.lock"),
        (("verify", __file__), "verify takes what multigrad lock wrote"),
        (("verify", "--frameworks", "torhc"), "did you mean 'torch'"),
        (("lock", "nothing.json"), "nothing.json"),
        (("lock", "triangluar"), "triangular"),
        (("lock", "numpy:clpi"), "multigrad has no multigrad.xp.clpi"),
        (("lock", "torch:hub.load"), "none of the functions that a probe may call"),
    ]:
        done = invoke(*words)
        assert done.exit_code == 2, done.output
        assert problem in done.output
    assert not list(tmp_path.iterdir())


@needs_cli
def test_a_rule_and_a_function_of_a_module_are_locked(invoke: Any, tmp_path: Path) -> None:
    source = (
        "import numpy as np\nimport multigrad as xg\n"
        "rounded = xg.function(lambda x: xg.xp.round(x), lambda grad_out, x: grad_out * 1.0)\n"
        "rounded(np.ones(2))\n"
        "doubled = xg.implicit(lambda y, x: y - 2.0 * x, lambda x: 2.0 * x)\n"  # loops in backward
    )
    (tmp_path / "locked_of_mine.py").write_text(source)
    assert invoke("lock", "locked_of_mine:rounded", "triangular", "numpy:sign").exit_code == 0
    assert invoke("lock", "locked_of_mine:doubled", "--out", "doubled").exit_code == 0
    lock = read_lock(tmp_path / "gradients.lock")
    assert [entry["kind"] for entry in lock.objects.values()] == ["function", "rule"]
    source += (
        "square = xg.function(lambda x: x @ np.ones((7, 7)), lambda g, x: g @ np.ones((7, 7)))\n"
        "square(np.ones((7, 7)))\n"
    )
    (tmp_path / "locked_square.py").write_text(source)
    output = invoke("lock", "locked_square:square", "multigrad:sign", "--out", "square").output
    assert "locked_square:square: its graph alone, no numbers: it does not run on" in output
    assert "GRADIENT_INPUTS in its module states others" in output
    assert "matmul(grad_out" in invoke("show", "locked_square:square").output  # as it was called
    (tmp_path / "square_there.py").write_text(
        f"{source}GRADIENT_INPUTS = {{'square': [np.eye(7)]}}\n"
    )
    words = ("square_there:square", "--frameworks", "multigrad", "--out", "square")
    assert invoke("lock", *words).exit_code == 0
    square = read_lock(tmp_path / "square")
    assert square.probes == find_probes(["multigrad"])
    (vector,) = square.objects["square_there:square"]["vectors"]
    assert vector["inputs"]["x"]["shape"] == [7, 7]
    vector, _ = lock.objects["locked_of_mine:rounded"]["vectors"]
    outputs = [float.fromhex(each) for each in vector["outputs"][0]["values"]]
    inputs = [float.fromhex(each) for each in vector["inputs"]["x"]["values"]]
    assert outputs == np.round(inputs).tolist()
    assert invoke("verify").exit_code == 0


@needs_cli
def test_a_param_that_a_locked_rule_lost_shows_in_its_numbers(invoke: Any, tmp_path: Path) -> None:
    file = tmp_path / "scaled_of_mine.py"
    for slope, words in (("slope", ("lock", "scaled_of_mine:scaled")), ("1.0", ("verify",))):
        sys.modules.pop(file.stem, None)
        file.write_text(
            "import multigrad as xg\ndef scale(ctx, grad_out, tin, slope: float = 1.0):\n"
            f"    return grad_out * {slope}\nscaled = xg.compose(scale)\n"
        )
        output = invoke(*words).output
    assert "its numbers differ in 2 of 4 vectors on numpy" in output, output


@needs_cli
def test_a_function_is_verified_with_the_inputs_with_which_it_was_locked(
    invoke: Any, tmp_path: Path
) -> None:
    file, lock_file = tmp_path / "powered_of_mine.py", tmp_path / "gradients.lock"

    def write(exponent: str, factor: str = "n") -> None:
        sys.modules.pop(file.stem, None)
        file.write_text(
            "import numpy as np\nimport multigrad as xg\ndef power(x, n): return x**n\n"
            f"powered = xg.function(power, lambda g, x, n: (g * {factor} * x ** (n - 1), None))\n"
            f"GRADIENT_INPUTS = {{'powered': [np.float32([0.5, 7.0]), {exponent}]}}\n"
        )

    write("3")
    done = invoke("lock", "powered_of_mine:powered")
    assert done.output == "gradients.lock: 1 rule or Function\n"  # and no framework's
    write("12")
    done = invoke("verify")
    assert done.exit_code == 0, done.output
    write("12", factor="2 * n * 0.5")
    output = invoke("verify").output
    assert "all its numbers agree in 2 of 2 vectors on numpy" in output, output
    write("12", factor="2 * n")
    output = invoke("verify").output
    assert "its numbers differ in 2 of 2 vectors on numpy" in output
    assert "the gradient of x is 27 in the lock and 54 on numpy" in output, output
    data = json.loads(lock_file.read_text())
    del data["objects"]["powered_of_mine:powered"]["arguments"], data["hash"]
    lock_file.write_text(json.dumps({**data, "hash": digest(data)}))
    write("np.float32([2.0, 3.0])")
    output = invoke("verify").output
    assert "for x, and takes them for x, n as it is called here: its inputs have changed" in output
    assert "the gradient of x" not in output


@needs_cli
@pytest.mark.always
def test_what_a_process_calls_a_function_with_is_no_part_of_its_lock(
    invoke: Any, tmp_path: Path
) -> None:
    (tmp_path / "called_of_mine.py").write_text(
        "import numpy as np\nimport multigrad as xg\nfrom multigrad import xp\n"
        "def snap(x, s): return xp.round(x / s) * s\n"
        "snapped = xg.function(snap, lambda g, x, s: (g, xp.sum_to(g * x, s)))\n"
        "shaped = xg.function(lambda x: x * x.shape[0], lambda g, x: g * x.shape[0])\n"
        "around = xg.function(lambda x: shaped(snapped(x, 0.5)), lambda g, x: g)\n"
        "root = xg.implicit(lambda z, a: z * z - a, lambda a: xp.sqrt(a))\n"
        "GRADIENT_INPUTS = {'root': [np.array([4.0, 9.0])]}\n"
    )
    names = [f"called_of_mine:{name}" for name in ("shaped", "snapped", "around", "root")]
    assert invoke("lock", *names).exit_code == 0
    locked = read_lock(tmp_path / "gradients.lock").objects
    functions = vars(sys.modules["called_of_mine"])
    for dtype in (np.float64, np.float32):
        functions["around"](np.ones((2, 3), dtype))
        functions["snapped"](np.ones((2, 3), dtype), dtype(0.5))
        functions["root"](np.ones(2, dtype))
    done = invoke("verify")
    assert done.exit_code == 0, done.output
    assert invoke("lock", *reversed(names), "--out", "again").exit_code == 0
    assert read_lock(tmp_path / "again").objects == locked


@needs_cli
@pytest.mark.needs("torch")
def test_a_custom_gradient_of_a_framework_is_converted_and_locked(
    invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `verify` would import all that is installed, and gates then fork no process of this one.
    monkeypatch.setattr(verify, "BACKENDS", ("numpy", "torch"))
    source = (
        "import torch\n"
        "class Twice(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x, factor=2): return factor * x\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad_out): return 3 * grad_out, None\n"
        "class Again(Twice): pass\n"
        "GRADIENT_INPUTS = {'Twice': [torch.ones(3)], 'Again': [torch.ones(3), 2]}\n"
    )
    file = tmp_path / "twice_of_mine.py"
    file.write_text(source)
    done = invoke("lock", "twice_of_mine:Twice", "twice_of_mine:Again", "multigrad:sign")
    assert done.exit_code == 0, done.output
    # What has its default may be given or not.
    sys.modules.pop(file.stem)
    file.write_text(
        source + "GRADIENT_INPUTS = dict(zip(GRADIENT_INPUTS, [*GRADIENT_INPUTS.values()][::-1]))\n"
    )
    assert "nothing changed" in invoke("verify").output
    vector, stated = read_lock(tmp_path / "gradients.lock").objects["twice_of_mine:Twice"][
        "vectors"
    ]
    assert [*map(float.fromhex, stated["inputs"]["x"]["values"])] == [1.0, 1.0, 1.0]
    cotangent, gradient = vector["cotangents"][0], vector["gradients"]["x"]
    pairs = zip(cotangent["values"], gradient["values"], strict=True)
    assert all(3 * float.fromhex(a) == float.fromhex(b) for a, b in pairs)
    done = invoke("lock", "math:pi", "multigrad:sign")
    assert done.exit_code == 2, done.output


# docs/format.md is enough: a reader without multigrad and the schemas agree with what is saved.


ROOT = Path(__file__).parents[3]
READER = ROOT / "examples" / "read_lock.py"
SCHEMAS = ROOT / "docs" / "schemas"
xp = xg.xp


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of saved rules and a Function, with a lock."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("triangular", "rectangular", "sigmoid_surrogate", "clip_norm", "noise"):
        xg.save(name, folder / f"{name}.json")
    xg.save(xg.compose("clip_norm", "noise"), folder / "composed.json")
    soft = xg.function(
        lambda x, y: (xp.tanh(x) * y, xp.maximum(x, y)),
        lambda g, x, y: (g[0] * y * (1 - xp.tanh(x) ** 2) + g[1], g[0] * xp.tanh(x)),
    )
    soft(np.ones(2), np.ones(2))
    xg.save(soft, folder / "soft.json")
    probe = Probe("torch.abs(x)", "at 0", {"x": "0x0p+0"})
    outcome = {"value": ["0x0p+0"], "derivative": {"x": ["0x0p+0"]}}
    lock = LockFile(
        {probe.name: probe}, {"torch": Answer("2.13.0", outcomes={probe.name: outcome})}
    )
    lock.objects["triangular.json"] = make_entry(str(folder / "triangular.json"), None)
    (folder / "gradients.lock").write_text(format_lock(lock))
    return folder


def read(*files: Path) -> subprocess.CompletedProcess[str]:
    """Run the reader where there is the standard library alone."""
    return run_python("-S", "-I", READER, *files)


def test_a_reader_without_multigrad_agrees(files: Path) -> None:
    done = read(*sorted(files.glob("*.json")), files / "gradients.lock")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("4 of 4 vectors were run") == 3
    assert lines.count("1 of 1 vectors were run") == 1
    assert "a vector is not run, for 'norm'" in lines
    assert sum(line.endswith("as it was written") for line in lines) == 8


@pytest.mark.parametrize(
    ("name", "was", "becomes", "problem"),
    [
        ("triangular.json", '"value": 1e-06', '"value": 1e-05', "its hash is another"),
        ("triangular.json", '"op": "sub"', '"op": "add"', "a vector gives other numbers"),
        ("soft.json", '"0x1p+0", "-0x1p-1"', '"0x1p+1", "-0x1p-1"', "gives other numbers"),
        ("gradients.lock", '"op_set": 1', '"op_set": 2', "its hash is another"),
    ],
)
def test_the_reader_sees_what_was_tampered_with(
    files: Path, tmp_path: Path, name: str, was: str, becomes: str, problem: str
) -> None:
    text = (files / name).read_text()
    assert was in text
    (tmp_path / name).write_text(text.replace(was, becomes, 1))
    done = read(tmp_path / name)
    assert done.returncode == 1, done.stdout + done.stderr
    assert problem in done.stdout


def test_the_reader_is_short_and_imports_nothing_else() -> None:
    text = READER.read_text()
    assert len(text.splitlines()) <= 200
    imported = set(re.findall(r"^ *(?:import|from) ([a-z]+)", text, re.MULTILINE))
    assert imported <= sys.stdlib_module_names


# --- schemas -------------------------------------------------------------------------------------


def test_what_is_saved_fits_the_schema(files: Path) -> None:
    schema = json.loads((SCHEMAS / "document.json").read_text())
    old = sorted((ROOT / "tests" / "data" / "releases").glob("*/*/*.json"))
    for file in [*files.glob("*.json"), *old]:
        assert fits(json.loads(file.read_text("utf-8")), schema, schema), file.name
    data = json.loads((files / "triangular.json").read_text())
    for name, value in {"version": 3, "evidence": {}, "name": 1, "forms": [1]}.items():
        assert not fits({**data, name: value}, schema, schema), name


def test_a_lock_fits_the_schema(files: Path) -> None:
    schema = json.loads((SCHEMAS / "lock.json").read_text())
    data = json.loads((files / "gradients.lock").read_text())
    assert fits(data, schema, schema)
    for name, value in {"version": 2, "hash": "sha256:0", "objects": {"a": {}}, "more": 1}.items():
        assert not fits({**data, name: value}, schema, schema), name
