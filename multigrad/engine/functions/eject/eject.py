"""Eject: a pair of graphs as a whole module of one framework, which needs no multigrad.

The pair is lowered as everything is, for a backend that keeps the namespace of the emitted code
instead of compiling it. Then all that the code names is written into the file (`tree_shaking.py`),
after a head with an example. The bits stay the same; long lines are left to a formatter.
"""

from __future__ import annotations

import ast
import sys
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from types import MappingProxyType
from typing import Any

from ....core import ops
from ....core.backend.contract import Backend
from ....core.backend.emitted import Emitted, Made
from ....core.backend.rows import FastKernels, disabled
from ....core.ir.op import dtype_name
from ....core.lowering.checks import shapes_agree
from ....core.lowering.emit import apply_patterns
from ....core.lowering.function_graph import FunctionGraph
from ....core.support.lazy_modules import loaded
from ....core.support.trees import Tensor
from ....errors import GradientError, UnsupportedOp
from ...backend.features import Ejection
from ...lowering.checks import format_lengths
from ...lowering.lower import lower_pair
from .statements import WIDEST, literal
from .tree_shaking import Shaker

LICENSE = "Apache-2.0"
KEYS = (
    "key: an int, two words of 32 bits, or a key of the framework; without one it is drawn from "
    "the framework's own generator, where there is one."
)


