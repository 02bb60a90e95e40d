"""Eject: a pair of graphs as a whole module of one framework.

It is lowered as everything is, by the backend's plain rows, and by those fast ones that round
otherwise, since the bits are to be the same; then all that the code names is written into the file.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import sys
import textwrap
import tokenize
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any, NamedTuple

from ...backend.contract import Backend, Ejection
from ...backend.emitted import Emitted, Made
from ...backend.fast import FastKernels, disabled
from ...errors import UnsupportedOp
from ...graph import ops
from ...lowering.function_graph import FunctionGraph
from ...lowering.lower import lower_graphs
from ...lowering.patterns import apply_patterns
from .tree_shaking import Shaker, literal

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
) -> str:
    """Return the text of a module that computes a pair of graphs and imports nothing of multigrad.

    Args:
        graphs: their name is that of the public function.
        defaults: of the run-time params.
        title: what the module is, for its docstring.

    Raises:
        UnsupportedOp: it needs something that no file can hold.
    """
    ejection = backend.ejection
    if ejection is None:
        raise UnsupportedOp(
            f"backend {backend.name!r} does not define standalone files "
            "(Backend.ejection); eject it for another backend, or save it with xg.save"
        )
    if _draws_parts(graphs, backend):
        raise UnsupportedOp(
            f"{title} draws each shard's part of an array, which a standalone file for "
            f"{backend.name} cannot do: eject the rule without over= or axis_name=, or save it "
            "with xg.save"
        )
    lowered = lower_graphs(graphs, _ejecting(backend, ejection, graphs), defaults, checks=True)
    namespace, emitted = lowered.native, lowered.emitted
    assert emitted is not None
    # Names that the code binds itself mean something in the file.
    taken = _words(lowered.source) - set(namespace) | {emitted.names.identifier}
    shaker = Shaker(ejection.modules, ejection.forms, _roots(ejection), taken)
    try:
        code = shaker.add(lowered.source, namespace)
    except UnsupportedOp as error:
        raise UnsupportedOp(
            f"{title} cannot be ejected for {backend.name}: {error}. Use it with multigrad, or "
            "save it with xg.save"
        ) from error
    shaker.parts.append(code)
    head = _head(emitted, backend, ejection, title)
    text = f"{head}{write_parts(shaker, emitted.names.identifier)}"
    _check(text, _roots(ejection), title)
    return text


def eject_operators(operators: Mapping[str, FunctionGraph], backend: Backend) -> str:
    """Return a module that registers operators, by name, which programs of a framework call.

    Raises:
        UnsupportedOp: the framework has none, or one needs something that no file can hold.
    """
    ejection = backend.ejection
    if ejection is None or ejection.operator is None:
        raise UnsupportedOp(f"programs of {backend.name} call no operators: export a .pt2")
    shaker = Shaker(ejection.modules, ejection.forms, _roots(ejection), set())
    for name, graphs in operators.items():
        own = replace(ejection, render=ejection.operator(name))
        named = replace(graphs, name=name)
        lowered = lower_graphs(named, _ejecting(backend, own, named), style="plain")
        shaker.taken |= _words(lowered.source) - set(lowered.native)
        shaker.parts.append(shaker.add(lowered.source, lowered.native))
    title = f"The operators of an exported program: {', '.join(operators)}"
    how = f"{_made_with(backend)}. Import it, then load the program."
    head = _write_head([f"{title}.", "", how])
    text = f"{head}{write_parts(shaker)}"
    _check(text, _roots(ejection), title)
    return text


def _draws_parts(graphs: FunctionGraph, backend: Backend) -> bool:
    # A draw takes a key of its place, and the framework knows places.
    nodes = (*graphs.forward.nodes, *graphs.backward.nodes)
    placed = any(node.op is ops.PLACE_KEY for node in nodes)
    return placed and backend.kernels.rows[ops.PLACE_KEY] is not ops.PLACE_KEY.numpy


def _ejecting(backend: Backend, ejection: Ejection, graphs: FunctionGraph) -> Backend:
    # Its namespace is kept instead of compiled: the shaker writes it out.

    def finish(namespace: dict[str, Any], emitted: Emitted) -> dict[str, Any]:
        return namespace

    def call(native: Any, emitted: Emitted) -> Any:
        return native

    def later(make: Any) -> Any:
        return None if make is None else lambda message: Made(make, (message,))

    # A name of a module is no param's: those are renamed that are called like one.
    names = {**ejection.modules, **backend.autodiff.namespace, **ejection.namespace}
    names["draw_key"] = backend.draws.draw_key
    names.update(dict.fromkeys(ejection.words))
    autodiff = replace(
        backend.autodiff,
        render=ejection.render,
        finish=finish,
        call=call,
        namespace={name: value for name, value in names.items() if "." not in name},
        forbid_derivative=later(backend.autodiff.forbid_derivative),
        refuse_gradient=later(backend.autodiff.refuse_gradient),
    )
    fast = _rounding(backend.kernels.fast, graphs)
    kernels = replace(backend.kernels, fast=fast, bits=None)  # a file keeps bools
    return replace(backend, kernels=kernels, autodiff=autodiff)


def _rounding(fast: FastKernels, graphs: FunctionGraph) -> FastKernels:
    # Only the fast rows that change bits of these graphs are kept: others need no place in a file.
    rows = tuple(row for row in fast.patterns if row.rounds)
    only = FastKernels(patterns=rows, kernels=fast.kernels)
    for graph in (graphs.forward, graphs.backward):
        if apply_patterns(graph, only, disabled()).outputs != graph.outputs:
            return only
    return FastKernels()


def _words(code: str) -> set[str]:
    words: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        for field in ("id", "arg", "name"):
            word = getattr(node, field, None)
            if isinstance(word, str):
                words.add(word)
    return words


def _roots(ejection: Ejection) -> frozenset[str]:
    # The packages that a file must not import: ours, and the backend's.
    module: types.FunctionType = ejection.render  # type: ignore[assignment]
    return frozenset({__name__.partition(".")[0], module.__module__.partition(".")[0]})


def _head(emitted: Emitted, backend: Backend, ejection: Ejection, title: str) -> str:
    arguments = [*emitted.names.inputs]
    known = emitted.names.defaults
    arguments += [
        f"{name}={literal(known[name])}" if name in known else name for name in emitted.names.params
    ]
    listed = ", ".join(arguments)
    calls = [f"    {each.format(emitted.names.identifier, listed)}" for each in ejection.calls]
    lines = [f"{title}.", "", f"{_made_with(backend)}.", "", "Example:", *calls]
    if "key" in emitted.names.params:
        lines += ["", KEYS]
    return _write_head(lines)


def _made_with(backend: Backend) -> str:
    framework = sys.modules[backend.name]
    made = f"Made by multigrad {_version()} with {backend.name} {framework.__version__}"
    return f"{made}; it needs no multigrad"


def _write_head(lines: Sequence[str]) -> str:
    body = "\n".join(textwrap.fill(x, WIDEST) for x in lines)
    escaped = body.replace("\\", "\\\\").replace('"""', "'''")
    return f'# SPDX-License-Identifier: {LICENSE}\n"""{escaped}\n"""\n\n'


