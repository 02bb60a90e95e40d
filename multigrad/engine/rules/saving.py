"""Save and load: rules and Functions as JSON files, data only.

A file holds graphs, never source: it is read in another process, without the source, on any
backend. Reading checks everything and raises FormatError for what is wrong. A file is written whole
or not at all.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from types import FrameType
from typing import Any, TypeAlias

import numpy as np

from ...core import ops
from ...core.backend.contract import Backend
from ...core.backend.discovery import load_backend
from ...core.functions.arguments import flatten
from ...core.ir.op import DTYPES, FLOATS, is_number
from ...core.ops.numerics import as_numpy_dtype
from ...core.rules import rule_names
from ...core.rules.registry import resolve
from ...core.rules.rule import Rule
from ...core.rules.signature import REQUIRED
from ...core.rules.vjp import vjp_leaves
from ...errors import FormatError, MultigradError, RuleError
from ..functions.documents.format import (
    MOST_BYTES,
    check_numbers,
    check_version,
    format_document,
    hash_of,
    hex_of,
    parse,
    unseal,
)
from ..functions.documents.functions import decode_function
from ..functions.documents.rules import decode_rule
from ..functions.documents.versions import OP_SET, kinks_of
from ..functions.function import Function
from ..functions.known_forms import fixed_shapes, shape_under
from ..functions.saving import refuse_guess, restore
from ..passes.serialize import (
    describe,
    fail,
    read_fields,
    read_list,
    read_name,
    read_object,
    read_text,
)
from ..support.files import write_whole
from ..support.tracebacks import is_of_us

__all__ = ["from_dict", "load", "save"]

Data = Any
Path = str | os.PathLike[str]


def save(obj: str | Rule | Function[..., Any] | Callable[..., Any], path: Path) -> None:
    """Write a rule or a Function to a JSON file: all of it, or nothing.

    The file carries evidence: the hash of its content, what its ops give at kinks, and inputs with
    the results that NumPy's reference gives for them.

    Examples:
        >>> xg.save(xg.get("triangular").with_params(width=2.0), "triangular.json")
        >>> rule = xg.load("triangular.json")  # in another process, on another framework
        >>> rule(None, np.ones(2), np.array([0.0, 1.0]))
        array([1. , 0.5])

    A Function is saved in the forms in which it was called. A warning says if these are for some
    shapes alone, as its code asks for them.

    Args:
        obj: a rule (its name, a Rule or a function), or a Function as `xg.custom_gradient` makes.
        path: the file; one that is there is replaced when the new one is complete.

    Raises:
        TraceError: it cannot be captured, so there is no graph to save; or it takes several
            arguments and was never called.
        FormatError: it has more than a document holds.
        OSError: the file cannot be written.
    """
    obj = getattr(obj, "captured_form", obj)  # of what `override` returned
    if isinstance(obj, Function):
        refuse_guess(obj)
    else:
        obj = resolve(obj)
    document = obj.to_dict()
    # Evidence of the loaded object, because the source may do more than its graph.
    loaded = from_dict(document)
    write_file(path, {**document, "evidence": make_evidence(loaded, document)})
    forms = loaded.recipe.origin.forms if isinstance(loaded, Function) else ()
    shapes = dict.fromkeys(fixed_shapes(form.layout, form.facts) for form in forms)
    if all(shapes) and shapes:
        warnings.warn(
            f"function {obj.name!r} asks for shapes, so the file is for {', or '.join(shapes)} "
            "alone: call it with all the shapes that it will meet, and save it again",
            stacklevel=level_of_user(),
        )


def load(path: Path) -> Rule | Function[..., Any]:
    """Return the rule or the Function in a file. Its content is data: nothing in it is executed.

    The result works in every framework. A rule is not registered:
    `xg.register("name")(xg.load(path))`.

    Examples:
        >>> xg.save("rectangular", "rule.json")
        >>> rule = xg.register("loaded")(xg.load("rule.json"))
        >>> xg.get("loaded")(None, np.ones(2), np.array([0.0, 9.0]))
        array([1., 0.])

    Raises:
        FormatError: the file is no document of this version, damaged or too large.
        OSError: the file cannot be read.
    """
    try:
        return from_dict(read_file(path))
    except FormatError as error:
        is_of_torch = str(path).endswith((".pt", ".pth"))
        advice = ": a checkpoint of PyTorch is read by torch.load" if is_of_torch else ""
        raise FormatError(f"{path}: {error}{advice}") from error


def from_dict(data: Mapping[str, Data]) -> Rule | Function[..., Any]:
    """Return the rule or the Function from the data that `obj.to_dict()` returned.

    Examples:
        >>> data = xg.get("rectangular").to_dict()
        >>> data["format"], data["version"]
        ('multigrad', 2)
        >>> xg.from_dict(data)(None, np.ones(2), np.array([0.0, 9.0]))
        array([1., 0.])

    Raises:
        FormatError: they are no document of this version, or damaged.
    """
    kind, fields = unseal(data, ("rule", "function"))
    evidence = fields.pop("evidence", None)
    obj = decode_rule(Rule, fields) if kind == "rule" else restore(decode_function(fields))
    if evidence is not None:
        check_evidence(evidence, data)
    return obj


def read_file(path: Path) -> Data:
    if str(path) in rule_names.RULES and not os.path.exists(path):
        raise FileNotFoundError(
            f"there is no file {path!r}; the rule of this name is xg.get({path!r})"
        )
    with open(path, "rb") as file:
        # One byte more than allowed, so that `parse` notices a larger file.
        return parse(file.read(MOST_BYTES + 1))


def write_file(path: Path, data: Data) -> None:
    """Write data as JSON, all of it or nothing: an old file stays until that is complete."""
    raw = format_document(data).encode("utf-8")
    if len(raw) > MOST_BYTES:
        raise FormatError(
            f"the document has {len(raw)} bytes, of which at most {MOST_BYTES} are read"
        )
    # A folder or a device must not be replaced.
    if os.path.exists(path) and not os.path.isfile(path):
        raise IsADirectoryError(f"{path!r} is no regular file: choose another path")
    write_whole(path, raw)


# --- evidence: a hash of the graphs, the op set, the ops' conventions at kinks, and vectors, which
# --- are inputs, cotangents, and what a backend gives for them ------------------------------------
# Numbers are hex floats, so that every bit is there and a reader in any language has the same.
Array: TypeAlias = np.ndarray[Any, Any]
Vector = dict[str, Data]
# Common edges of rules, and numbers between them.
POINTS = (-3.0, -2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 3.0)
COTANGENTS = (1.0, -0.5, 2.0, 0.25, -1.5)  # repeated to the size of an array
# By its place, what a param is multiplied by: never all by the same, so that quotients change too.
FACTORS = (0.3, 3.0, 0.7, 1.7, 0.6, 2.3)
# For Functions that do not take a vector: the first shape that runs.
SHAPES = ((3, 4), (4, 4), (2, 3, 4), (2, 3, 4, 4))
FAR = 1e4  # constants beyond are no edges
MOST_SHAPES = 64  # tries of shapes for one vector
MOST_CONSTANTS = 6  # of a graph, as points
MOST_VECTORS = 16  # of a document
MOST_NUMBERS = 4096  # of an array
KEY = 7  # of rules that draw
# What running may raise for arguments that do not fit: other shapes are tried.
UNFIT = (MultigradError, ArithmeticError, AttributeError, IndexError, TypeError, ValueError)


def make_vectors(
    obj: Rule | Function[..., Any], document: Data, inputs: Sequence[Any]
) -> tuple[list[Vector], str]:
    """Return vectors of a document, by NumPy's reference, and why there are none if so.

    Args:
        inputs: arrays and numbers with which a Function was called, for a vector beside those that
            are made up.
    """
    backend = load_backend("numpy")
    forms = (
        _of_rule(obj, document) if isinstance(obj, Rule) else _of_function(obj, document, inputs)
    )
    vectors: list[Vector] = []
    problem = ""
    for form in itertools.islice(forms, MOST_VECTORS):
        for vector in form:  # the first that runs
            try:
                result = {**vector, **run_vector(obj, vector, backend)}
                check_vectors([result], "vectors")  # of a large shape there are none
                vectors.append(result)
            except UNFIT as error:
                problem = problem or f"{type(error).__name__}: {error}"
            else:
                break
    return vectors, "" if vectors else f"it does not run on arrays that are made up: {problem:.200}"


def run_vector(
    obj: Rule | Function[..., Any], vector: Mapping[str, Data], backend: Backend
) -> dict[str, Data]:
    precision = backend.tensors.precision
    with nullcontext() if precision is None else precision("float64"), np.errstate(all="ignore"):
        inputs = {name: _decode(data, backend) for name, data in vector["inputs"].items()}
        run = _run_rule if isinstance(obj, Rule) else _run_function
        return run(obj, vector, inputs, backend)


def _run_rule(
    rule: Any, vector: Mapping[str, Data], inputs: dict[str, Any], backend: Backend
) -> dict[str, Data]:
    grad_out, tin = inputs.pop("grad_out"), inputs.pop("tin", None)
    # Bound params are in the rule already.
    params = {name: value for name, value in inputs.items() if name not in rule.bound}
    key = {"key": vector["key"]} if "key" in vector else {}
    return {"outputs": [_encode(backend, rule(None, grad_out, tin, **params, **key))]}


def _run_function(
    function: Any, vector: Mapping[str, Data], inputs: dict[str, Any], backend: Backend
) -> dict[str, Data]:
    layout = function.recipe.origin.forms[vector["form"]].layout
    values = [inputs[leaf.name] if leaf.kind != "static" else leaf.value for leaf in layout.leaves]
    leaves, tree = flatten(*layout.rebuild(values))
    outputs, _, pull = vjp_leaves(function, leaves, tree, backend)
    # Cotangents have the outputs' shapes, which only a run tells.
    encoded = [_encode(backend, output) for output in outputs]
    cotangents = [_cotangent(each) for each in encoded]
    flat_gradients = pull([None if each is None else _decode(each, backend) for each in cotangents])
    gradients = {
        leaf.name: None if gradient is None else _encode(backend, gradient)
        for leaf, gradient in zip(layout.leaves, flat_gradients, strict=True)
        if leaf.kind == "tensor"
    }
    return {"cotangents": cotangents, "outputs": encoded, "gradients": gradients}


def _of_rule(rule: Rule, document: Data) -> Iterator[Iterable[Vector]]:
    whole = "parts" in document
    forms = [{"tin": tin, "facts": {}} for tin in (True, False)] if whole else document["forms"]
    usual = {}
    for param in document.get("params", ()):
        value = document["bound"].get(param["name"], param.get("default", 1.0))
        if "value" not in param and is_number(value):
            usual[param["name"]] = value
    # What is not in `usual` cannot be set in what is loaded; parts tell that when they run.
    others = usual | {n: x for n, x in other_numbers(rule).items() if whole or n in usual}
    is_random = _is_random(document)
    # All graphs with the defaults come first, as there are at most MOST_VECTORS.
    settings = (usual, others) if others != usual else (usual,)
    for params, (i, form) in itertools.product(settings, enumerate(forms)):
        dtype = form["facts"].get("dtype", "float64")
        ndim = form["facts"].get("ndim", 1)
        edges = [] if whole else _points([*params.values(), *_constants(form["backward"])])
        points = np.array(edges or POINTS)
        # A rule for scalars gets one point, from the middle.
        points = points[len(points) // 2 :][:1].reshape(()) if ndim == 0 else points
        shape = points.shape + (1,) * (ndim - points.ndim)
        inputs = {"grad_out": _array(np.resize(COTANGENTS, shape), dtype)}
        if form["tin"]:
            inputs["tin"] = _array(points.reshape(shape), dtype)
        inputs |= {name: hex_of(value) for name, value in params.items()}
        vector: Vector = {"graph": i, "inputs": inputs}
        yield [{**vector, "key": KEY} if is_random else vector]


def other_numbers(rule: Rule) -> dict[str, float]:
    """Return numbers for a rule's floats, within their ranges, that are neither the defaults nor 1,
    where a lost factor or power would not show.
    """
    usual = {name: value for name, value in rule.params.items() if value is not REQUIRED}
    numbers: dict[str, float] = {}
    for i, (name, param) in enumerate(rule.signature.params.items()):
        default = usual.get(name, 1.0)
        if param.kind is not float or not is_number(default):
            continue
        for factor in (FACTORS * 2)[i % len(FACTORS) :]:
            number = factor * (default or 1.0)
            with suppress(RuleError):  # out of range
                rule.with_params(**{**usual, **numbers, name: number})
                if number != 1.0:
                    numbers[name] = number
                    break
    return numbers


def _is_random(document: Data) -> bool:
    if "parts" in document:
        return any(map(_is_random, document["parts"]))
    return any(row[0] == "key" for form in document["forms"] for row in form["backward"]["inputs"])


def _constants(graph: Data) -> list[Any]:
    return [node["attrs"]["value"] for node in graph["nodes"] if node["op"] == "const"]


def _points(constants: Sequence[Any]) -> list[float]:
    # A graph's constants are likely edges: they are points, and so are their negatives.
    numbers = map(float, filter(is_number, constants))
    edges = list(dict.fromkeys(n for n in numbers if abs(n) <= FAR))[:MOST_CONSTANTS]
    return sorted({*POINTS, *edges, *(-number for number in edges if number)})


def _of_function(
    function: Any, document: Data, inputs: Sequence[Any]
) -> Iterator[Iterable[Vector]]:
    given, tree = flatten(tuple(inputs), {})
    for i, form in enumerate(function.recipe.origin.forms):
        layout, facts = form.layout, form.facts
        places = [n for n, leaf in enumerate(layout.leaves) if leaf.kind != "static"]
        form_document = document["forms"][i]
        constants = [_constants(form_document[direction]) for direction in ("forward", "backward")]
        numbers = [number for graph_constants in constants for number in graph_constants]
        points = np.array(_points(numbers))
        rolled = [np.roll(points, 3 * k) for k in range(len(places))]
        leaf = partial(_leaf, layout, facts)
        as_vector = partial(_as_vector, i, [layout.leaves[n].name for n in places])
        yield (
            as_vector(map(leaf, places, rolled, shapes))
            for shapes in itertools.islice(_shapes(len(places), points.shape), MOST_SHAPES)
        )
        # Numbers that are made up may miss what the author chose inputs for, such as a clip.
        if inputs and tree == layout.tree:
            arrays = [np.asarray(given[n]) for n in places]
            yield [as_vector(map(leaf, places, arrays, (a.shape for a in arrays)))]


def _as_vector(form: int, names: Sequence[str], leaves: Iterable[Data]) -> Vector:
    return {"form": form, "inputs": dict(zip(names, leaves, strict=True))}


def _shapes(count: int, vector: tuple[int, ...]) -> Iterator[Sequence[tuple[int, ...]]]:
    """Yield shapes for arguments: one for all; then beside the first scalars and last axes, too."""
    yield from ([shape] * count for shape in (vector, *SHAPES))
    for first in (vector, *SHAPES) if count else ():
        for others in itertools.product((first, (), first[-1:]), repeat=count - 1):
            yield first, *others


def _leaf(
    layout: Any, facts: Mapping[str, Any], n: int, points: Array, shape: tuple[int, ...]
) -> Data:
    leaf = layout.leaves[n]
    # Not 1, where a lost factor would not show, and larger for a later argument, as an upper bound.
    single = (n + 1) / (n + 2) if points.ndim else points[()]
    if leaf.kind == "number":
        return hex_of(facts.get(f"param:{leaf.name}", single))
    shape = shape_under(facts, layout, n, shape)
    numbers = np.resize(points if shape else single, shape)
    dtype = facts.get("dtype", "float64") if leaf.dtype == "T" else leaf.dtype
    are_made_up = dtype not in FLOATS and numbers.dtype.kind == "f"
    return _array(numbers > 0 if are_made_up else numbers, dtype)


def _cotangent(output: Data) -> Data:
    if type(output) is not dict or output["dtype"] not in FLOATS:
        return None
    return _array(np.resize(COTANGENTS, output["shape"]), output["dtype"])


def _array(numbers: Any, dtype: str) -> Data:
    return encode(np.asarray(numbers).astype(as_numpy_dtype(dtype)), dtype)


def encode(array: Array, dtype: str) -> Data:
    # Hexadecimal digits keep every bit of a float.
    flat = array.ravel()
    values = [hex_of(float(each)) for each in flat] if dtype in FLOATS else flat.tolist()
    return {"dtype": dtype, "shape": list(array.shape), "values": values}


def decode(data: Data) -> Array:
    # The data have been checked by `check_array`.
    is_float = data["dtype"] in FLOATS
    values = [float.fromhex(each) for each in data["values"]] if is_float else data["values"]
    return np.array(values).astype(as_numpy_dtype(data["dtype"])).reshape(data["shape"])


def _decode(data: Data, backend: Backend) -> Any:
    return (
        float.fromhex(data) if isinstance(data, str) else backend.tensors.from_numpy(decode(data))
    )


def _encode(backend: Backend, value: Any) -> Data:
    if not hasattr(value, "dtype"):
        return None
    array = np.asarray(backend.tensors.to_numpy(value))
    return encode(array, array.dtype.name)


def check_vectors(data: Data, where: str) -> None:
    for i, item in enumerate(read_list(data, where, MOST_VECTORS)):
        path = f"{where}[{i}]"
        # A rule's vectors name a graph, a Function's name a form.
        owner_field = "graph" if type(item) is dict and "graph" in item else "form"
        optional = ("key",) if owner_field == "graph" else ()
        required = ("inputs", "outputs", *(() if optional else ("cotangents", "gradients")))
        fields = read_fields(item, path, (owner_field, *required), optional)
        for name in (owner_field, *optional):
            if name in fields and (type(fields[name]) is not int or not 0 <= fields[name] < 2**32):
                fail(f"{path}.{name}", f"expected a small integer, got {describe(fields[name])}")
        for name in ("inputs", "gradients"):
            _check_named(fields.get(name, {}), f"{path}.{name}", name == "inputs")
        for name in ("outputs", "cotangents"):
            for j, array in enumerate(read_list(fields.get(name, []), f"{path}.{name}", 256)):
                if array is not None:
                    check_array(array, f"{path}.{name}[{j}]")


def _check_named(data: Data, where: str, are_inputs: bool) -> None:
    if type(data) is not dict or len(data) > 256:
        fail(where, f"expected an object, got {describe(data)}")
    for name, array in data.items():
        read_name(name, where)
        if are_inputs and type(array) is str:
            check_numbers(array, f"{where}.{name}")
        elif are_inputs or array is not None:
            check_array(array, f"{where}.{name}")


def check_array(data: Data, where: str) -> None:
    fields = read_fields(data, where, ("dtype", "shape", "values"))
    if type(fields["dtype"]) is not str or fields["dtype"] not in DTYPES:
        fail(where, f"{describe(fields['dtype'])} is no dtype")
    shape = read_list(fields["shape"], f"{where}.shape", 64)
    values = read_list(fields["values"], f"{where}.values", MOST_NUMBERS)
    if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) != len(values):
        fail(where, f"{len(values)} values are not those of its shape")
    for value in values:
        if fields["dtype"] in FLOATS:
            check_numbers(value, f"{where}.values")
        elif type(value) is not (bool if fields["dtype"] == "bool" else int):
            fail(f"{where}.values", f"{describe(value)} is no {fields['dtype']}")


WITNESS = "multigrad's NumPy reference"
FIELDS = ("hash", "op_set", "conventions", "witness", "vectors")
HASH = re.compile(r"sha256:[0-9a-f]{64}")


def make_evidence(
    obj: Rule | Function[..., Any], document: Data, inputs: Sequence[Any] = ()
) -> Data:
    vectors, problem = make_vectors(obj, document, inputs)
    evidence = {
        "hash": hash_of(document),
        "op_set": OP_SET,
        "conventions": conventions_of(document),
        "witness": WITNESS,
        "vectors": vectors,
    }
    return {**evidence, "without": problem} if problem else evidence


def conventions_of(document: Data) -> Data:
    return {
        op: {
            place: {
                "of": [_as_data(number) for number in row["of"]],
                "value": _as_data(row["value"]),
                "derivative": [_as_data(number) for number in row["derivative"]],
            }
            for place, row in places.items()
        }
        for op, places in kinks_of(_ops_of(document)).items()
    }


def _as_data(numbers: Any) -> Data:
    return [_as_data(n) for n in numbers] if isinstance(numbers, tuple) else hex_of(numbers)


def _ops_of(data: Data) -> Iterator[str]:
    if isinstance(data, dict):
        if isinstance(data.get("nodes"), list):
            yield from (node["op"] for node in data["nodes"])
        for item in data.values():
            yield from _ops_of(item)
    elif isinstance(data, list):
        for item in data:
            yield from _ops_of(item)


def check_evidence(data: Data, document: Mapping[str, Data]) -> None:
    """Check what a document carries; its vectors are not run."""
    read_evidence(data, "evidence")
    actual = hash_of({name: field for name, field in document.items() if name != "evidence"})
    if actual != data["hash"]:
        fail(
            "evidence.hash",
            "the document is not as it was saved: its content has another hash. Save it again, or "
            "take the field 'evidence' out",
        )


def read_evidence(data: Data, where: str) -> None:
    fields = read_fields(data, where, FIELDS, ("without",))
    if type(fields["hash"]) is not str or not HASH.fullmatch(fields["hash"]):
        fail(f"{where}.hash", f"expected sha256 and 64 digits, got {describe(fields['hash'])}")
    check_version(fields["op_set"], f"{where}.op_set", "it was written for op set", OP_SET)
    read_text(fields["witness"], f"{where}.witness")
    read_text(fields.get("without", ""), f"{where}.without", 400, "\n")
    conventions = f"{where}.conventions"
    for op, places in read_object(fields["conventions"], conventions).items():
        if op not in ops.OPS or type(places) is not dict:
            fail(conventions, f"{op!r:.60} is no op with places")
        for place, row in places.items():
            path = f"{conventions}.{op}.{place:.60}"
            for numbers in read_fields(row, path, ("of", "value", "derivative")).values():
                check_numbers(numbers, path, 2)
    check_vectors(fields["vectors"], f"{where}.vectors")


def level_of_user() -> int:
    """Return the `stacklevel` with which the caller warns of the user's line, past our doors."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and is_of_us(frame.f_globals.get("__name__")):
        frame, level = frame.f_back, level + 1
    return level
