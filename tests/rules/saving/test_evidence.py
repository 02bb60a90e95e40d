"""What a saved file carries beside the graphs: it is right, it is checked, and nothing needs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core import ops
from multigrad.engine.functions.documents.format import canonical, hash_of
from multigrad.engine.functions.documents.versions import KINKS, OP_SET

xp = xg.xp


def saved(obj: Any, folder: Path) -> Any:
    xg.save(obj, folder / "saved.json")
    return json.loads((folder / "saved.json").read_text())


def load(data: Any, folder: Path) -> Any:
    (folder / "changed.json").write_text(json.dumps(data))
    return xg.load(folder / "changed.json")


@pytest.mark.filterwarnings("ignore::multigrad.errors.NotProvenWarning")
@pytest.mark.parametrize(
    "row", KINKS, ids=lambda row: f"{row[0]} {row[1]}".replace(" ", "_") if row else ""
)
def test_an_op_gives_at_its_kink_what_is_written_down(row: Any) -> None:
    """Where another is meant, OP_SET rises, and docs/format.md says what changed."""
    name, _, operands, value, derivative = row
    function = getattr(xp, ops.OPS[name].in_xp)
    more = {"axis": 0} if name in ("cumprod", "cummax", "cummin", "sort") else {}
    given = [np.asarray(each, np.float64) for each in operands]
    with np.errstate(all="ignore"):
        found, pull = xg.vjp(lambda *args: function(*args, **more), *given)
        gradients = pull(np.arange(1.0, found.size + 1).reshape(found.shape))
    np.testing.assert_array_equal(np.ravel(found), np.ravel(value))
    for gradient, expected in zip(gradients, derivative, strict=True):
        np.testing.assert_array_equal(np.ravel(gradient), np.ravel(expected))


def test_a_saved_rule_carries_its_evidence(tmp_path: Path) -> None:
    data = saved("triangular", tmp_path)
    evidence = data.pop("evidence")
    assert evidence["hash"] == hash_of(data)
    assert evidence["op_set"] == OP_SET
    assert set(evidence["conventions"]) == {"abs", "div", "maximum"}
    assert evidence["conventions"]["abs"]["at 0"]["derivative"] == ["0x0p+0"]
    with_tin, without, *_ = evidence["vectors"]
    numbers = {name: each["values"] for name, each in with_tin["inputs"].items() if name != "width"}
    grad_out, tin = ([float.fromhex(n) for n in numbers[name]] for name in ("grad_out", "tin"))
    found = [float.fromhex(each) for each in with_tin["outputs"][0]["values"]]
    assert found == [g * max(0.0, 1 - abs(x)) for g, x in zip(grad_out, tin, strict=True)]
    assert {0.0, 1.0, -1.0} <= set(tin)
    assert without["outputs"][0] == without["inputs"]["grad_out"]


def test_a_file_without_evidence_loads(tmp_path: Path) -> None:
    data = saved("triangular", tmp_path)
    del data["evidence"]
    assert load(data, tmp_path).to_dict() == xg.load(tmp_path / "saved.json").to_dict() == data


def test_what_was_changed_since_is_refused(tmp_path: Path) -> None:
    data = saved("rectangular", tmp_path)
    (param,) = (each for each in data["params"] if each["name"] == "a")
    param["default"] = -0.25
    with pytest.raises(xg.FormatError, match=r"evidence.hash: the document is not as it was saved"):
        load(data, tmp_path)
    data["evidence"].pop("hash")
    with pytest.raises(xg.FormatError, match="the field 'hash' is missing"):
        load(data, tmp_path)
    del data["evidence"]
    assert load(data, tmp_path).params["a"] == -0.25


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("op_set",), OP_SET + 1, "op set 2, newer than 1, which multigrad"),
        (("op_set",), True, "expected 1, got True"),
        (("hash",), "md5:0", "expected sha256"),
        (("conventions", "abs"), [], "is no op with places"),
        (("vectors",), {}, "expected a list"),
        (("vectors", 0, "graph"), -1, "expected a small integer"),
        (("vectors", 0, "inputs", "tin", "shape"), [3], "are not those of its shape"),
        (("vectors", 0, "inputs", "tin", "values", 0), "0.5", "expected a hex float"),
        (("vectors", 0, "inputs", "tin", "dtype"), "float31", "is no dtype"),
        (("vectors", 0, "outputs"), [1], "expected an object"),
        (("vectors", 0, "code"), "print()", "there is no field 'code'"),
    ],
)
def test_damaged_evidence_is_refused(tmp_path: Path, path: Any, value: Any, problem: str) -> None:
    data = saved("triangular", tmp_path)
    *above, last = path
    place = data["evidence"]
    for each in above:
        place = place[each]
    place[last] = value
    with pytest.raises(xg.FormatError, match=problem):
        load(data, tmp_path)


def test_the_hash_is_of_what_is_computed() -> None:
    def first(ctx: Any, grad_out: Any, tin: Any, at: float = 0.5) -> Any:
        """One text."""
        return grad_out * (tin > at)

    data = xg.compose(first).to_dict()
    other = json.loads(json.dumps(data).replace("One text.", "Another."))
    for each in (form for part in other["parts"] for form in part["forms"]):
        for node in each["backward"]["nodes"]:
            node.pop("at", None)
    assert hash_of(other) == hash_of(data)
    assert hash_of(xg.compose(first).with_params(at=0.25).to_dict()) != hash_of(data)


def test_canonical_bytes_are_those_of_the_specification() -> None:
    data = {"b": [1, 1.0, True, None, -0.0], "a": {"é": "ü", "float": 0.1}}
    assert canonical(data) == (
        b'{"a":{"float":{"float":"0x1.999999999999ap-4"},"\\u00e9":"\\u00fc"},'
        b'"b":[1,{"float":"0x1p+0"},true,null,{"float":"-0x0p+0"}]}'
    )


def test_functions_draws_and_compositions_carry_vectors(tmp_path: Path) -> None:
    def pull(grad_out: Any, x: Any, w: Any) -> Any:
        return grad_out @ w.T, x.T @ grad_out

    product = xg.function(lambda x, w: x @ w, pull)
    product(np.ones((2, 3)), np.ones((3, 2)))
    (vector,) = saved(product, tmp_path)["evidence"]["vectors"]
    assert vector["outputs"][0]["shape"] == [4, 4]
    assert set(vector["gradients"]) == {"x", "w"}
    both = saved(xg.compose("clip_norm", "noise"), tmp_path)["evidence"]
    assert both["vectors"][0]["key"] == both["vectors"][1]["key"]


@pytest.mark.parametrize("rule", ["rectangular", xg.compose("clip_norm", "scale"), "gaussian"])
def test_vectors_have_params_off_their_defaults_and_1_within_their_ranges(
    tmp_path: Path, rule: Any
) -> None:
    """At the defaults, often 1, a lost factor or power of a param does not show."""
    params = xg.compose(rule).params
    vectors = saved(rule, tmp_path)["evidence"]["vectors"]
    assert [vector["graph"] for vector in vectors] == [0, 1, 0, 1]
    numbers = [float.fromhex(vectors[-1]["inputs"][name]) for name in params]
    assert not {1.0, *params.values()} & {*numbers}
    factors = {a / (b or 1.0) for a, b in zip(numbers, params.values(), strict=True)}
    assert len(factors) == len(params)  # so that quotients change, too


def test_a_scalar_beside_a_vector_is_made_up_as_one(tmp_path: Path) -> None:
    scaled = xg.function(lambda x, d: x * d, lambda g, x, d: (g * d, xp.sum(g * x)))
    scaled(np.ones((4, 3)), np.array(2.0))
    (vector,) = saved(scaled, tmp_path)["evidence"]["vectors"]
    assert [vector["inputs"][name]["shape"] for name in ("x", "d")] == [[10], []]
    assert vector["inputs"]["d"]["values"] != ["0x1p+0"]  # where a lost factor does not show
    ratio = xg.function(lambda x, a, b: x * a / b, lambda g, x, a, b: (g * a / b, None, None))
    ratio(np.ones(3), 1.0, 1.0)
    (vector,) = saved(ratio, tmp_path)["evidence"]["vectors"]
    assert vector["inputs"]["a"] != vector["inputs"]["b"]  # nor a lost quotient


def test_where_nothing_runs_the_file_says_why(tmp_path: Path) -> None:
    def apart(x: Any, w: Any) -> Any:
        return xp.sum(x, axis=1) + xp.matmul(w, w)[0, 0, 0, 0, 0, 0, 0]

    function = xg.function(apart, lambda grad_out, x, w: (x, w))
    function(np.ones((2, 3)), np.ones((1,) * 6 + (2, 2)))
    evidence = saved(function, tmp_path)["evidence"]
    assert evidence["vectors"] == []
    assert evidence["without"].startswith("it does not run on arrays that are made up")
    xg.load(tmp_path / "saved.json")
