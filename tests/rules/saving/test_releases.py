"""What each release wrote is read by this version: the same numbers, and the same documents again.

What a newer version wrote, or another minor version in a pickle, is read, or refused by an error
that names both versions.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.audit.lock import verify
from multigrad.engine.functions.documents.format import digest, hash_of
from multigrad.engine.functions.documents.versions import as_version_1

from ...data.releases import write as releases
from ...harness.commands import invoke

Array = Any
HERE = releases.HERE
DOCUMENTS = sorted(str(file.relative_to(HERE)) for file in HERE.glob("*/*/*.json"))
PICKLES = sorted(str(file.relative_to(HERE)) for file in HERE.glob("*/*/*.pickle"))
# What NumPy rounds by the processor.
ROUNDED = {
    "atan", "cos", "erf", "erfc", "exp", "exp2", "expm1", "exponential_like", "gumbel_like", "log",
    "log10", "log1p", "log2", "log_sigmoid", "logsumexp", "normal_like", "pow", "sigmoid", "silu",
    "sin", "softmax", "softplus", "tanh",
}  # fmt: skip
NEEDS = {"module": "torch"}
# Rules of the library whose graph is not that of 1.0.0, so that locks by their names tell it.
OTHER_GRAPHS = {"soft_sign_surrogate"}


@pytest.fixture(scope="module")
def numbers() -> dict[str, dict[str, Array]]:
    """What each version computed, by the names of its files."""
    found = {}
    for file in HERE.glob("*/numbers.npz"):
        with np.load(file) as arrays:
            found[file.parent.name] = dict(arrays)
    return found


def compare(obj: Any, found: dict[str, Array], expected: dict[str, Array]) -> None:
    """Check that all numbers are as they were, bit for bit where no function rounds."""
    assert found.keys() == expected.keys()
    assert found
    data = obj.to_dict() if hasattr(obj, "to_dict") else {"op": "exp"}
    is_exact = ROUNDED.isdisjoint(ops_of(data))
    for what, array in found.items():
        tolerances = (0, 0) if is_exact else (1e-6, 1e-7)
        np.testing.assert_allclose(array, expected[what], *tolerances, strict=True, err_msg=what)


def ops_of(data: Any) -> set[str]:
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    own = {data["op"]} if isinstance(data, dict) and "op" in data else set()
    return own.union(*map(ops_of, inner))


def check(obj: Any, file: str, numbers: dict[str, dict[str, Array]]) -> None:
    """Check that an object gives the numbers that were computed when its file was written."""
    version, _, name = file.rpartition(".")[0].partition("/")
    stored, prefix = numbers[version], f"{name}/"
    expected = {key.removeprefix(prefix): stored[key] for key in stored if key.startswith(prefix)}
    compare(obj, releases.compute(obj, Path(name).name), expected)


@pytest.mark.parametrize("file", DOCUMENTS)
def test_a_document_gives_the_same_numbers_and_is_saved_with_what_it_held(
    numbers: Any, file: str
) -> None:
    loaded = xg.load(HERE / file)
    check(loaded, file, numbers)
    data = json.loads((HERE / file).read_bytes())
    evidence = data.pop("evidence", {"hash": hash_of(data)})  # which version 0.1.0 had not
    again = loaded.to_dict()
    assert again["version"] == 2
    assert as_version_1(again) == data
    assert xg.from_dict(json.loads(json.dumps(again))).to_dict() == again
    assert hash_of(loaded.to_dict()) == evidence["hash"]


@pytest.mark.parametrize("file", PICKLES)
def test_a_pickle_gives_the_same_numbers(numbers: Any, file: str) -> None:
    pytest.importorskip(NEEDS.get(Path(file).stem, "numpy"))
    releases.load_mine()
    check(pickle.loads((HERE / file).read_bytes()), file, numbers)


def test_a_rule_of_the_library_gives_the_numbers_that_its_name_always_gave(numbers: Any) -> None:
    for stored in numbers.values():
        for key in stored:
            kind, _, name = key.partition("/")
            if kind == "named":
                rule = xg.get(name)
                compare(rule, {"": releases.compute_named(rule)}, {"": stored[key]})


def test_the_same_source_gives_the_same_numbers(numbers: Any) -> None:
    check_again(numbers, releases.rules_of_mine(), releases.functions_of_mine())


def test_a_rule_of_the_library_has_the_hash_by_which_1_0_0_locked_it() -> None:
    files = {file.stem: file for file in (HERE / "1.0.0" / "shipped").glob("*.json")}
    locked = {name: json.loads(file.read_bytes())["evidence"] for name, file in files.items()}
    found = {name: hash_of(xg.get(name).to_dict()) for name in locked}
    assert {name for name in locked if found[name] != locked[name]["hash"]} == OTHER_GRAPHS


@pytest.mark.needs("torch", "jax", "tensorflow")
@pytest.mark.always
def test_the_same_source_of_each_framework_gives_the_same_numbers(numbers: Any) -> None:
    check_again(numbers, releases.rules(), releases.functions())


def check_again(numbers: Any, rules: dict[str, Any], functions: dict[str, Any]) -> None:
    for kind, found in (("rules", rules), ("functions", functions)):
        for name, obj in found.items():
            check(obj, f"1.0.0/{kind}/{name}.json", numbers)


def test_every_kind_is_there(numbers: Any) -> None:
    assert len(DOCUMENTS) >= 146
    assert len(PICKLES) >= 19
    assert sum(key.startswith("named/") for key in numbers["1.0.0"]) >= 170


@pytest.mark.needs("typer", "rich")
@pytest.mark.parametrize("file", [*HERE.glob("*/gradients.lock")], ids=lambda f: f.parts[-2])
def test_a_lock_is_verified(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = verify_in(file.parent, monkeypatch)
    assert done.exit_code == 0, done.output


def verify_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `multigrad verify` in a folder."""
    monkeypatch.chdir(folder)
    return invoke("verify")