def eject(
    graphs: FunctionGraph,
    backend: Backend,
    defaults: Mapping[str, Any],
    *,
    title: str,
    note: str = "",
    asked: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> str:
    """Return the text of a module that computes a pair of graphs and imports nothing of multigrad.

    Args:
        graphs: their name is that of the public function.
        defaults: of the run-time params.
        title, note: what the module is, and what it is not for, for its docstring.
        asked: by argument the shape, dtype or number that the graphs are for.

    Raises:
        UnsupportedOp: it needs something that no file can hold.
    """
    ejection = backend.ejection
    if ejection is None:
        raise UnsupportedOp(
            f"backend {backend.name!r} does not define standalone files "
            "(Backend.ejection); eject it for another backend, or save it with xg.save"
        )
    # A draw takes a key of its place, and the framework knows places.
    nodes = (*graphs.forward.nodes, *graphs.backward.nodes)
    is_placed = any(node.op is ops.PLACE_KEY for node in nodes)
    if is_placed and backend.kernels.rows[ops.PLACE_KEY] is not ops.PLACE_KEY.numpy:
        raise UnsupportedOp(
            f"{title} draws each shard's part of an array, which a standalone file for "
            f"{backend.name} cannot do: eject the rule without over= or axis_name=, or save it "
            "with xg.save"
        )
    lowered = lower_pair(
        graphs,
        _ejecting(backend, ejection, graphs),
        defaults,
        checks=True,
        asked=fact_checks(graphs.name, asked),
    )
    namespace, emitted = lowered.native, lowered.emitted
    assert emitted is not None
    # Names that the code binds itself mean something in the file.
    bound_words = _words(lowered.source) - set(namespace) | {emitted.names.identifier}
    shaker = Shaker(ejection.modules, ejection.forms, _roots(ejection), bound_words)
    try:
        code = shaker.add(lowered.source, namespace)
    except UnsupportedOp as error:
        raise UnsupportedOp(
            f"{title} cannot be ejected for {backend.name}: {error}. Use it with multigrad, or "
            "save it with xg.save"
        ) from error
    shaker.parts.append(code)
    head = _head(emitted, backend, ejection, title, note)
    text = f"{head}{write_parts(shaker, emitted.names.identifier)}"
    _check(text, _roots(ejection), title)
    return text


def eject_operators(operators: Mapping[str, FunctionGraph], backend: Backend) -> str:
    """Return a module that registers operators, by name, which programs of a framework call."""
    ejection = backend.ejection
    if ejection is None or ejection.operator is None:
        raise UnsupportedOp(f"programs of {backend.name} call no operators: export a .pt2")
    shaker = Shaker(ejection.modules, ejection.forms, _roots(ejection), set())
    for name, graphs in operators.items():
        for_operator = replace(ejection, render=ejection.operator(name))
        renamed = replace(graphs, name=name)
        lowered = lower_pair(renamed, _ejecting(backend, for_operator, renamed), style="plain")
        shaker.taken |= _words(lowered.source) - set(lowered.native)
        shaker.parts.append(shaker.add(lowered.source, lowered.native))
    title = f"The operators of an exported program: {', '.join(operators)}"
    usage = f"{_made_with(backend)}. Import it, then load the program."
    head = _write_head([f"{title}.", "", usage])
    text = f"{head}{write_parts(shaker)}"
    _check(text, _roots(ejection), title)
    return text


def _ejecting(backend: Backend, ejection: Ejection, graphs: FunctionGraph) -> Backend:
    """Return the backend that lowers to the namespace of emitted code, which the shaker writes."""

    def unchanged(native: Any, emitted: Emitted) -> Any:
        return native

    def later(make: Any) -> Any:
        return None if make is None else lambda message: Made(loaded(make), (message,))

    # A name of a module is no param's: those are renamed that are called like one.
    names = {**ejection.modules, **backend.autodiff.namespace, **ejection.namespace}
    names["draw_key"] = backend.draws.draw_key
    names.update(dict.fromkeys(ejection.words))
    autodiff = replace(
        backend.autodiff,
        render=ejection.render,
        finish=unchanged,
        call=unchanged,
        namespace={name: value for name, value in names.items() if "." not in name},
        forbid_derivative=later(backend.autodiff.forbid_derivative),
        refuse_gradient=later(backend.autodiff.refuse_gradient),
    )
    fast = _rows_that_round(backend.kernels.fast, graphs)
    kernels = replace(backend.kernels, fast=fast, bits=None)  # a file keeps bools
    return backend.with_groups(kernels=kernels, autodiff=autodiff)


def _rows_that_round(fast: FastKernels, graphs: FunctionGraph) -> FastKernels:
    """Return the fast rows that change bits of these graphs; others need no place in a file."""
    patterns = tuple(pattern for pattern in fast.patterns if pattern.rounds)
    rounding = FastKernels(patterns=patterns, kernels=fast.kernels)
    for graph in (graphs.forward, graphs.backward):
        if apply_patterns(graph, rounding, disabled()).outputs != graph.outputs:
            return rounding
    return FastKernels()


def _words(code: str) -> set[str]:
    nodes = ast.walk(ast.parse(code))
    words = (getattr(node, field, None) for node in nodes for field in ("id", "arg", "name"))
    return {word for word in words if isinstance(word, str)}


def _roots(ejection: Ejection) -> frozenset[str]:
    """Return the packages that a file must not import: ours, and the backend's."""
    render: types.FunctionType = ejection.render  # type: ignore[assignment]
    return frozenset({__name__.partition(".")[0], render.__module__.partition(".")[0]})


def _head(emitted: Emitted, backend: Backend, ejection: Ejection, title: str, note: str) -> str:
    arguments = [*emitted.names.inputs]
    defaults = emitted.names.defaults
    arguments += [
        f"{name}={literal(defaults[name])}" if name in defaults else name
        for name in emitted.names.params
    ]
    listed = ", ".join(arguments)
    calls = [f"    {each.format(emitted.names.identifier, listed)}" for each in ejection.calls]
    lines = [f"{title}.", "", f"{_made_with(backend)}.", *(["", note] if note else [])]
    lines += ["", "Example:", *calls]
    if len(emitted.names.inputs) > 1:  # of a number, a framework may find out in backward only
        lines += ["", f"Give {', '.join(emitted.names.inputs)} as tensors, no Python numbers."]
    if "key" in emitted.names.params:
        lines += ["", KEYS]
    return _write_head(lines)


def _made_with(backend: Backend) -> str:
    try:
        version = metadata.version("multigrad-rules")
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        version = "0"
    framework = f"{backend.name} {sys.modules[backend.name].__version__}"
    return f"Made by multigrad {version} with {framework}; it needs no multigrad"


def _write_head(lines: Sequence[str]) -> str:
    body = "\n".join(textwrap.fill(x, WIDEST) for x in lines)
    escaped = body.replace("\\", "\\\\").replace('"""', "'''")
    return f'# SPDX-License-Identifier: {LICENSE}\n"""{escaped}\n"""\n\n'


def write_parts(shaker: Shaker, public: str = "") -> str:
    """Return the imports and definitions of a file; `public` is the name in its `__all__`."""
    names = f'\n\n__all__ = ["{public}"]\n' if public else "\n"
    return f"{shaker.imports.text()}{names}{_join_parts(shaker.parts)}"


def _join_parts(parts: Sequence[str]) -> str:
    """Return definitions with the blank lines between them that formatters leave."""
    text, was_short = "", False
    for part in parts:
        is_short = "def " not in part.split("(")[0] and not part.startswith(("@", "class "))
        between = "" if is_short and was_short else "\n\n"
        text += between + part.rstrip("\n") + "\n"
        was_short = is_short
    return text


def _check(text: str, roots: frozenset[str], title: str) -> None:
    # The last check: a file must not import anything of ours.
    for node in ast.walk(ast.parse(text)):
        imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            imported = [node.module or ""]
        ours = [name for name in imported if name.partition(".")[0] in roots]
        if ours:
            raise UnsupportedOp(f"{title} cannot be ejected: its code imports {ours[0]} itself")


# --- what a file refuses --------------------------------------------------------------------------
AGAIN = (
    "call the function with such an argument and write it out again (in a shell, multigrad eject "
    "takes it as --input 4x6:float32)"
)


def fact_check(
    function: str, argument: str, asked: Mapping[str, Any]
) -> Callable[[Tensor], Tensor]:
    """Return the check of an argument whose number, dtype, rank or shape the code asked for.

    A length that is None may be any.
    """
    shape = asked.get("shape", (None,) * asked.get("ndim", 0))
    has_shape, dtype = not asked.keys().isdisjoint(("shape", "ndim")), asked.get("dtype", "")
    words = [f"dtype {dtype}"] * bool(dtype) + [f"shape {format_lengths(shape)}"] * has_shape
    number, wanted = asked.get("param"), " and ".join(words)

    def check_number(x: Tensor) -> Tensor:
        if x != number:
            raise GradientError(
                f"function {function!r} was written out for {number} as {argument!r}, which its "
                f"code asks about, and got {x}: {AGAIN}"
            )
        return x

    def check_tensor(x: Tensor) -> Tensor:
        is_right = not has_shape or shapes_agree(x.shape, shape)
        if not is_right or (dtype and dtype_name(x.dtype) != dtype):
            raise GradientError(
                f"function {function!r} was written out for {argument!r} of {wanted}, which its "
                f"code asks about, and got {dtype_name(x.dtype)} of shape {x.shape}: {AGAIN}"
            )
        return x

    return check_number if "param" in asked else check_tensor


def fact_checks(
    function: str, asked: Mapping[str, Mapping[str, Any]]
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the checks of a function's arguments, by the names of these."""
    return {name: fact_check(function, name, facts) for name, facts in asked.items()}
