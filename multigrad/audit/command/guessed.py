"""Inputs for a target that nobody has given: by its annotations, by its docstring's shapes, else by
the names of its arguments.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import re
import textwrap
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from multigrad.capture.code.state import held_by, read_state
from multigrad.errors import MultigradError
from multigrad.functions.held import owner_of_method
from multigrad.look.command.convert import NUMBERS, SHAPE, guess_inputs
from multigrad.look.command.inputs import SEED, draw
from multigrad.look.command.named import make_default_inputs
from multigrad.look.originals import arguments_of, find_original
from multigrad.rules.in_force.activation import Activation
from multigrad.rules.model.rule import Rule

INTEGERS = ("target", "targets", "label", "labels", "index", "indices", "ids", "idx")
LINES = ("bias", "gamma", "beta", "running_mean", "running_var")
EACH = SHAPE[-1]
SHAPES = (SHAPE, (EACH, EACH), (EACH,), (2, 4, EACH), (2, 3, 4, EACH))
# What an argument may be besides, one at a time.
OTHERWISE = (None, 2, True, "uniform", "line", "indices")
LENGTHS = (4, 6, 3, 5, 2)  # of axes that have names
MOST_GUESSES, MOST_LENGTHS = 90, 3
AXES = r"\((?P<axes>(?:[A-Z]\w*|\d+)(?:, ?(?:[A-Z]\w*|\d+))*,?)\)"  # (N, C)
ANNOTATIONS, DOCSTRING = "its annotations", "its docstring"
Inputs = list[Any]


def described_inputs(fn: Any) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs that annotations and docstrings say the shapes of, and who says so."""
    parameters = _parameters_of(fn)
    hints = _hints_of(fn)
    annotated = [_annotated(hints.get(p.name, p.annotation)) for p in parameters]
    text = "\n".join(filter(None, (inspect.getdoc(each) for each in (fn, _code_of(fn)))))
    written = [_written(p.name, text) for p in parameters]
    for source, found in ((ANNOTATIONS, annotated), (DOCSTRING, written)):
        if any(isinstance(each, tuple) for each in found):
            sizes = dict[str, int]()
            generator = np.random.default_rng(SEED)
            shapes = [None if each is None else _sized(each[0], sizes) for each in found]
            yield (
                source,
                [
                    _likely(p, SHAPE, generator)
                    if each is None or shape is None
                    else draw(shape, each[1], generator)
                    for p, each, shape in zip(parameters, found, shapes, strict=True)
                ],
            )


def guessed_inputs(fn: Any) -> Iterable[Inputs]:
    """Return what may fit a target, the likeliest first."""
    return itertools.islice(_guesses(fn), MOST_GUESSES)


def _guesses(fn: Any) -> Iterator[Inputs]:
    if isinstance(fn, Activation | Rule) or getattr(fn, "examples", None) is not None:
        with contextlib.suppress(MultigradError):
            yield make_default_inputs(fn, "float32")
    parameters = _parameters_of(fn) or [None]
    flags = _flags_of(_code_of(fn))
    for shape in (*_shapes_beside(fn), *SHAPES):
        generator = np.random.default_rng(SEED)
        likely = _likely_all(parameters, flags, shape, generator)
        yield likely
        if shape == SHAPE:
            yield [*likely, *_defaults_of(fn)]
        if shape == SHAPE and not isinstance(fn, tuple | Rule):
            yield guess_inputs(fn)
        yield [draw(shape, "float32", generator) for _ in parameters]
        for number in (2, 0.5, None):  # what follows the first is often no tensor
            yield [likely[0], *(number for _ in likely[1:])]
    for shape in (SHAPE, SHAPES[-1]):
        yield from _varied(parameters, flags, shape)


def _shapes_beside(fn: Any) -> Iterator[tuple[int, ...]]:
    """Yield shapes that may fit what an object holds, as the lengths of its weights tell."""
    if isinstance(fn, type):
        original = find_original(fn)
        fn = None if original.is_custom else original.call
    if fn is None or owner_of_method(fn) is not fn or inspect.isfunction(fn):
        return
    shapes = (held_by(each).shape for each in read_state(fn).tensors.values())
    lengths = dict.fromkeys(int(n) for shape in shapes for n in reversed(shape))
    for n in itertools.islice(lengths, MOST_LENGTHS):
        yield from ((4, n), (2, n, 8, 8), (2, 4, n), (n,))


