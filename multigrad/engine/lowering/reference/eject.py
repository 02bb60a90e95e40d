"""NumPy's ejected code: a function in a file of its own, whose attribute `vjp` has the pullback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from ....core import ops
from ....core.backend.emitted import Emitted, find_like
from ....core.ir.op import T, Type
from ....core.lowering.reference.function import as_operand
from ... import random
from ...backend.features import Ejection
from ...ops import special_functions

Array = Any


def render(emitted: Emitted) -> str:
    """Return the source of forward, and of forward with the map from cotangents to gradients."""
    f, k, b = emitted.fast.forward, emitted.fast.keep, emitted.fast.backward
    name, inputs = emitted.names.identifier, ", ".join(emitted.names.inputs)
    gradient_types = dict(zip(emitted.names.wrt, emitted.origin.gradient_types, strict=True))
    input_gradients = tuple(gradient_types.get(each) for each in emitted.names.inputs)
    pairs = [*zip(emitted.residuals.computed, k.results, strict=True)]
    residuals = "".join(f"    {each} = {result}\n" for each, result in pairs)
    shapes = "".join(f"    shape_of_{each} = {each}.shape\n" for each in emitted.residuals.shapes)
    outputs = _converted(
        f.results, emitted.origin.output_types, emitted.origin.input_types, emitted.names.inputs
    )
    gradients = _converted(
        emitted.gradients(b), input_gradients, emitted.origin.output_types, emitted.names.cotangents
    )
    if emitted.origin.is_rule:  # its gradient has the dtype of the cotangent, whatever it is
        outputs = [f"np.asarray({f.result}, {emitted.names.inputs[0]}.dtype)"]
        gradients = [f"np.asarray({emitted.gradients(b)[0]}, {emitted.names.cotangents[0]}.dtype)"]
    draw = ["if key is None:", "    key = draw_key()", "else:", "    key = read_key(key)"]
    lines = [f"{each} = np.asarray({each})" for each in emitted.names.inputs]
    lines += [f"{each} = as_operand({each})" for each in emitted.names.params if each != "key"]
    lines += emitted.check_arguments
    lines += draw if "key" in emitted.names.params else []
    start = "".join(f"    {line}\n" for line in lines)
    cotangent = emitted.names.cotangents[0] if emitted.single else "cotangents"
    names = ", ".join(emitted.names.cotangents)
    setup = "" if emitted.single else f"        {names} = cotangents\n"
    setup += "".join(
        f"        {c} = as_cotangent({c}, {y})\n"
        for c, y in zip(emitted.names.cotangents, emitted.names.outputs, strict=True)
    )
    assignments = "".join(
        f"    {each} = {text}\n" for each, text in zip(emitted.names.outputs, outputs, strict=True)
    )
    result = emitted.returned(emitted.names.outputs)
    result_gradients = gradients[0] if len(gradients) == 1 else f"({', '.join(gradients)})"
    return f"""\
@quiet
def {name}({inputs}{emitted.signature}):
{start}{f.indented(4)}{assignments}    return {result}


@quiet
def {name}_vjp({inputs}{emitted.signature}):
{start}{f.indented(4)}{assignments}{k.indented(4)}{residuals}{shapes}
    @quiet
    def pullback({cotangent}):
{setup}{b.indented(8)}        return {result_gradients}

    return {result}, pullback


{name}.vjp = {name}_vjp
"""


def _converted(
    results: tuple[str, ...],
    types: tuple[Type | None, ...],
    like_types: tuple[Type | None, ...],
    names: tuple[str, ...],
) -> list[str]:
    # T is the dtype of the first float input.
    like = find_like(like_types)
    conversion = "" if like is None else f", {names[like]}.dtype"
    return [
        "None" if type_ is None else f"np.asarray({result}{conversion if type_.dtype == T else ''})"
        for result, type_ in zip(results, types, strict=True)
    ]


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Silence floating-point warnings: inf and NaN are results here."""

    @functools.wraps(function)
    def call(*args: Any, **params: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args, **params)

    return call


def as_cotangent(cotangent: Array | None, output: Array) -> Array:
    """Return a cotangent as an array of its output's dtype; None is zero."""
    return np.zeros_like(output) if cotangent is None else np.asarray(cotangent, output.dtype)


def array(like: Array, *, dtype: Any, value: Array) -> Array:
    """Return a constant array in a dtype."""
    return value.astype(dtype)


def from_scipy(name: str, module: str = "special") -> Any:
    """Return a function of SciPy's."""
    return getattr(import_module(f"scipy.{module}"), name)


def read_key(key: Any) -> Any:
    """Return the two words of a key."""
    return random.key_pair(key)


def fold_in(key: Any, n: int) -> Any:
    """Return the n-th key that is derived from a key."""
    first, second = key
    add, rotate_xor, as_word = random.add_ints, random.rotate_xor_ints, random.mask_int
    return random.threefry_rounds((first, second), (0, n), add, rotate_xor, as_word)


def lay_out(key: Any, shape: tuple[int, ...]) -> Any:
    """Return the key, and a draw cut into blocks: (start, stop, the first counter)."""
    return key, random.whole_blocks(shape)


EJECTION = Ejection(
    render=render,
    modules={"np": np, "np.linalg": np.linalg},
    calls=("y = {}({})", "y, pullback = {}.vjp({})"),
    namespace={
        "as_cotangent": as_cotangent,
        "as_operand": as_operand,
        "quiet": quiet,
        "read_key": read_key,
    },
    words=("pullback",),
    forms={
        ops.OPS["array"].numpy: array,
        special_functions.from_scipy: from_scipy,
        random.fold_in: fold_in,
        random.lay_out: lay_out,
        random.normal: random.normal,
        random.uniform: random.uniform,
    },
)
