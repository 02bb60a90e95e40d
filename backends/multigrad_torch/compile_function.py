"""Functions in code that torch.compile reads: Dynamo calls what they are lowered to, their Python code it never sees.

The arguments are described to `prepare`, which runs outside of the trace and leaves a call among CALLS. A number is
written into it, so a new one means a new graph; so does a shape that the Function's own Python code looks at, and the
rule in force where the Function holds an activation that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx.experimental.symbolic_shapes import guard_scalar

from multigrad.errors import MultigradError
from multigrad.functions.arguments import flatten, read_layout
from multigrad.functions.facts import gather_facts
from multigrad.functions.function import Function, by_identifier, tracers
from multigrad.functions.record import NotCaptured, Variant
from multigrad.ir.record import NeedFact, Value
from multigrad.lowering.backend import load_backend
from multigrad.lowering.emit import compile_source
from multigrad.lowering.lower import Lowered, lower_pair
from multigrad.reads import is_read
from multigrad.trees import optree

from . import random
from .compile import CALLS, EPOCH, MIRROR, REFUSED, check_mirror
from .numbering import number_application, serial

Tensor: TypeAlias = Any
# The answers of `prepare` where it needs to be called with shapes, or with what the Function reads besides its arguments.
SHAPES = "shapes"
READS = "reads"
NAMES: dict[Any, str] = {}  # of the calls, by what they depend on
MOST_NAMES = 4096


def call_traced(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What Dynamo traces in the place of `Function.__call__`."""
    if not torch.compiler.is_dynamo_compiling() and holds_symbols((args, kwargs)):
        return function.apply(args, kwargs)  # in a capture that `prepare` began
    tensors: list[Tensor] = []
    described = describe((args, kwargs), tensors, False)
    name = prepare(function.identifier, described, "", "", "")
    if name == SHAPES:
        tensors = []
        described = describe((args, kwargs), tensors, True)
        name = prepare(function.identifier, described, "", "", "")
    if name == READS:
        name = prepare(function.identifier, described, MIRROR.token, MIRROR.exact, EPOCH.text)
        if name == SHAPES:
            tensors = []
            described = describe((args, kwargs), tensors, True)
            name = prepare(function.identifier, described, MIRROR.token, MIRROR.exact, EPOCH.text)
    if name.startswith(REFUSED):
        torch._dynamo.graph_break(msg=name)
        return apply_eagerly(function, args, kwargs)
    if torch.compiler.is_exporting():
        # What is exported is ATen ops: rather no gradient than the forward's own in silence.
        tensors = [tensor.detach() for tensor in tensors]
    if torch._C._are_functorch_transforms_active():
        # Dynamo (torch 2.13) would take the forward's own derivative under torch.func transforms.
        outputs = getattr(CALLS, name + "_in_graph")(*tensors)
    else:
        outputs = getattr(CALLS, name)(*tensors)
    return getattr(CALLS, name + "_assemble")(outputs)


def holds_symbols(arguments: Any) -> bool:
    """Return whether a capture's symbols are among arguments."""
    return any(isinstance(leaf, Value) for leaf in optree.tree_leaves(arguments))


def describe(value: Any, tensors: list[Tensor], shapes: bool) -> Any:
    """Return arguments as constants, their tensors in the order of the leaves."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        if not shapes:
            return ("tensor", value.dtype, value.ndim)
        return ("tensor", value.dtype, tuple([guard_scalar(n) for n in value.shape]))
    if isinstance(value, tuple | list):
        return (type(value).__name__, tuple([describe(each, tensors, shapes) for each in value]))
    if isinstance(value, dict):
        names = sorted(value)
        return (
            "dict",
            tuple(names),
            tuple([describe(value[name], tensors, shapes) for name in names]),
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ("value", guard_scalar(value))  # Dynamo makes a symbol of one that has changed
    return ("value", value)


def restore(described: Any) -> Any:
    """Return arguments like those described, without numbers in the tensors."""
    kind, *rest = described
    if kind == "tensor":
        dtype, shape = rest
        shape = (1,) * shape if isinstance(shape, int) else shape
        return torch.empty(shape, dtype=dtype, device="meta")
    if kind == "value":
        return rest[0]
    if kind == "dict":
        return dict(zip(rest[0], map(restore, rest[1]), strict=True))
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(map(restore, rest[0]))
    raise MultigradError(f"compiled code takes no {kind} of tensors")


@torch._dynamo.disable
def apply_eagerly(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply outside of compiled code, after a graph break."""
    if torch.compiler.is_exporting():
        args, kwargs = optree.tree_map(detach, (args, kwargs), none_is_leaf=True)
    return function.apply(args, kwargs)


def detach(leaf: Any) -> Any:
    """Return a tensor that no gradient passes."""
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


@torch.compiler.assume_constant_result
def prepare(identifier: str, described: Any, token: str, exact: str, epoch: str) -> str:
    """Make the call for arguments like these, and return its name among CALLS.

    `token` and what follows it tell what the Function may read; an epoch of "" says that it reads nothing.
    """
    try:
        if epoch and not exact:  # not under xg.jit
            check_mirror(token)
        return find_call(by_identifier[identifier], described, f"{exact or token} {epoch}".strip())
    except NotCaptured as error:
        return f"{REFUSED}{error.error}"
    except Exception as error:  # noqa: BLE001 (Dynamo would wrap it; after the break it is raised as it is)
        return f"{REFUSED}{type(error).__name__}: {error}"