def _varied(parameters: Sequence[Any], flags: set[str], shape: tuple[int, ...]) -> Iterator[Inputs]:
    """Yield what is likely with another value for one argument, the last ones first."""
    generator = np.random.default_rng(SEED)
    likely = _likely_all(parameters, flags, shape, generator)
    tensors = {
        "uniform": draw(shape, "uniform", generator),
        "line": draw(shape[-1:], "float32", generator),
        "indices": draw(shape, "int64", generator),
    }
    for other in OTHERWISE:
        for place in reversed(range(len(likely))):
            yield [*likely[:place], tensors.get(str(other), other), *likely[place + 1 :]]


def _likely_all(
    parameters: Sequence[Any], flags: set[str], shape: tuple[int, ...], generator: Any
) -> Inputs:
    return [
        False if getattr(p, "name", "") in flags else _likely(p, shape, generator)
        for p in parameters
    ]


def _flags_of(function: Any) -> set[str]:
    """Return the names of arguments that code uses as a condition, as no tensor is."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return set()
    tests: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            tests.append(node.test)
        elif isinstance(node, ast.BoolOp):
            tests += node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            tests.append(node.operand)
    return {test.id for test in tests if isinstance(test, ast.Name)}


def _parameters_of(fn: Any) -> Sequence[Any]:
    """Return the parameters that a call must fill."""
    fn = fn[0] if isinstance(fn, tuple) else fn
    return [] if isinstance(fn, Rule) else arguments_of(find_original(fn)) or []


def _defaults_of(fn: Any) -> Inputs:
    """Return the defaults of the arguments that a call may leave out: some code wants them said."""
    fn = fn[0] if isinstance(fn, tuple) else fn
    signature = None if isinstance(fn, Rule) else find_original(fn).function.parameters
    given = signature.parameters.values() if signature is not None else ()
    return [p.default for p in given if p.default is not p.empty and p.kind is not p.KEYWORD_ONLY]


def _code_of(fn: Any) -> Any:
    """Return the function with the annotations of a target's arguments."""
    fn = fn[0] if isinstance(fn, tuple) else fn
    return getattr(fn, "forward", None) or getattr(fn, "call", None) or fn


def _hints_of(fn: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(_code_of(fn))
    except Exception:  # a name that only a type checker knows
        return {}


def _annotated(annotation: Any) -> tuple[list[str], str] | None:
    """Return axes and a dtype by an annotation of jaxtyping's kind, as `Float[Tensor, "n 3"]`."""
    axes = getattr(annotation, "dim_str", None)
    if not isinstance(axes, str):
        return None
    names = " ".join(map(str, getattr(annotation, "dtypes", ()) or ("float32",)))
    kind = next((each for each in ("float32", "bool", "int64") if each in names), "float32")
    return axes.split(), kind


def _written(name: str, text: str) -> tuple[list[str], str] | None:
    """Return axes by a docstring's line of an argument, as `x: of shape (N, C)`."""
    found = re.search(
        rf"(?m)^\s*(?:- )?[`*]*{re.escape(name)}\b[^\n(]*(?:\([^)\n]*\))??[^\n(]*{AXES}", text
    )
    if found is None:
        return None
    kind = "int64" if name in INTEGERS else "float32"
    return re.split(r", ?", found["axes"].rstrip(", ")), kind


def _sized(axes: Sequence[str], sizes: dict[str, int]) -> tuple[int, ...]:
    """Return a shape for axes, of which those of one name are as long."""
    return tuple(
        int(axis)
        if axis.isdigit()
        else sizes.setdefault(
            axis.lstrip("*#?").lower() or "...", LENGTHS[len(sizes) % len(LENGTHS)]
        )
        for axis in axes
    )


def _likely(parameter: Any, shape: tuple[int, ...], generator: np.random.Generator) -> Any:
    """Return a value by an argument's annotation, else by its name."""
    annotation = str(getattr(parameter, "annotation", ""))
    if annotation.endswith("?"):  # of a schema
        return None
    for word, number in NUMBERS.items():
        if f"'{word}'" in annotation or annotation == word:
            return number
    name = str(getattr(parameter, "name", ""))
    if name in INTEGERS:
        return draw(shape[:1], "int64", generator)
    if name == "mask" or name.endswith("_mask"):
        return draw(shape, "bool", generator)
    if name in ("dim", "axis"):
        return -1
    if name == "eps" or name.startswith("epsilon"):
        return 1e-5
    if name in LINES:
        return draw(shape[-1:], "float32", generator)
    if name == "weight" and len(shape) > 1:
        return draw((EACH, EACH), "float32", generator)
    return draw(shape, "float32", generator)