def _version() -> str:
    try:
        return metadata.version("multigrad-rules")
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "0"


def _imports(imports: set[str]) -> str:
    # Two blocks, Python's own modules first, with one statement for each module.
    names: dict[str, list[str]] = {}
    for line in sorted(imports):
        head, _, name = line.partition(" import ")
        names.setdefault(head if name else line, []).extend([name] if name else [])
    blocks: tuple[list[str], list[str]] = [], []
    for head in sorted(names, key=lambda head: (head.startswith("from"), head)):
        root = head.split()[1].partition(".")[0]
        line = f"{head} import {', '.join(names[head])}" if names[head] else head
        blocks[root not in sys.stdlib_module_names].append(line)
    return "\n\n".join("\n".join(block) for block in blocks if block)


def write_parts(shaker: Shaker, public: str = "") -> str:
    parts = _joined([break_lines(part) for part in shaker.parts])
    names = f'\n\n__all__ = ["{public}"]\n' if public else "\n"
    return f"{_imports(shaker.imports)}{names}{parts}"


def _joined(parts: list[str]) -> str:
    # The blank lines between definitions are those that formatters leave.
    text, before = "", ""
    for part in parts:
        small = "def " not in part.split("(")[0] and not part.startswith(("@", "class "))
        gap = "\n" if small and before == "small" else "\n\n"
        text += f"{gap if not (small and before == 'small') else ''}{part}"
        before = "small" if small else "large"
    return text


