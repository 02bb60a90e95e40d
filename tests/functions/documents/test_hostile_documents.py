"""Documents from anywhere: each is read, or refused with FormatError; nothing is executed, hangs or
grows.

The bombs are written by hand; thousands of documents more are good ones with something changed at
random.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

Document = Any
X = np.linspace(-2.0, 2.5, 6, dtype=np.float32).reshape(2, 3)
TENSOR = ["tensor", "T", "x"]
UNKNOWN = ["tensor", "T", "?"]
FLOAT = ["scalar", "float"]


def rule(nodes: list[Any], *, params: Any = (), **changes: Any) -> Document:
    """A document of one rule, whose graph has these nodes after grad_out, tin and the params."""
    names = [param["name"] for param in params if "value" not in param]
    inputs = [["grad_out", TENSOR], ["tin", TENSOR], *([name, FLOAT] for name in names)]
    form = {
        "tin": True,
        "arguments": [
            {"name": "tin", "path": "tin", "kind": "tensor", "dtype": "T"},
            *({"name": name, "path": name, "kind": "number"} for name in names),
        ],
        "nesting": {"tuple": [{"tuple": [*range(1 + len(names))]}, {"dict": []}]},
        "facts": {}, "outputs": 0, "fixed": [], "first_order": False, "keeps_output": False,
        "twice": True, "undifferentiable": [], "wrt": ["tin"],
        "forward": {"inputs": [["tin", TENSOR]], "nodes": [], "outputs": [0]},
        "backward": {"inputs": inputs, "nodes": nodes, "outputs": [len(inputs) + len(nodes) - 1]},
    }  # fmt: skip
    return {
        "format": "multigrad", "version": 2, "kind": "rule", "name": "sent", "first_order": False,
        "bound": {},
        "doc": "", "params": list(params), "arrays": [], "forms": [form], **changes,
    }  # fmt: skip


def rule_of_version_1(nodes: list[Any], **changes: Any) -> Document:
    """The same as version 1 had it."""
    document = rule(nodes)
    (form,) = document.pop("forms")
    graph = {"tin": form["tin"], "facts": {}, **form["backward"]}
    return {**document, "version": 1, "graphs": [graph], **changes}


def refused(document: Document, match: str | None = None) -> None:
    with pytest.raises(xg.FormatError, match=match):
        xg.from_dict(document)


def refused_text(tmp_path: Path, text: str | bytes, match: str | None = None) -> None:
    file = tmp_path / "sent.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    start = time.perf_counter()
    with pytest.raises(xg.FormatError, match=match):
        xg.load(file)
    assert time.perf_counter() - start < 30  # it ends; a slow machine takes some of them


def test_the_smallest_document_is_read() -> None:
    double = {"op": "add", "of": [0, 0], "type": TENSOR}
    for document in (rule([double]), rule_of_version_1([double])):
        np.testing.assert_array_equal(xg.from_dict(document)(None, X, X), 2 * X)


# --- the text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "3", "[]", "{}", '{"format": "other", "version": 1}', b"\xff\xfe\x00",
        b"\x80\x04\x95",
        '{"format": "multigrad", "version": 1', "\ufeff{}", "'format'", "{1: 2}", "[1,]",
        "\x00" * 100,
        '{"format": "multigrad", "version": NaN}', '{"format": "multigrad", "version": Infinity}',
    ],
)  # fmt: skip
def test_what_is_no_document_is_refused(tmp_path: Path, text: str | bytes) -> None:
    refused_text(tmp_path, text)


def test_a_newer_version_says_so() -> None:
    reads = f"newer than 2, which multigrad {xg.__version__} reads: upgrade multigrad"
    refused(rule([], version=3), f"the document has version 3, {reads}")
    for version in (0, -1, 1.0, True, "1", None, [1]):
        refused(rule([], version=version), "version: expected 2")


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":[', "[[[0],"])
def test_nesting_is_limited_before_it_is_parsed(tmp_path: Path, opening: str) -> None:
    for count in (100, 100_000, 3_000_000):
        refused_text(tmp_path, opening * count, "nested more than 48 deep|more than \\d+ bytes")
    refused_text(tmp_path, '{"format": "multigrad", "doc": ' + "[" * 50 + "]" * 50 + "}", "nested")


def test_brackets_in_strings_are_no_nesting() -> None:
    document = rule([{"op": "neg", "of": [0], "type": TENSOR}], doc='"\\' + "[{" * 500)
    assert xg.from_dict(json.loads(json.dumps(document))).__doc__.count("[") == 500


def test_a_file_that_is_too_large_is_not_read_in_part(tmp_path: Path) -> None:
    refused_text(tmp_path, "{}" + " " * (16 << 20), f"more than {16 << 20} bytes")


@pytest.mark.parametrize(
    "text",
    [
        '"' * 1_000_001, '"' + '\\"' * 4_000_000, '"' + "\\" * 5_000_001, "[" + "0," * 5_000_000,
        "{}" * 4_000_000,
        "[" + '{"a":1},' * 1_000_000, '{"version": ' + "9" * 5_000_000 + "}",
        "[" + "1" * 9_999 + "]",
        '{"version": 0.' + "1" * 5_000_000 + "}", '{"version": 1e' + "9" * 5_000_000 + "}",
        " " * 17_000_000,
    ],
    ids=["quotes", "escapes", "backslashes", "zeros", "empty", "objects", "digits", "int",
        "decimals", "exponent", "spaces"],
)  # fmt: skip
def test_large_texts_are_refused_in_time_and_in_little_memory(tmp_path: Path, text: str) -> None:
    refused_text(tmp_path, text)
    tracemalloc.start()
    try:
        refused_text(tmp_path, text)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(text) + (32 << 20)
    finally:
        tracemalloc.stop()


def test_numbers_are_finite_and_short() -> None:
    node = {"op": "const", "attrs": {"value": 1e999}, "type": FLOAT}
    refused(rule([node]), "too large for a float64")
    refused(rule([], version=10**1000), "more than 64 bits")
    refused({**rule([]), "version": float("nan")})


def test_a_field_that_stands_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps(rule([])).replace('"name": "sent"', '"name": "sent", "name": "other"')
    refused_text(tmp_path, text, "'name' stands twice")


def test_data_that_json_does_not_hold_are_refused() -> None:
    cyclic: Any = []
    cyclic.append(cyclic)
    twice: Any = [0]
    for _ in range(60):
        twice = [twice, twice]
    wide: Any = [0]
    for _ in range(40):
        wide = [wide, wide]
    for odd in (
        cyclic,
        twice,
        wide,
        (1,),
        {1: 2},
        {1},
        b"",
        np.float32(1),
        object(),
        np.ones(2),
        print,
    ):
        refused({**rule([]), "doc": odd})
        refused(odd)


# --- fields --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kind": "pickle"}, "kind: expected 'rule' or 'function', got 'pickle'"),
        ({"name": ""}, "not empty"),
        ({"name": "a\x00b"}, "not printable"),
        ({"name": "\ud800"}, "not printable"),
        ({"name": "x" * 201}, "at most 200"),
        ({"doc": 3}, "doc: expected a string"),
        ({"doc": "x" * 20_001}, "at most 20000"),
        ({"first_order": 1}, "true or false"),
        ({"bound": {"width": 1.0}}, "no param 'width'"),
        ({"bound": []}, "an object of params"),
        ({"native": True}, "no field 'native'"),
        ({"forms": {}}, "forms: expected a list"),
        ({"forms": [{}]}, r"forms\[0\]: the field 'tin' is missing"),
        ({"parts": []}, "no field"),
        ({"params": [{"name": "s", "kind": "function"}]}, "its kind is one of"),
        ({"params": [{"name": "s", "kind": "float", "default": "a"}]}, "is a float"),
        ({"params": [{"name": "s", "default": 1.5}]}, "a kind that its default has not"),
        ({"params": [{"name": "s"}] * 2}, "the same name"),
        ({"params": [{"name": "tin"}]}, "no param can be called 'tin'"),
        ({"params": [{"name": "key"}]}, "no param can be called 'key'"),
        ({"params": [{"name": f"p{i}"} for i in range(300)]}, "at most 256"),
    ],
)
def test_wrong_fields_are_named(change: Document, match: str) -> None:
    refused(rule([], **change), match)


@pytest.mark.parametrize(
    ("node", "match"),
    [
        ({"op": "add", "of": [0, 2], "type": TENSOR}, "2 is no index of the 2 values before it"),
        ({"op": "add", "of": [0, -1], "type": TENSOR}, "-1 is no index"),
        ({"op": "add", "of": [0, True], "type": TENSOR}, "True is no index"),
        ({"op": "add", "of": [0, 1.0], "type": TENSOR}, "1.0 is no index"),
        ({"op": "add", "of": [0], "type": TENSOR}, "takes 2 operands, got 1"),
        ({"op": "neg", "of": [0, 1], "type": TENSOR}, "takes 1 operands, got 2"),
        ({"op": "concatenate", "attrs": {"axis": 0}, "type": TENSOR}, "takes 1 operands, got 0"),
        ({"op": "ad", "of": [0, 0], "type": TENSOR}, "no op that this version knows; did you mean"),
        ({"op": "input", "attrs": {"name": "x"}, "type": TENSOR}, "no op that this version knows"),
        ({"op": "call", "of": [0], "attrs": {"function": 1, "position": 0}, "type": TENSOR},
            "no op that"),
        ({"op": ["add"], "of": [0, 0], "type": TENSOR}, "no op that this version knows"),
        ({"op": "add", "of": [0, 0], "type": ["tensor", "float64", "x"]}, "its type is"),
        ({"op": "add", "of": [0, 0], "type": ["tensor", "T", [1, 2]]}, "its type is"),
        ({"op": "gt", "of": [0, 0], "type": TENSOR}, "its type is"),
        ({"op": "add", "of": [0, 0], "type": TENSOR, "exec": "print()"}, "no field 'exec'"),
        ({"op": "add", "of": [0, 0], "type": TENSOR, "at": "/etc/passwd:1"},
            "expected 'file.py:12'"),
        ({"op": "add", "of": [0, 0], "type": TENSOR, "at": "a\nb:1"}, "not printable"),
        ({"op": "and", "of": [0, 0], "type": ["tensor", "bool", "x"]}, "logic_takes_bools"),
        ({"op": "bitwise_and", "of": [0, 0], "type": TENSOR}, "integers_are_for_integer_ops"),
        ({"op": "uniform_like", "of": [0, 0], "type": TENSOR}, "keys_are_for_draws"),
        ({"op": "sum", "of": [0], "attrs": {"axis": 0}, "type": TENSOR}, ("the field 'keepdims' is "
                                                                         "missing")),
        ({"op": "array", "of": [0], "attrs": {"dtype": "T", "value": 3}, "type": UNKNOWN},
            "arrays"),
        ({"op": "array", "of": [0], "attrs": {"dtype": "T", "value": {"array": 0}},
            "type": UNKNOWN}, "no index"),
        ({"op": "const", "attrs": {"value": "1"}, "type": FLOAT}, "a constant is a number"),
        ({"op": "const", "attrs": {"value": None}, "type": FLOAT}, "a constant is a number"),
        ({"op": "const", "attrs": {"value": {"float": "1.0"}}, "type": FLOAT},
            "expected one of nan"),
        ({"op": "const", "attrs": {"value": 1}, "type": FLOAT}, "its type is"),
        ({"op": "cast", "of": [0], "attrs": {"dtype": "complex64"}, "type": TENSOR},
            "no legal value"),
        ({"op": "cast", "of": [0], "attrs": {"dtype": None}, "type": ["tensor", None, "x"]},
            "dtypes_are_known"),
        ({"op": "softmax", "of": [0], "attrs": {"axis": 1 << 40}, "type": TENSOR}, "too large"),
        ({"op": "einsum", "of": [0], "attrs": {"subscripts": "ij->ijk"}, "type": UNKNOWN},
            "no operand has"),
    ],
)  # fmt: skip
def test_wrong_nodes_are_named(node: Document, match: str) -> None:
    refused(rule([node]), rf"forms\[0\]\.backward.*{match}")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"tin": 1}, r"forms\[0\]\.tin: expected true or false"),
        ({"tin": False}, r"backward\.inputs: there is no input 'tin'"),
        ({"wrt": ["grad_out"]}, "a rule's form has the arguments tin and the params"),
        ({"outputs": {"tuple": [0]}}, "a rule's form has the arguments tin and the params"),
        ({"arguments": []}, "a rule's form has the arguments tin and the params"),
        ({"facts": {"shape": [2, 3]}}, r"forms\[0\]\.facts: there is no field 'shape'"),
        ({"facts": {"ndim": "2"}}, "'2' is no ndim that can be saved"),
        ({"backward": []}, r"forms\[0\]\.backward: expected an object"),
        ({"code": ""}, "no field 'code'"),
    ],
)
def test_a_rule_has_forms_of_its_own(change: Document, match: str) -> None:
    document = rule([])
    document["forms"][0].update(change)
    refused(document, match)


GRAPH = rule_of_version_1([])["graphs"][0]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"native": True}, "no field 'native'"),
        ({"forms": []}, "no field 'forms'"),
        ({"graphs": {}}, "graphs: expected a list"),
        ({"graphs": [GRAPH, 3]}, r"graphs\[1\]: expected an object"),
        ({"graphs": [{**GRAPH, "exec": ""}]}, r"graphs\[0\]: there is no field 'exec'"),
        ({"graphs": [{**GRAPH, "tin": "yes"}]}, r"forms\[0\]\.tin: expected true or false"),
        ({"graphs": [{**GRAPH, "outputs": [7]}]}, r"forms\[0\]\.backward\.outputs: 7 is no index"),
        ({"params": 3}, "params: expected a list"),
        ({"params": [3]}, r"params\[0\]: expected an object"),
        ({"params": [{"kind": "float"}]}, r"params\[0\]: the field 'name' is missing"),
    ],
)
def test_wrong_fields_of_version_1_are_named(change: Document, match: str) -> None:
    refused(rule_of_version_1([], **change), match)
    part = {**rule_of_version_1([]), **change}
    whole = {name: part.pop(name) for name in ("format", "version", "kind")}
    shared = {name: part[name] for name in ("name", "first_order", "bound")}
    refused({**whole, **shared, "parts": [part]}, rf"parts\[0\]\.?.*{match}")


def test_constants_are_folded_by_who_saves() -> None:
    number = {"op": "const", "attrs": {"value": 9}, "type": ["scalar", "int"]}
    square = {"op": "mul", "of": [2, 2], "type": ["scalar", "int"]}
    refused(rule([number, square]), "of constants alone is a constant")


def test_a_gradient_is_one_tensor() -> None:
    reduced = {
        "op": "sum",
        "of": [0],
        "attrs": {"axis": None, "keepdims": False},
        "type": ["tensor", "T", []],
    }
    with pytest.raises(xg.GradientError, match="returned a gradient of one number"):
        xg.from_dict(rule([reduced]))(None, X, X)
    for outputs in ([], [0, 0], [7], "0"):
        document = rule([])
        document["forms"][0]["backward"]["outputs"] = outputs
        refused(document, "one gradient|no index|expected a list")


# --- bombs ---------------------------------------------------------------------------------------


def chain(*steps: Document) -> list[Document]:
    """Nodes each of which reads the one before it, once or several times."""
    made = []
    for i, step in enumerate(steps):
        node = {name: value for name, value in step.items() if name != "times"}
        made.append({**node, "of": [1 + i] * step.get("times", 1)})
    return made


BOMBS: dict[str, Callable[[], list[Document]]] = {
    "repeat": lambda: chain({"op": "repeat", "attrs": {"repeats": 10**9, "axis": 0},
        "type": UNKNOWN}),
    "repeated": lambda: chain(*[{"op": "repeat", "attrs": {"repeats": 100, "axis": 0},
        "type": UNKNOWN}] * 9),
    "tile": lambda: chain({"op": "tile", "attrs": {"repetitions": [1000] * 4}, "type": UNKNOWN}),
    "tiled": lambda: chain(*[{"op": "tile", "attrs": {"repetitions": [99]}, "type": UNKNOWN}] * 50),
    "pad": lambda: chain({"op": "pad", "attrs": {"widths": [[0, 10**9]], "fill": 0.0},
        "type": UNKNOWN}),
    "shape": lambda: chain({"op": "broadcast_to_shape", "attrs": {"shape": [10**6, 10**6]},
        "type": UNKNOWN}),
    "ranks": lambda: chain({"op": "broadcast_to_shape", "attrs": {"shape": [2] * 64},
        "type": UNKNOWN}),
    "concatenate": lambda: chain(*[{"op": "concatenate", "attrs": {"axis": 0}, "type": UNKNOWN,
        "times": 2}] * 40),
    "stack": lambda: chain(*[{"op": "stack", "attrs": {"axis": 0}, "type": UNKNOWN,
        "times": 16}] * 9),
    "take": lambda: chain(*[{"op": "take", "attrs": {"indices": [0] * 5000, "axis": 0},
        "type": UNKNOWN}] * 3),
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_would_take_much_memory_is_refused(bomb: str) -> None:
    refused(rule(BOMBS[bomb]()), "copies of its input|too large")


def test_integers_of_lengths_stay_small() -> None:
    size = {"op": "size", "of": [0], "type": ["scalar", "int"]}
    squares = [{"op": "mul", "of": [2 + i, 2 + i], "type": ["scalar", "int"]} for i in range(60)]
    refused(rule([size, *squares]), "makes integers of 1008 bits")


def test_too_many_nodes_are_refused_and_many_are_read_in_time() -> None:
    doubling = [{"op": "add", "of": [i + 1, i + 1], "type": TENSOR} for i in range(9_998)]
    refused(rule(doubling * 2), "at most 10000 items")
    start = time.perf_counter()
    loaded = xg.from_dict(rule(doubling))
    xg.show(loaded, memory=True)
    assert np.isinf(loaded(None, X, X)).all()
    xg.source(loaded, "numpy")
    assert time.perf_counter() - start < 30  # each of 10,000 nodes is read twice by the next


@pytest.mark.parametrize(
    "shape", [[10**9], [300, 300], [0, 10**18], [-1], [2.0], [True], "4", None]
)
def test_arrays_are_as_large_as_their_bytes(shape: Any) -> None:
    refused(
        rule([], arrays=[{"dtype": "float32", "shape": shape, "data": "AACAPw=="}]), r"arrays\[0\]"
    )


@pytest.mark.parametrize(
    "array",
    [
        {"dtype": "object", "data": "AACAPw=="},
        {"dtype": "O8", "data": "AACAPw=="},
        {"dtype": "V4", "data": "AACAPw=="},
        {"dtype": "float32", "data": "AACAP==="},
        {"dtype": "float32", "data": "AAC PW=="},
        {"dtype": "bool", "data": "/w=="},
        {"dtype": "float32", "data": 4},
        {"dtype": ["float32"], "data": "AACAPw=="},
        {"dtype": "float32", "data": "é" * 8},
    ],
)
def test_arrays_are_plain_numbers(array: Document) -> None:
    refused(rule([], arrays=[{"shape": [1], **array}]), r"arrays\[0\]")


def test_parts_are_not_nested_without_end() -> None:
    document = rule([{"op": "neg", "of": [0], "type": TENSOR}])
    for _ in range(100):
        inner = {
            name: document[name] for name in document if name not in ("format", "version", "kind")
        }
        document = {
            **{
                n: rule([])[n]
                for n in ("format", "version", "kind", "name", "first_order", "bound")
            },
            "parts": [inner],
        }
    refused(document, "nested more than 48 deep")
