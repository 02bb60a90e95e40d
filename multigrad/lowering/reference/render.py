"""NumPy's emitted code: its source, and the function that is made of it."""

from __future__ import annotations

from typing import Any

from ...backend.emitted import Emitted
from ...backend.fast import enabled
from .function import Callables, ReferenceFunction, as_array, as_arrays
from .kernels import by_blocks


def render(emitted: Emitted) -> str:
    """Return the source of up to five functions; a Function's return tuples, a rule's one array."""
    # The rule "triangular" under a step: numbers that meet arrays are prepared once.
    #
    #     def prepare(wrap, width):
    #         return (wrap(scalar_maximum(width, 1e-06)), wrap(1.0), wrap(0.0),)
    #
    #     def forward(tin):
    #         return heaviside(tin)
    #
    #     def keep(tin, output, width, n1, n2, n3):
    #         return (tin,)
    #
    #     def backward(grad_out, tin, width, n1, n2, n3):
    #         return mul_into(maximum_(sub_into(div_(abs(tin), n1), n2), n3), grad_out)
    #
    # In forward mode, `push(tangent, tin, output, width)` follows.
    f, k, b = emitted.fast.forward, emitted.fast.keep, emitted.fast.backward
    computed = iter(k.results)
    kept = "".join(
        f"{next(computed) if name in emitted.residuals.computed else name}, "
        for name in emitted.residuals.names
    )
    residuals = "".join(f", {name}" for name in emitted.residuals.names)
    shapes = "".join(f", shape_of_{name}" for name in emitted.residuals.shapes)
    inputs, cotangents = ", ".join(emitted.names.inputs), ", ".join(emitted.names.cotangents)
    outputs = ", ".join(emitted.names.outputs)
    given = "".join(f", {name}" for name in emitted.forward_params)
    prepare, constants = _render_prepare(emitted)
    first = "" if emitted.origin.is_rule else constants
    result, gradients = f.result, emitted.gradients(b)[0]
    if not emitted.origin.is_rule:
        result = f"({f.result},)"
        gradients = f"({', '.join(emitted.gradients(b))},)"
    return f"""\
{prepare}def forward({inputs}{given}{first}):
{f.indented(4)}    return {result}


def keep({inputs}, {outputs}{emitted.arguments}{constants}):
{k.indented(4)}    return ({kept.strip()})


def backward({cotangents}{residuals}{emitted.arguments}{shapes}{constants}):
{b.indented(4)}    return {gradients}
{_render_push(emitted)}"""


def _render_push(emitted: Emitted) -> str:
    if emitted.derivative.tangent is None:
        return ""
    tangents = ", ".join(emitted.names.tangents)
    values = ", ".join((*emitted.names.inputs, *emitted.names.outputs))
    return f"""

def push({tangents}, {values}{emitted.arguments}):
{emitted.derivative.tangent.indented(4)}    return ({", ".join(emitted.pushed())},)
"""


def _render_prepare(emitted: Emitted) -> tuple[str, str]:
    # Constants are computed from the params once, and passed to each call.
    prepared = emitted.fast.prepared
    words = {} if prepared is None else dict(prepared.names)
    for name in emitted.names.params:  # these are arguments anyway
        words.pop(name, None)
    if prepared is None or not words:
        return "", ""
    lines = "".join(f"    {line}\n" for line in prepared.lines)
    source = f"""\
def prepare(wrap{emitted.arguments}):
{lines}    return ({"".join(f"{word}, " for word in words.values()).strip()})


"""
    return source, "".join(f", {name}" for name in words)


def finish(namespace: dict[str, Any], emitted: Emitted) -> ReferenceFunction:
    """Build the callable NumPy function from the emitted code."""
    forward, backward = namespace["forward"], namespace["backward"]
    large, code = [forward, backward], emitted.fast.forward
    outputs = gradients = as_array
    if not emitted.origin.is_rule:
        found = dict(zip(emitted.names.wrt, emitted.origin.gradient_types, strict=True))
        types = [found.get(name) for name in emitted.names.inputs]
        given, results = emitted.origin.input_types, emitted.origin.output_types
        outputs = as_arrays(results, given, emitted.single)
        gradients = as_arrays(types, results, len(emitted.names.inputs) == 1)
    elif enabled("numpy.blocks"):
        elementwise = emitted.forward.elementwise, emitted.backward.elementwise
        large = [by_blocks(f) if is_so else f for f, is_so in zip(large, elementwise, strict=True)]
    is_identity = emitted.origin.is_rule and code.result == "tin" and not code.lines
    functions = Callables(
        forward=None if is_identity else forward,
        keep=namespace["keep"] if emitted.residuals.names else None,
        backward=backward,
        prepare=namespace.get("prepare"),
        large=(large[0], large[1]),
        outputs=outputs,
        gradients=gradients,
        push=namespace.get("push"),
    )
    return ReferenceFunction(functions, emitted)
