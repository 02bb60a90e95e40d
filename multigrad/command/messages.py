"""Messages between processes as plain data: JSON, and arrays as bytes behind it.

Whoever reads one runs no code of whoever wrote it, as a pickle would: it gets numbers, texts,
containers, arrays, and records of the classes that are declared here; tensors and dtypes only
where they are asked for, since making them imports a framework.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from multigrad.core.backend.discovery import entry_points, load_backend
from multigrad.core.backend.values import owner_of
from multigrad.core.ir.op import dtype_name
from multigrad.core.ops.numerics import as_numpy_dtype
from multigrad.errors import MultigradError

PLAIN = (bool, int, float, str, type(None))
RECORDS: dict[str, type] = {}


def sent(*classes: type) -> None:
    """Declare dataclasses and named tuples of plain data that processes send to each other."""
    RECORDS.update({cls.__name__: cls for cls in classes})


def _field_names(cls: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(cls):
        return tuple(each.name for each in dataclasses.fields(cls))
    return tuple(getattr(cls, "_fields", ()))


def pack(value: Any) -> bytes:
    """Return plain data as a message.

    Raises:
        MultigradError: there is something else in it.
    """
    blobs = list[bytes]()
    text = json.dumps(_to_json(value, blobs)).encode()
    sizes = json.dumps([len(text), *map(len, blobs)]).encode()
    return b"".join([len(sizes).to_bytes(8, "big"), sizes, text, *blobs])


def unpack(message: bytes, *, tensors: bool = False) -> Any:
    """Return the plain data of a message.

    Args:
        tensors: whether it may have tensors and dtypes of frameworks, too.

    Raises:
        MultigradError: it is no message, or has what nobody declared.
    """
    try:
        start = 8 + int.from_bytes(message[:8], "big")
        parts = list[bytes]()
        for size in json.loads(message[8:start]):
            parts.append(message[start : start + size])
            start += size
        text, *blobs = parts
        return _from_json(json.loads(text), blobs, tensors)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise MultigradError(f"it answers with no plain data: {error}") from error


def _to_json(value: Any, blobs: list[bytes]) -> Any:
    if type(value) in PLAIN:
        return value
    if isinstance(value, bytes):
        blobs.append(value)
        return {"bytes": len(blobs) - 1}
    if isinstance(value, np.ndarray | np.generic):
        blobs.append(np.ascontiguousarray(value).tobytes())
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {kind: [dtype_name(value.dtype), [*value.shape], len(blobs) - 1]}
    if RECORDS.get(type(value).__name__) is type(value):
        names = _field_names(type(value))
        state = [_to_json(getattr(value, name), blobs) for name in names]
        return {"record": [type(value).__name__, dict(zip(names, state, strict=True))]}
    if isinstance(value, list | tuple | set | frozenset):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_to_json(each, blobs) for each in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_to_json(each, blobs) for each in pair] for pair in value.items()]}
    backend = owner_of(value)
    if backend is not None:
        return {
            "tensor": [backend.name, _to_json(np.array(backend.tensors.to_numpy(value)), blobs)]
        }
    written = re.fullmatch(r"(\w+)\.(\w+)", repr(value))  # a dtype, such as torch.float32
    if written and written[1] in entry_points():
        return {"dtype": [written[1], written[2]]}
    raise MultigradError(
        f"a {type(value).__name__} cannot be sent to another process: {value!r:.80}"
    )


def _from_json(value: Any, blobs: list[bytes], tensors: bool) -> Any:
    if type(value) in PLAIN:
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return blobs[content]
    if kind in ("array", "scalar"):
        name, shape, place = content
        array = np.frombuffer(blobs[place], as_numpy_dtype(name)).reshape(shape).copy()
        return array if kind == "array" else array[()]
    if kind == "record":
        cls, state = RECORDS[content[0]], content[1]
        if {*state} != {*_field_names(cls)}:
            raise ValueError(f"a {content[0]} with {[*state]}")
        return cls(**{name: _from_json(each, blobs, tensors) for name, each in state.items()})
    if kind in ("list", "tuple"):
        items = [_from_json(each, blobs, tensors) for each in content]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {
            _from_json(key, blobs, tensors): _from_json(each, blobs, tensors)
            for key, each in content
        }
    if not tensors:
        raise ValueError(f"a {kind}")
    home, inner = content
    if kind == "tensor":
        return load_backend(home).tensors.from_numpy(_from_json(inner, blobs, tensors))
    found = getattr(importlib.import_module(home), inner) if home in entry_points() else None
    if found is None or callable(found):
        raise ValueError(f"{home}.{inner}")
    return found