def find_call(function: Function, described: Any, read: str) -> str:
    """Return the name among CALLS, as `prepare`."""
    if not read and reads(function):
        return READS
    key = (function.identifier, described, repr(described), read)  # 1, 1.0 and True are equal
    if function.is_keyed:
        # Each call draws its own numbers, so it gets a function of its own.
        key = (*key, number_application(function.counter))
    if key not in NAMES:
        call = make_call(function, described)
        if call is None:
            return SHAPES
        if not read and reads(function):
            return READS
        if len(NAMES) >= MOST_NAMES:
            for name in NAMES.values():
                for suffix in ("", "_in_graph", "_assemble"):
                    vars(CALLS).pop(name + suffix, None)
            NAMES.clear()
        NAMES[key] = name = f"function_{next(serial)}"
        setattr(CALLS, name, call.plain)
        setattr(CALLS, f"{name}_in_graph", torch._dynamo.allow_in_graph(call.in_graph))
        setattr(CALLS, f"{name}_assemble", call.assemble)
    return NAMES[key]


@dataclass(frozen=True, slots=True)
class Call:
    """What compiled code calls: for the outputs as a tuple, twice, and for their own nesting."""

    plain: Callable[..., Any]
    in_graph: Callable[..., Any]
    assemble: Callable[..., Any]


def make_call(function: Function, described: Any) -> Call | None:
    """Return what compiled code calls; None: see SHAPES."""
    if function.native is True:
        raise MultigradError(f"function {function.name!r} runs as it is")
    args, kwargs = restore(described)
    leaves, tree = flatten(args, kwargs)
    layout = read_layout(function.name, function.parameters, leaves, tree)
    while True:
        try:
            variant = function.variant(
                layout, gather_facts(function.name, function.facts, layout, leaves)
            )
            break
        except NeedFact:
            if knows_lengths(described) or not needs_shapes(function):
                continue
            return None
    if needs_shapes(function) and not knows_lengths(described):
        return None
    backend = load_backend("torch")
    lowered = lower_pair(variant.pair, backend, fast=False)
    numbers = {
        leaf.name: leaves[i] for i, leaf in enumerate(layout.leaves) if leaf.kind == "number"
    }
    words, names = [], {}
    for number in numbers.values():
        is_odd = number - number != 0
        words.append(f"float({str(number)!r})" if is_odd else repr(number))
    if variant.pair.is_random and function.is_keyed:
        names["key"] = key = function.draw(backend)
        words.append(repr(key) if isinstance(key, tuple) else "key")
    elif variant.pair.is_random:
        names["draw_key"] = random.draw_key
        words.append("draw_key()")
    assemble = emit_assembly(variant)
    return emit_call(lowered, len(layout.tensors), words, names, assemble)


def reads(function: Function) -> bool:
    """Return whether the Function's Python code reads more than its arguments."""
    return any(map(is_read, function.facts))


def needs_shapes(function: Function) -> bool:
    """Return whether the Function's Python code looks at the lengths of its tensors."""
    return any(fact.startswith("shape") for fact in function.facts)


def knows_lengths(described: Any) -> bool:
    """Return whether arguments were described with their tensors' shapes."""
    if isinstance(described, tuple):
        if described and described[0] == "tensor":
            return isinstance(described[2], tuple)
        return all(knows_lengths(each) for each in described)
    return True


def emit_call(
    lowered: Lowered,
    count: int,
    words: Sequence[str],
    names: dict[str, Any],
    assemble: Callable[..., Any],
) -> Call:
    """Return calls with the numbers as literals, because Dynamo makes inputs of floats it finds."""
    native = lowered.native
    tensors = [f"x{i}" for i in range(count)]
    source = f"def call({', '.join(tensors)}):\n    return Native.apply({', '.join([*tensors, *words])})\n"
    calls = []
    for each in (native.eager, native):
        call = compile_source(source, native.__name__, {"Native": each, **names})["call"]
        call.__module__ = __name__  # the graph's own code names what it calls by module
        call.__qualname__ = call.__name__ = f"{native.__name__}_{next(serial)}"
        calls.append(call)
    return Call(calls[0], calls[1], assemble)


def emit_assembly(variant: Variant) -> Callable[..., Any]:
    """Return what puts outputs into their own nesting, in code that Dynamo reads."""
    names: dict[str, Any] = {}
    single = len(variant.pair.cotangents) == 1
    rest = iter(
        ["outputs"] if single else [f"outputs[{i}]" for i in range(variant.outputs.num_leaves)]
    )
    words = [
        _Word(repr(variant.fixed[i]) if i in variant.fixed else next(rest))
        for i in range(variant.outputs.num_leaves)
    ]
    text = _write(optree.tree_unflatten(variant.outputs, words), names)
    return compile_source(f"def assemble(outputs):\n    return {text}\n", "outputs", names)[
        "assemble"
    ]


@dataclass(frozen=True, slots=True)
class _Word:
    text: str


def _write(outputs: Any, names: dict[str, Any]) -> str:
    """Return nested outputs as source."""
    if isinstance(outputs, _Word):
        return outputs.text
    if isinstance(outputs, dict):
        inner = ", ".join(f"{name!r}: {_write(each, names)}" for name, each in outputs.items())
        return f"{{{inner}}}"
    inner = ", ".join(_write(each, names) for each in outputs)
    if isinstance(outputs, list):
        return f"[{inner}]"
    if type(outputs) is tuple:
        return f"({inner},)" if inner else "()"
    names[type(outputs).__name__] = type(outputs)
    return f"{type(outputs).__name__}({inner})"


tracers.append((torch.compiler.is_compiling, call_traced))
