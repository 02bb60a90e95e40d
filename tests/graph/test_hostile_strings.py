"""Strings of a document never become code: not in any field, and not as the name of a rule, a param
or a Function.
"""

from __future__ import annotations

import ast
import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.functions.function import Function

from ..functions.documents.test_hostile_documents import FLOAT, TENSOR, UNKNOWN, Document, X, rule

CODE = (
    "__import__('os').system('touch {file}')", "x'); open({file!r}, 'w'); ('",
    "x\"); open({file!r}, 'w'); (\"",
    "a:\n    open({file!r}, 'w')\n", "a=open({file!r},'w')", '"""\nopen({file!r}, "w")\n"""',
    "{{open({file!r}, 'w')}}",
    "lambda:0", "__class__", "__import__", "import", "None", "a b", "a.b", "a;b", "a\u2028b", "",
    "\N{LATIN SMALL LIGATURE FI}",
)  # fmt: skip


def holds_strings() -> Document:
    """A document with a string in every field that may have one."""
    document = xg.compose(xg.get("noise").with_params(sigma=0.2), "triangular").to_dict()
    part = document["parts"][1]
    part["params"].append(
        {"name": "mode", "kind": "str", "optional": False, "default": "a", "value": "a"}
    )
    part["arrays"].append({"dtype": "float32", "shape": [1], "data": "AACAPw=="})
    backward = part["forms"][0]["backward"]
    nodes = backward["nodes"]
    count = 3 + len(nodes)
    nodes += [
        {"op": "array", "of": [0], "attrs": {"dtype": "T", "value": {"array": 0}}, "type": UNKNOWN},
        {"op": "einsum", "of": [0], "attrs": {"subscripts": "...i->...i"}, "type": UNKNOWN},
        {"op": "getitem", "of": [0], "attrs": {"index": ["..."]}, "type": UNKNOWN},
        {"op": "const", "attrs": {"value": {"float": "nan"}}, "type": FLOAT},
        {"op": "mul", "of": [count, count + 1], "type": UNKNOWN},
        {"op": "mul", "of": [count + 4, count + 2], "type": UNKNOWN},
        {"op": "mul", "of": [count + 5, count + 3], "type": UNKNOWN},
        {"op": "sum_to", "of": [count + 6, 0], "type": TENSOR},
        {"op": "add", "of": [count - 1, count + 7], "type": TENSOR},
    ]
    backward["outputs"] = [count + 8]
    return document


