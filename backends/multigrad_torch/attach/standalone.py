"""The source of emitted code that runs without this package: in files, and as torch's operators."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..core.attach.render import (
    DRAW,
    as_own_tensors,
    backward_lines,
    indented,
    load_lines,
    plain_backward_lines,
    render_class,
    setup_lines,
)

if TYPE_CHECKING:
    from multigrad.core.backend.emitted import Emitted


def render_file(emitted: Emitted) -> str:
    """Return the source of one class for all calls, and its function, without multigrad."""
    name, cls = emitted.names.identifier, class_name(emitted)
    inputs = ", ".join(emitted.names.inputs)
    load, count = load_lines(emitted, emitted.read_params), len(emitted.names.params)
    draw = [*DRAW, "else:", "    key = read_key(key)"] if "key" in emitted.names.params else []
    return_line = f"return {cls}.apply({inputs}{emitted.arguments})"
    apply = [*emitted.check_arguments, *draw, return_line]
    backward = [*load, *backward_lines(emitted, count)]
    return f"""\
{render_class(emitted, cls, as_own_tensors(emitted), setup_lines(emitted), backward)}

# Dynamo (torch 2.13) would take the forward's own derivative under torch.func transforms.
allow_in_graph({cls})


def {name}({inputs}{emitted.signature}):
{indented(apply, 4)}"""


def render_operator(emitted: Emitted, name: str) -> str:
    """Return the source of a torch operator for exported programs; its backward is of ATen ops."""
    name_in_source, code = emitted.names.identifier, emitted.code
    arguments = f"{', '.join(emitted.names.inputs)}{emitted.arguments}"
    types = [f"Tensor {each}" for each in emitted.names.inputs]
    types += [f"float {each}" for each in emitted.names.params]
    result = (
        "Tensor" if emitted.single else f"({', '.join(['Tensor'] * len(emitted.names.outputs))})"
    )
    backward = plain_backward_lines(emitted)
    # An operator may return neither its inputs nor views of them.
    aliases = {*emitted.aliasing.passed, *emitted.aliasing.shared, *emitted.aliasing.views}
    results = enumerate(code.forward.results)
    own_results = tuple(f"({word}).clone()" if i in aliases else word for i, word in results)
    return f"""\
def {name_in_source}_forward({arguments}):
{code.forward.indented(4)}    return {emitted.returned(own_results)}


def {name_in_source}_keep(ctx, inputs, output):
{indented(setup_lines(emitted), 4)}

def {name_in_source}_backward(ctx, {", ".join(emitted.names.cotangents)}):
{indented(backward, 4)}

{name_in_source} = register_operator(
    {name!r},
    {f"({', '.join(types)}) -> {result}"!r},
    {name_in_source}_forward,
    {name_in_source}_keep,
    {name_in_source}_backward,
)
"""


def class_name(emitted: Emitted) -> str:
    # The file has a function of the identifier's name, so the class needs another one.
    words = re.split(r"[^A-Za-z0-9]+", emitted.names.identifier)
    return "".join(f"{word[:1].upper()}{word[1:]}" for word in words) + "Function"
