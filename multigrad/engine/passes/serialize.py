"""Graphs as plain data (dicts, lists, strings, numbers), written and read.

Files may come from anywhere: what is read is checked field by field before it is used, names
against the op table and values against fixed limits, and the types of results are computed again.
Nothing that is read is executed, and no number in it decides how much memory is taken.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ...core import ops
from ...core.ir.graph import (
    MOST_ELEMENTS,
    ArrayValue,
    Graph,
    Location,
    Node,
    Region,
    every_node,
    freeze,
    make_node,
    regions_of,
)
from ...core.ir.op import (
    BOOL_SCALAR,
    DTYPES,
    FLOAT_SCALAR,
    INPUT_SHAPE,
    INT_SCALAR,
    KEY,
    SCALAR_SHAPE,
    UNKNOWN,
    Op,
    T,
    Type,
    is_name,
)
from ...core.passes.simplify import constant
from ...errors import FormatError, suggest
from ..ops.loops import REGION
from .verify import InvalidGraph, draws, verify

Data = Any  # what JSON holds
# Limits on what a document may hold; all reading below is bounded by them.
MOST_NODES = 10_000
MOST_INPUTS = 256
LARGEST_INDEX = 1 << 32
DEEPEST_REGION = 4
REGION_TYPES = (
    FLOAT_SCALAR,
    INT_SCALAR,
    BOOL_SCALAR,
    *(
        Type("tensor", dtype, shape)
        for dtype in (T, *DTYPES)
        for shape in (INPUT_SHAPE, UNKNOWN, SCALAR_SHAPE)
    ),
)
PLACE = re.compile(r"([^/\\:]{1,100}):([1-9][0-9]{0,7})")
# The indices of `take` may be as many as the elements of its result.
LONG_ATTRS = {"indices": MOST_ELEMENTS}


def encode_type(type_: Type) -> Data:
    if type_.kind == "tensor":
        return [type_.kind, type_.dtype, encode_value(type_.shape)]
    return [type_.kind, type_.dtype]


def decode_type(data: Data, where: str, legal: Sequence[Type]) -> Type:
    """Return the legal type that `data` names."""
    for type_ in legal:
        if encode_type(type_) == data:
            return type_
    expected = " or ".join(map(str, legal[:2])) if len(legal) < 3 else "a tensor's or a number's"
    fail(where, f"its type is {describe(data)}, not {expected}")


# --- graphs --------------------------------------------------------------------------------------


def encode_graph(graph: Graph, arrays: list[ArrayValue]) -> dict[str, Data]:
    """Return a graph as data; the values of its constant arrays are added to `arrays`.

    An operand is the index of a value: the inputs first, then the nodes.
    """
    places = {node: i for i, node in enumerate(graph.inputs)}
    nodes = []
    for node in graph.nodes:
        # Inputs are among the nodes, and already have the first indices.
        if node in places:
            continue
        nodes.append(_encode_node(node, graph, places, arrays))
        places[node] = len(places)
    return {
        "inputs": [[node.attr("name"), encode_type(node.type)] for node in graph.inputs],
        "nodes": nodes,
        "outputs": [places[node] for node in graph.outputs],
    }


def _encode_node(
    node: Node, graph: Graph, places: Mapping[Node, int], arrays: list[ArrayValue]
) -> Data:
    attrs = {}
    for name, value in node.attrs:
        if isinstance(value, ArrayValue):
            # Equal arrays are written once; `repr` is equal for equal values.
            matches = [i for i, each in enumerate(arrays) if repr(each) == repr(value)]
            if not matches:
                arrays.append(value)
            attrs[name] = {"array": matches[0] if matches else len(arrays) - 1}
        elif isinstance(value, Region):
            attrs[name] = {"graph": encode_graph(value.graph, arrays)}
        else:
            attrs[name] = encode_value(value)
    data: dict[str, Data] = {"op": node.op.name}
    if node.operands:
        data["of"] = [places[operand] for operand in node.operands]
    if attrs:
        data["attrs"] = attrs
    data["type"] = encode_type(node.type)
    if node in graph.locations and PLACE.fullmatch(str(graph.locations[node])):
        data["at"] = str(graph.locations[node])
    return data


def decode_graph(
    data: Data,
    where: str,
    name: str,
    arrays: Sequence[ArrayValue],
    inputs: Mapping[str, Type],
    outputs: Sequence[Type] = (),
) -> Graph:
    """Return the graph of that data, verified.

    Args:
        inputs: the type of each input that the graph may have, beside the key of its draws.
        outputs: the types of forward's outputs, which a backward may read.

    Raises:
        FormatError: it is no legal graph, or it could take more memory than its input explains.
    """
    legal = {input_name: (type_,) for input_name, type_ in {**inputs, "key": KEY}.items()}
    graph = _decode_graph(data, where, name, arrays, inputs=legal, depth=DEEPEST_REGION)
    try:
        verify(graph)
        check_bounds(graph, {}, {})
        draws(graph)
    except InvalidGraph as error:
        fail(where, str(error))
    # Position and type of a marked output come from the file: forward must give that one.
    for node in every_node(graph):
        if node.op is not ops.OUTPUT:
            continue
        position = node.attr("position")
        if position >= len(outputs) or outputs[position] != node.type or node not in graph.nodes:
            fail(where, f"it reads an output {position} of {node.type} that forward does not give")
    return graph


def _decode_graph(
    data: Data,
    where: str,
    name: str,
    arrays: Sequence[ArrayValue],
    inputs: Mapping[str, Sequence[Type]] | None,
    depth: int,
) -> Graph:
    # `inputs` of None: a region, whose inputs may have any type; `depth`: levels of regions left.
    read_fields(data, where, ("inputs", "nodes", "outputs"))
    values: list[Node] = []
    for item in read_list(data["inputs"], f"{where}.inputs", MOST_INPUTS):
        pair = read_list(item, f"{where}.inputs", 2)
        label = read_name(pair[0] if len(pair) == 2 else None, f"{where}.inputs")
        if inputs is not None and label not in inputs:
            fail(f"{where}.inputs", f"there is no input {label!r}{suggest(label, inputs)}")
        legal = REGION_TYPES if inputs is None else inputs[label]
        type_ = decode_type(pair[1], f"{where}.inputs: {label}", legal)
        values.append(make_node(ops.INPUT, (), {"name": label}, type_))
    input_nodes = tuple(values)
    if len({node.attr("name") for node in input_nodes}) < len(input_nodes):
        fail(f"{where}.inputs", "two inputs have the same name")
    locations: dict[Node, Location] = {}
    for i, item in enumerate(read_list(data["nodes"], f"{where}.nodes", MOST_NODES)):
        node = _decode_node(item, f"{where}.nodes[{i}]", values, arrays, depth)
        values.append(node)
        if "at" in item:
            place_where = f"{where}.nodes[{i}].at"
            match = PLACE.fullmatch(read_text(item["at"], place_where))
            if match is None:
                fail(place_where, f"expected 'file.py:12', got {describe(item['at'])}")
            locations.setdefault(node, Location(match[1], int(match[2])))
    outputs = read_list(data["outputs"], f"{where}.outputs", MOST_INPUTS)
    output_nodes = tuple(values[_decode_index(i, f"{where}.outputs", len(values))] for i in outputs)
    return Graph(name, input_nodes, output_nodes, locations)


def _decode_index(data: Data, where: str, count: int) -> int:
    if type(data) is not int or not 0 <= data < count:
        fail(where, f"{describe(data)} is no index of the {count} values before it")
    return data


def _decode_node(
    data: Data, where: str, values: list[Node], arrays: Sequence[ArrayValue], depth: int
) -> Node:
    fields = read_fields(data, where, ("op", "type"), ("of", "attrs", "at"))
    name = fields["op"]
    op = ops.OPS.get(name) if type(name) is str else None
    # INPUT has a field of its own, and a CALL holds a Function, which is not data.
    if op in (None, ops.INPUT, ops.CALL):
        hint = suggest(name, ops.OPS) if type(name) is str else ""
        fail(where, f"{describe(name)} is no op that this version knows{hint}")
    operands = [
        values[_decode_index(i, where, len(values))]
        for i in read_list(fields.get("of", []), where, MOST_NODES)
    ]
    expected = len(op.operands)
    if len(operands) < expected or (len(operands) > expected and not op.variadic):
        fail(where, f"{op.name} takes {expected} operands, got {len(operands)}")
    attr_fields = read_fields(fields.get("attrs", {}), where, tuple(op.attrs))
    attrs = {
        name: _decode_region(attr_fields[name], where, name, arrays, depth)
        if op.attrs[name] is REGION
        else _decode_attr(op, name, attr_fields[name], where, arrays)
        for name in op.attrs
    }
    if op is ops.CONST:
        if type(attrs["value"]) not in (bool, int, float):
            fail(where, "a constant is a number")
        type_ = constant(attrs["value"]).type
    # `simplify` folds these, so a graph that was written has none.
    elif operands and all(operand.op is ops.CONST for operand in operands):
        fail(where, f"{op.name} of constants alone is a constant: write its value")
    else:
        type_ = _result_type(op, operands, attrs, where)
    return make_node(op, operands, attrs, decode_type(fields["type"], where, (type_,)))


def _decode_region(
    data: Data, where: str, name: str, arrays: Sequence[ArrayValue], depth: int
) -> Region:
    where = f"{where}.{name}"
    if depth == 0:
        # A bound, because reading and checking recurse into regions.
        fail(where, "its loops are nested too deep")
    graph = read_fields(data, where, ("graph",))["graph"]
    return Region(_decode_graph(graph, where, name, arrays, inputs=None, depth=depth - 1))


def _decode_attr(op: Op, name: str, data: Data, where: str, arrays: Sequence[ArrayValue]) -> Any:
    where = f"{where}.{name}"
    if type(data) is dict and "array" in data:
        index = read_fields(data, where, ("array",))["array"]
        return arrays[_decode_index(index, where, len(arrays))]
    # By its own limit, because a list of indices may be long.
    value = decode_value(data, where, LONG_ATTRS.get(name, MOST_PLACES))
    if name == "value":
        return value
    if not op.attrs[name].legal(value):
        fail(where, f"{describe(data)} is no legal value")
    if any(abs(number) > LARGEST_INDEX for number in _integers(value)):
        fail(where, f"{describe(data)} is too large")
    return value


def _integers(value: Any) -> list[int]:
    if isinstance(value, tuple):
        return [number for item in value for number in _integers(item)]
    return [value] if type(value) is int else []


def _result_type(op: Op, operands: list[Node], attrs: Mapping[str, Any], where: str) -> Type:
    result: Callable[..., Type] = op.result
    if op is ops.ARRAY and not isinstance(attrs["value"], ArrayValue):
        fail(where, "the value of array is one of the document's arrays: {'array': 0}")
    try:
        return result(*(operand.type for operand in operands), **attrs)
    except (TypeError, ValueError) as error:
        fail(where, f"{op.name}: {error}")


# --- bounds -------------------------------------------------------------------------------------
# `tile` by a thousand, three times, is short to write and large to run. Bounded here are the copies
# that static attributes make of an input, and the bits of integers computed from lengths; what a
# graph computes of the values and lengths of its input (all pairs, say) is as large as the input
# says.
MOST_COPIES = 1 << 20
MOST_BITS = 1000  # an integer of fewer is a float64 without overflow
LENGTH_BITS = 63  # a length is below 2**63
LENGTHS = ("dim", "size", "all_dim")


def check_bounds(graph: Graph, copies: dict[Node, int], bits: dict[Node, int]) -> None:
    """Check that static attributes make no huge tensor, and lengths no huge integer.

    `copies` and `bits` hold the estimates of nodes that are already known.
    """
    for node in graph.nodes:
        if node in copies:
            continue
        for region in regions_of(node):  # a turn keeps the shapes of what it takes
            arguments = [*zip(region.graph.inputs, node.operands, strict=True)]
            inner_copies = {inner: copies[operand] for inner, operand in arguments}
            inner_bits = {inner: bits[operand] for inner, operand in arguments}
            check_bounds(region.graph, inner_copies, inner_bits)
        amounts = [copies[operand] for operand in node.operands]
        grow = node.op.copies
        copies[node] = max(amounts, default=1) if grow is None else grow(node, amounts)
        if copies[node] > MOST_COPIES:
            raise InvalidGraph(
                f"{graph.name}: {node.op.name} makes more than {MOST_COPIES} copies of its input"
            )
        bits[node] = 0
        if node.type.kind == "scalar" and node.type.dtype != "float":
            bits[node] = _bits_of(node, [bits[operand] for operand in node.operands])
        if bits[node] > MOST_BITS:
            raise InvalidGraph(f"{graph.name}: {node.op.name} makes integers of {bits[node]} bits")


def _bits_of(node: Node, bits: Sequence[int]) -> int:
    """Return how many bits an integer computed of integers of so many has at most."""
    name = node.op.name
    if not bits or name in LENGTHS:
        return LENGTH_BITS
    if name in ("add", "sub"):  # a sum of two has one bit more
        return max(bits) + 1
    if name in ("mul", "square"):
        return sum(bits) if name == "mul" else 2 * bits[0]
    return bits[0] + 31 if name == "bitwise_left_shift" else max(bits)  # by 31 bits at most


# --- fields --------------------------------------------------------------------------------------
MOST_PLACES = 64  # axes, and values for each of them
MOST_TEXT = 200
MOST_INTEGER = 1 << 63
_INTEGERS = (f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
ARRAY_DTYPES = ("bool", *_INTEGERS, "float32", "float64")
SPECIAL_FLOATS = ("nan", "inf", "-inf", "-0.0")


def fail(where: str, problem: str) -> NoReturn:
    raise FormatError(f"{where}: {problem}" if where else problem)


def describe(data: Data) -> str:
    """Return a value from a document, short enough for a message."""
    if isinstance(data, str | int | float | None):
        return f"{data!r:.60}"
    return "an object" if type(data) is dict else f"a {type(data).__name__}"


def read_object(data: Data, where: str) -> dict[str, Data]:
    # `type(...) is`, here and below: a document holds no subclasses, and bool is one of int.
    if type(data) is not dict:
        fail(where, f"expected an object, got {describe(data)}")
    return data


def read_fields(
    data: Data, where: str, needed: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, Data]:
    """Return an object that has the needed fields and no unknown ones."""
    read_object(data, where)
    for name in needed:
        if name not in data:
            fail(where, f"the field {name!r} is missing")
    for name in data:
        if name not in needed and name not in optional:
            fail(where, f"there is no field {name!r:.60}{suggest(name, (*needed, *optional))}")
    return data


def read_list(data: Data, where: str, most: int) -> list[Data]:
    if type(data) is not list:
        fail(where, f"expected a list, got {describe(data)}")
    if len(data) > most:
        fail(where, f"at most {most} items are read, got {len(data)}")
    return data


def read_text(data: Data, where: str, most: int = MOST_TEXT, extra: str = "") -> str:
    """Return a string of printable characters (and those in `extra`) that is not too long."""
    if type(data) is not str:
        fail(where, f"expected a string, got {describe(data)}")
    if len(data) > most:
        fail(where, f"at most {most} characters are read, got {len(data)}")
    if not all(character.isprintable() or character in extra for character in data):
        fail(where, "it has characters that are not printable")
    return data


def read_bool(data: Data, where: str) -> bool:
    if type(data) is not bool:
        fail(where, f"expected true or false, got {describe(data)}")
    return data


def read_name(data: Data, where: str) -> str:
    if not is_name(data):
        fail(where, f"expected a name, got {describe(data)}")
    return data


# --- values --------------------------------------------------------------------------------------


def encode_value(value: Any) -> Data:
    """Return a number, string, None or tuple of these as data; every bit of a float is kept."""
    if isinstance(value, float):
        number = float(value)
        is_plain = math.isfinite(number) and (number != 0 or math.copysign(1, number) > 0)
        return number if is_plain else {"float": repr(number)}
    if isinstance(value, tuple):
        return [encode_value(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    raise FormatError(f"a {type(value).__name__} cannot be saved: expected a number, str or tuple")


def decode_value(data: Data, where: str, most: int = MOST_PLACES, depth: int = 3) -> Any:
    """Read a value that `encode_value` wrote; lists become tuples."""
    if type(data) is list:
        if depth == 0:
            fail(where, "its lists are nested too deep")
        items = read_list(data, where, most)
        return tuple(decode_value(item, where, most, depth - 1) for item in items)
    if type(data) is dict:
        special = read_fields(data, where, ("float",))["float"]
        if special not in SPECIAL_FLOATS:
            fail(where, f"expected one of {', '.join(SPECIAL_FLOATS)}, got {describe(special)}")
        return float(special)
    if type(data) is str:
        return read_text(data, where)
    if type(data) is int and abs(data) >= MOST_INTEGER:
        fail(where, "the integer has more than 64 bits")
    if type(data) is float and not math.isfinite(data):
        fail(where, "a number in a document is finite")
    if type(data) not in (int, float, bool, type(None)):
        fail(where, f"a {type(data).__name__} is no part of a document")
    return data


# --- arrays --------------------------------------------------------------------------------------


def encode_array(value: ArrayValue) -> Data:
    """Return a constant array as data: its little-endian bytes in base64."""
    if value.dtype not in ARRAY_DTYPES:
        raise FormatError(f"a constant array of {value.dtype} cannot be saved")
    array = np.frombuffer(value.data, np.dtype(value.dtype))
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    text = base64.b64encode(little_endian).decode("ascii")
    return {"dtype": value.dtype, "shape": list(value.shape), "data": text}


def decode_array(data: Data, where: str) -> ArrayValue:
    fields = read_fields(data, where, ("dtype", "shape", "data"))
    if fields["dtype"] not in ARRAY_DTYPES:
        fail(where, f"arrays are of {', '.join(ARRAY_DTYPES)}, not {describe(fields['dtype'])}")
    shape = tuple(read_list(fields["shape"], where, MOST_PLACES))
    if not all(type(n) is int and 0 <= n <= MOST_ELEMENTS for n in shape):
        fail(where, "its shape is no list of lengths")
    if math.prod(shape) > MOST_ELEMENTS:
        fail(
            where, f"it has {math.prod(shape)} elements, of which at most {MOST_ELEMENTS} are read"
        )
    dtype = np.dtype(fields["dtype"])
    expected = math.prod(shape) * dtype.itemsize
    text = fields["data"]
    # The length is checked before decoding, so that text decides nothing about memory.
    if type(text) is not str or len(text) != -(-expected // 3) * 4:
        fail(where, f"its data are not the {expected} bytes of its shape in base64")
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        fail(where, "its data are not in base64")
    # A bool of another byte than 0 or 1 is undefined in NumPy.
    if len(raw) != expected or (dtype == bool and raw.strip(b"\0\1")):
        fail(where, f"its data are not {expected} bytes of {dtype}")
    array = np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    return freeze(array)