def _check(text: str, roots: frozenset[str], title: str) -> None:
    # The last check: a file must not import anything of ours.
    for node in ast.walk(ast.parse(text)):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            named = [node.module or ""]
        ours = [name for name in named if name.partition(".")[0] in roots]
        if ours:
            raise UnsupportedOp(f"{title} cannot be ejected: its code imports {ours[0]} itself")


# --- long lines broken at their brackets ----------------------------------------------------------
WIDEST = 100
BLOCKS = ("if", "elif", "while")
# The beginnings of statements whose expression may get parentheses.
HEAD = re.compile(r"(return|if|elif|while) |[\w., ()]+ [-+*/]?= ")
SIGNATURE = re.compile(r"^( *def \w+\()\n(.*?)\n *(\):)$", re.MULTILINE | re.DOTALL)
OPENING, CLOSING = "([{", ")]}"
# Where an expression without a bracket to break at is broken, weakest first.
OPERATORS = (("if", "else"), ("or",), ("and",), ("|",), ("^",), ("&",), ("+", "-"), ("*", "/", "@"))
# After these a sign belongs to the number that follows.
UNARY_AFTER = frozenset({*"([{,=*/+-", "**", "if", "else", "and", "or", "not"})


class _Token(NamedTuple):
    text: str
    start: int
    depth: int  # of brackets, of which an opening and a closing one are outside


def break_lines(text: str) -> str:
    """Return code whose lines are broken where they are too long and can be."""
    text = _double_quoted(text)
    lines: list[str] = []
    for line in SIGNATURE.sub(_joined_signature, text).splitlines():
        lines.extend(_broken(line))
    return "".join(f"{line}\n" for line in lines)


def _double_quoted(text: str) -> str:
    # A string gets double quotes unless it contains a quote or a backslash.
    lines, within = text.splitlines(keepends=True), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind, inner = tokenize.tok_name[token.type], token.string[1:-1]
        # From Python 3.12 on a string within an f-string is a token, whose quotes differ from its.
        within += (kind == "FSTRING_START") - (kind == "FSTRING_END")
        if within or kind != "STRING" or token.string != f"'{inner}'":
            continue
        if {'"', "'", "\\"}.isdisjoint(inner):
            (row, start), (_, end) = token.start, token.end
            lines[row - 1] = f'{lines[row - 1][:start]}"{inner}"{lines[row - 1][end:]}'
    return "".join(lines)


def _joined_signature(match: re.Match[str]) -> str:
    # Without its annotations, a parameter list may fit on one line.
    head, inside, tail = match.groups()
    words = " ".join(inside.split()).rstrip(",")
    line = f"{head}{words}{tail}"
    return line if len(line) <= WIDEST and "#" not in inside else match.group()


def _broken(line: str, inner: bool = False) -> list[str]:
    # `inner`: the line is between the brackets of other lines, so it may be broken at operators.
    if len(line) <= WIDEST or line.lstrip().startswith(("#", '"""')):
        return [line]
    tokens = _tokens(line.strip())
    if tokens is None:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    if inner:
        comma = "," if line.endswith(",") else ""
        operands = _divided(line.strip().removesuffix(","))
        if operands:
            operands[-1] += comma
            return [each for operand in operands for each in _broken(f"{indent}{operand}", True)]
    return _split(line.strip(), tokens, indent) or [line]


