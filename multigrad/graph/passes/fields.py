"""The fields, values and arrays of a document: plain data, checked one by one before it is used.

What is read comes from anywhere; nothing of it is executed, and no number in it decides how much
memory is taken.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from ...errors import FormatError, suggest
from ..ir.graph import MOST_ELEMENTS, ArrayValue, freeze
from ..ops.attributes import is_name

Data = Any  # what JSON holds
MOST_PLACES = 64  # axes, and what is said of each of them
MOST_TEXT = 200
MOST_INTEGER = 1 << 63
_INTEGERS = (f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
ARRAY_DTYPES = ("bool", *_INTEGERS, "float32", "float64")
SPECIAL_FLOATS = ("nan", "inf", "-inf", "-0.0")


def fail(where: str, problem: str) -> NoReturn:
    """Raise the FormatError that says where a document is wrong."""
    raise FormatError(f"{where}: {problem}" if where else problem)


def describe(data: Data) -> str:
    """Return a value from a document, short enough for a message."""
    return f"{data!r:.60}" if isinstance(data, str | int | float | None) else f"a {kind_of(data)}"


def kind_of(data: Data) -> str:
    """Return what JSON calls a value."""
    return {dict: "object", list: "list", str: "string", type(None): "null"}.get(
        type(data), type(data).__name__
    )


# --- fields --------------------------------------------------------------------------------------


def read_fields(
    data: Data, where: str, needed: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, Data]:
    """Return an object that has the needed fields and no unknown ones."""
    if type(data) is not dict:
        fail(where, f"expected an object, got {describe(data)}")
    for name in needed:
        if name not in data:
            fail(where, f"the field {name!r} is missing")
    for name in data:
        if name not in needed and name not in optional:
            fail(where, f"there is no field {name!r:.60}{suggest(name, (*needed, *optional))}")
    return data


def read_list(data: Data, where: str, most: int) -> list[Data]:
    """Return a list that is not too long."""
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
    """Return the name of an input or a param."""
    if not is_name(data):
        fail(where, f"expected a name, got {describe(data)}")
    return data


# --- values --------------------------------------------------------------------------------------


def encode_value(value: Any) -> Data:
    """Return a number, string, None or tuple of these as data; every bit of a float is kept."""
    if isinstance(value, float):
        number = float(value)
        plain = math.isfinite(number) and (number != 0 or math.copysign(1, number) > 0)
        return number if plain else {"float": repr(number)}
    if isinstance(value, tuple):
        return [encode_value(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    raise FormatError(f"a {type(value).__name__} cannot be saved: expected a number, str or tuple")


def decode_value(data: Data, where: str, most: int = MOST_PLACES, depth: int = 3) -> Any:
    """Return what `encode_value` wrote; lists become tuples."""
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
    little = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    text = base64.b64encode(little).decode("ascii")
    return {"dtype": value.dtype, "shape": list(value.shape), "data": text}


def decode_array(data: Data, where: str) -> ArrayValue:
    """Return what `encode_array` wrote."""
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
    if type(text) is not str or len(text) != -(-expected // 3) * 4:
        fail(where, f"its data are not the {expected} bytes of its shape in base64")
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        fail(where, "its data are not in base64")
    if len(raw) != expected or (dtype == bool and raw.strip(b"\0\1")):
        fail(where, f"its data are not {expected} bytes of {dtype}")
    array = np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    return freeze(array)