# --- other versions ------------------------------------------------------------------------------


@pytest.mark.needs("typer", "rich")
def test_a_lock_of_another_op_set_is_told_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = json.loads((HERE / "1.0.0" / "gradients.lock").read_text())
    word, file = "functions/squared.json", tmp_path / "gradients.lock"
    data["objects"] = {word: data["objects"][word]}
    (tmp_path / "functions").mkdir()
    shutil.copy(HERE / "1.0.0" / word, tmp_path / word)
    for op_set in (1, 2):
        data["objects"][word]["op_set"] = op_set
        data["hash"] = digest({name: each for name, each in data.items() if name != "hash"})
        file.write_text(json.dumps(data))
        with monkeypatch.context() as patch:
            patch.setattr(verify, "OP_SET", 3 - op_set)
            done = verify_in(tmp_path, monkeypatch)
        expected = (
            f"{word} was locked with op set 1, and this multigrad has 2",
            f"op set 2, newer than 1, which multigrad {xg.__version__} reads: upgrade multigrad",
        )
        assert expected[op_set - 1] in " ".join(done.output.split())


@pytest.mark.needs("typer", "rich")
def test_verify_without_a_lock_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = verify_in(tmp_path, monkeypatch)
    assert done.exit_code == 2
    expected = "error: there is no lock file 'gradients.lock' here: write one by multigrad lock"
    assert expected in done.output


def version_changed(obj: Any, version: str, change: Callable[[bytes], bytes] = bytes) -> bytes:
    """Return the pickle of an object as another version might have written it."""
    own = xg.__version__.encode()
    assert len(own) == len(version)  # so that no length in the pickle changes
    data = pickle.dumps(obj, protocol=4)
    assert own in data
    return change(data.replace(own, version.encode()))


def test_a_pickle_of_another_minor_version_is_read_or_refused_by_both_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xg, "__version__", "1.0.0")
    rule = xg.get("triangular").with_params(width=2.0)
    for version in ("1.7.0", "0.9.0"):
        again = pickle.loads(version_changed(rule, version))
        assert again.bound == rule.bound
        moved = version_changed(rule, version, lambda data: data.replace(b"_by_name", b"_by_word"))
        with pytest.raises(xg.FormatError, match=rf"multigrad {version}, and 1\.0\.0 cannot"):
            pickle.loads(moved)
    unknown = pickle.dumps(rule, protocol=4).replace(b"triangular", b"triangulax")
    with pytest.raises(xg.RuleError, match="did you mean 'triangular'"):
        pickle.loads(unknown)  # of this version: the error is the rule's own