def _tokens(line: str) -> list[_Token] | None:
    # None means that a bracket is not closed within the line, or that it has a comment.
    tokens: list[_Token] = []
    depth = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(line).readline):
            if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.NL):
                break
            if token.type == tokenize.COMMENT:
                return None
            depth -= token.string in CLOSING and token.type == tokenize.OP
            if depth < 0:
                return None
            tokens.append(_Token(token.string, token.start[1], depth))
            depth += token.string in OPENING and token.type == tokenize.OP
    except (tokenize.TokenError, SyntaxError):
        return tokens if depth == 0 and tokens else None
    return tokens if depth == 0 else None


def _split(line: str, tokens: list[_Token], indent: str) -> list[str]:
    # The line is broken at its last bracket that holds something.
    match = HEAD.match(line)
    value = line[match.end() :] if match else ""
    if match and not _fits_before_brackets(value):
        colon = ":" if match.group().split()[0] in BLOCKS and value.endswith(":") else ""
        inner = _inside(value.removesuffix(colon) if colon else value, f"{indent}    ", "")
        return [f"{indent}{match.group()}(", *inner, f"{indent}){colon}"]
    outer = [t for t in tokens if t.depth == 0 and t.text in (*OPENING, *CLOSING)]
    pairs = [*zip(outer[::2], outer[1::2], strict=True)]
    for opening, closing in reversed(pairs):
        inside = line[opening.start + 1 : closing.start]
        if not inside.strip():
            continue
        head, tail = line[: opening.start + 1], line[closing.start :]
        if len(indent) + max(len(head), len(tail)) > WIDEST and len(pairs) > 1:
            continue
        return [f"{indent}{head}", *_inside(inside, f"{indent}    ", head), f"{indent}{tail}"]
    return []


def _fits_before_brackets(value: str) -> bool:
    # A tuple, a conditional or a sum of several terms gets parentheses instead.
    tokens = _tokens(value.removesuffix(":"))
    if tokens is None:
        return True
    words = [t.text for t in tokens if t.depth == 0]
    weak = sum(word in ("or", "and", "+", "-") for word in words)
    return "(" in words and weak < 2 and not {",", "if"} & {*words}


def _inside(text: str, indent: str, head: str) -> list[str]:
    # The text stays on one line if it fits; else each of its parts gets a line.
    text = text.strip()
    is_listed = text.endswith(",")
    if len(indent) + len(text) <= WIDEST and not is_listed:
        return [f"{indent}{text}"]
    parts = _parts(text)
    if len(parts) == 1 and not is_listed:
        return _broken(f"{indent}{text}", True)
    comma = "" if any(part.startswith("*") for part in parts) and head.startswith("def") else ","
    lines: list[str] = []
    for part in parts[:-1]:
        lines.extend(_broken(f"{indent}{part},", True))
    return [*lines, *_broken(f"{indent}{parts[-1]}{comma}", True)]


def _parts(text: str) -> list[str]:
    # Only commas outside all brackets divide the text.
    tokens = _tokens(text)
    if tokens is None:
        return [text]
    places = [t.start for t in tokens if t.text == "," and t.depth == 0]
    starts, ends = [0, *(place + 1 for place in places)], [*places, len(text)]
    parts = [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
    return [part for part in parts if part]


def _divided(text: str) -> list[str]:
    # The weakest operators divide the expression; without any, the list is empty.
    tokens = _tokens(text) or []
    for words in OPERATORS:
        places = [
            t.start
            for before, t in itertools.pairwise(tokens)
            if t.depth == 0 and t.text in words and before.text not in UNARY_AFTER
        ]
        if places:
            starts, ends = [0, *places], [*places, len(text)]
            return [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
    return []