def places_of(data: Document, kind: type, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values of a type, and of the names of fields where it is str."""
    found = [path] if type(data) is kind else []
    if isinstance(data, dict):
        for name, value in data.items():
            found += [(*path, name, "its name")] if kind is str else []
            found += places_of(value, kind, (*path, name))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            found += places_of(value, kind, (*path, i))
    return found


def put(data: Document, path: tuple[Any, ...], value: Any) -> None:
    if path[-1] == "its name":
        *path, name, _ = path
        holder = data
        for step in path:
            holder = holder[step]
        holder[value] = holder.pop(name)
        return
    for step in path[:-1]:
        data = data[step]
    data[path[-1]] = value


def use(loaded: Any) -> None:
    """Run what was loaded in every way that makes code of it; what it computes may fail in its own
    way.
    """
    runs = [lambda: xg.show(loaded, memory=True), lambda: xg.source(loaded, "numpy")]
    if isinstance(loaded, Function):
        for form in tuple(loaded.captures.variants.values()):
            given = {"tensor": X, "number": 0.5}
            leaves = [
                given.get(leaf.kind, leaf.value)
                if leaf.is_float or leaf.kind != "tensor"
                else X.astype(leaf.dtype if leaf.dtype != "T" else "float32")
                for leaf in form.layout.leaves
            ]
            args, kwargs = form.layout.rebuild(leaves)
            runs.append(functools.partial(run_function, loaded, args, kwargs))
    else:
        runs += [
            lambda: loaded(None, X, X, key=1),
            lambda: loaded(None, X, None, key=1),
            lambda: xg.lower(loaded, "numpy", forward="ReLU").vjp(X)[1](X),
        ]
    for run in runs:
        try:
            with np.errstate(all="ignore"):
                run()
        except (xg.MultigradError, *FITTING):
            continue


def run_function(function: Any, args: Any, kwargs: Any) -> None:
    _, pullback = xg.vjp(functools.partial(function, **kwargs) if kwargs else function, *args)
    pullback(np.ones_like(X))


# What NumPy says of shapes, axes and indices that do not fit the input at hand.
FITTING = (ValueError, IndexError, TypeError, np.exceptions.AxisError, OverflowError)


@pytest.mark.parametrize("text", CODE)
def test_no_string_of_a_document_becomes_code(tmp_path: Path, text: str) -> None:
    file = tmp_path / "written"
    text = text.replace("{file!r}", repr(str(file))).replace("{file}", str(file))
    loaded = 0
    document = holds_strings()
    use(xg.from_dict(document))
    for path in places_of(document, str):
        changed = copy.deepcopy(document)
        put(changed, path, text)
        try:
            use(xg.from_dict(changed))
            loaded += 1
        except xg.FormatError:
            pass
    assert not file.exists()
    assert loaded < 20  # names and docs of rules and the values of a param may be any text


@pytest.mark.parametrize("name",
    ["x; import os", "a\nb", "\u00b2", "torch", "None", "def", "class", "self", "'", '"', "\\",
        "{}", "%s", "\N{LATIN SMALL LIGATURE FI}", "A" * 200])  # fmt: skip
def test_a_rule_of_any_name_is_lowered_under_a_harmless_one(backend: Any, name: str) -> None:
    node = {"op": "neg", "of": [0], "type": TENSOR}
    try:
        loaded = xg.from_dict(rule([node], name=name))
    except xg.FormatError:
        assert not name.isprintable()
        return
    f = xg.lower(loaded, backend.name)
    np.testing.assert_array_equal(backend.vjp(f, X, X)[1], -X)


# Words that stand in emitted code of some framework, or that Python has a meaning for.
WORDS = (
    "torch", "tf", "np", "jax", "self", "cls", "type", "super", "map", "staticmethod", "residuals",
    "function",
    "forward", "backward", "keep", "kept", "output", "output_0", "grad_out_0", "cotangents", "v1",
    "where", "sum",
    "mul", "shape_of_x", "wrap", "prepare", "primals", "gradient",
)  # fmt: skip


RESERVED = ("key", "tin", "kept", "output", "output_0", "grad_out_0", "shape_of_x")


def rule_with(word: str) -> Document:
    """A rule with a param of that name."""
    mul = {"op": "mul", "of": [1, 2], "type": TENSOR}
    params = [{"name": word, "kind": "float", "default": 0.5}]
    return rule([mul, {"op": "add", "of": [3, 0], "type": TENSOR}], params=params)


def function_of(word: str) -> Document:
    """A Function of that name, with an argument of that name."""
    product = xg.function(lambda x, w: (x * w, w), lambda g, x, w: (g[0] * w, g[0] * x + g[1]))
    product(X, X)
    text = repr(product.to_dict()).replace("'x'", repr(word)).replace("<lambda>", word)
    # The shape of the input is called "x" too.
    return ast.literal_eval(text.replace(f"'T', {word!r}]", "'T', 'x']"))


@pytest.mark.parametrize("word", WORDS)
def test_names_mean_nothing_in_emitted_code(backend: Any, word: str) -> None:
    loaded = xg.from_dict(rule_with(word))
    f = xg.lower(loaded, backend.name, forward="ReLU")
    np.testing.assert_allclose(backend.vjp(f, X, np.ones_like(X))[1], 0.5 * X + 1)
    bare = loaded(None, backend.array(X), backend.array(X), **{word: 2.0})
    np.testing.assert_allclose(backend.numpy(bare), 3 * X)
    own = word if word not in RESERVED else "x"
    function = xg.from_dict({**function_of(own), "name": word})
    _, pullback = xg.vjp(function, backend.array(X), backend.array(X + 1))
    ones = backend.array(np.ones_like(X))
    found = [backend.numpy(gradient) for gradient in pullback((ones, ones))]
    np.testing.assert_allclose(found, [X + 1, X + 1])


@pytest.mark.parametrize("word", RESERVED)
def test_arguments_do_not_have_our_own_names(word: str) -> None:
    with pytest.raises(xg.FormatError, match=f"no argument can be called {word!r}"):
        xg.from_dict(function_of(word))
