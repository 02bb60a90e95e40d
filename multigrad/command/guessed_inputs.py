"""Inputs for targets that come without any, guessed from their code.

From annotations and docstrings that state shapes, from weights' shapes, from the names of arguments
and what code does with them: many, the likeliest first. A command takes the first that run.
Tested by tests/audit/test_audit_command.py and test_targets.py.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import itertools
import pkgutil
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.audit.audit import open_up
from multigrad.audit.trial import trial_of
from multigrad.core.ir.op import FLOATS
from multigrad.core.ops.numerics import as_numpy_dtype, ignoring_warnings
from multigrad.core.rules.activation import Activation
from multigrad.core.rules.rule import Rule
from multigrad.engine.capture.user_code.object_state import held_by, read_state
from multigrad.engine.functions.function import Function
from multigrad.engine.functions.object_function import owner_of_method
from multigrad.engine.functions.proof.line_tracing import TooLong
from multigrad.engine.ops.loops import Endless
from multigrad.errors import MultigradError, suggest
from multigrad.look.convert import brief, run_where_it_ends
from multigrad.look.subject import (
    SHAPE,
    Subject,
    arguments_of,
    find_original,
    in_dtype,
    make_inputs,
    origin_of,
    subject_of,
)

NUMBER = 2  # a guessed length or factor
# What a tensor that replaces a guessed number is drawn from: near that number.
SCALAR_KINDS: Mapping[type, str] = {int: "1..3", float: "uniform"}
# Guesses for arguments that take no tensor: by annotation, else by name.
NUMBERS: Mapping[str, Any] = {"bool": True, "int": NUMBER, "float": 0.5, "str": "mean"}
AXES = ("axis", "axes", "dim", "dims")
LOWER = {"lo", "low", "lower", "min", "minimum", "qmin", "qn", "vmin"}  # words of a bound's name
INTEGERS = ("target", "targets", "label", "labels", "index", "indices", "ids", "idx")
# Words of a name that stand for one positive number, unless the argument is the first.
SCALARS = {"temperature", "tau", "alpha", "scale", "sigma", "slope", "width"}
# Bounds of a quantizer's grid, of 3 bits, and a step with which normal numbers cross it.
GRID = {"qn": -4, "qmin": -4, "q_min": -4, "quant_min": -4}
GRID |= {"qp": 3, "qmax": 3, "q_max": 3, "quant_max": 3}
STEP = 0.3
PER_CHANNEL = ("bias", "gamma", "beta", "running_mean", "running_var")
CHANNELS = SHAPE[-1]
SHAPES = (SHAPE, (CHANNELS, CHANNELS), (CHANNELS,), (2, 4, CHANNELS), (2, 3, 4, CHANNELS))
# Other values for an argument, tried one argument at a time.
ALTERNATIVE_VALUES = (None, 2, True, "scalar", "uniform", "line", "indices")
LENGTHS = (4, 6, 3, 5, 2)  # of axes that have names
MOST_GUESSES, MOST_LENGTHS = 90, 3
AXES_IN_TEXT = r"\((?P<axes>(?:[A-Z]\w*|\d+)(?:, ?(?:[A-Z]\w*|\d+))*,?)\)"  # (N, C)
INPUTS_IN_CODE = "GRADIENT_INPUTS"
ANNOTATIONS, DOCSTRING, GUESSED = "its annotations", "its docstring", "guessed"
Inputs = list[Any]


def choose_inputs(
    what: str,
    fn: Any,
    words: Sequence[str] | None,
    stated: Any,
    run: Callable[[Any, Sequence[Any]], object],
    *,
    dtype: str = "float32",
) -> tuple[str, list[Any]]:
    """Return where inputs are from, and the inputs: what words say, else what the module states,
    else the first that run.

    Args:
        words: None: the command has no option for them.
        stated: by the module; None: it states none.
        run: raises an error for inputs that do not fit; given ones are not tried.
        dtype: of the words that name none.
    """
    if words:
        return "--input", read_inputs(words, dtype)
    if stated is not None:
        return INPUTS_IN_CODE, [*stated]
    guesses = ((GUESSED, inputs) for inputs in guessed_inputs(fn))
    failure: Exception | None = None
    for source, inputs in itertools.chain(described_inputs(fn), guesses):
        try:
            with ignoring_warnings():  # what it says of guesses is no news
                run(fn, inputs)
                inputs = _with_scalars(fn, inputs, run) if source == GUESSED else inputs
        except Exception as error:  # of the user's code
            # The problem with the surest inputs is the one to report.
            failure = failure or error
            if isinstance(error, Endless | TooLong):
                break
        else:
            if source == GUESSED:
                source = f"{GUESSED}: {_as_words(inputs)}; give others so, or by {INPUTS_IN_CODE}"
            return source, [*inputs]
    problem = "nobody knows its arguments" if failure is None else brief(failure).rstrip(".")
    message = f"no inputs that were guessed fit {what}: {problem}; {inputs_to_type(fn, (), words)}"
    raise MultigradError(message) from failure


def _with_scalars(fn: Any, inputs: Inputs, run: Callable[[Any, Sequence[Any]], object]) -> Inputs:
    """Return guessed inputs with scalar tensors for the numbers among them that have a gradient,
    which nothing would compare; a number stays where the code tells that it is one.
    """
    parameters, generator = _parameters_of(fn), np.random.default_rng(SEED)
    likely = _likely_inputs(parameters, _stated_of(fn, parameters), SHAPE, generator)
    for n, (number, guess) in enumerate(zip(inputs, likely, strict=False)):
        if type(number) not in SCALAR_KINDS or not isinstance(guess, np.ndarray):
            continue
        scalar = draw((), SCALAR_KINDS[type(number)], generator)
        with contextlib.suppress(Exception):  # of the user's code, which takes no tensor there
            if n in trial_of(*open_up(fn, inputs), None).numbers_with_gradient:
                changed = [*inputs[:n], scalar, *inputs[n + 1 :]]
                run(fn, changed)
                inputs = changed
    return inputs


def described_inputs(fn: Any) -> Iterator[tuple[str, Inputs]]:
    """Yield where shapes are stated, annotations or docstring, and inputs of these shapes."""
    parameters = _parameters_of(fn)
    hints: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # a name that only a type checker knows
        hints = typing.get_type_hints(_code_of(fn))
    annotated_axes = [_axes_annotated(hints.get(p.name, p.annotation)) for p in parameters]
    text = "\n".join(filter(None, (inspect.getdoc(each) for each in (fn, _code_of(fn)))))
    docstring_axes = [_axes_in_docstring(p.name, text) for p in parameters]
    for source, stated_axes in ((ANNOTATIONS, annotated_axes), (DOCSTRING, docstring_axes)):
        if any(stated_axes):
            # Shared by all arguments: axes of one name have one length.
            sizes = dict[str, int]()
            generator = np.random.default_rng(SEED)
            inputs = [
                draw(_lengths_of(each[0], sizes), each[1], generator)
                if each is not None
                else _likely(p, n, SHAPE, generator)
                for n, (p, each) in enumerate(zip(parameters, stated_axes, strict=True))
            ]
            yield source, inputs


def guessed_inputs(fn: Any) -> Iterable[Inputs]:
    """Return inputs that may fit a target, the likeliest first."""
    return itertools.islice(_guesses(fn), MOST_GUESSES)


def is_known(obj: Any) -> bool:
    """Return whether an object of multigrad knows with what it is called."""
    if isinstance(obj, Function):
        return bool(obj.captures.variants) or obj.document is not None or obj.examples is not None
    return isinstance(obj, Activation | Rule)


def _guesses(fn: Any) -> Iterator[Inputs]:
    if is_known(fn):
        with contextlib.suppress(MultigradError):
            yield in_dtype(make_inputs(subject_of(fn)), "float32")
    parameters = _parameters_of(fn) or [None]
    flags = _stated_of(fn, parameters)
    names = [str(getattr(p, "name", "")).lower() for p in parameters]
    for shape in (*_shapes_by_weights(fn), *SHAPES):
        generator = np.random.default_rng(SEED)
        likely = _likely_inputs(parameters, flags, shape, generator)
        if not GRID.keys().isdisjoint(names):
            step = np.asarray(STEP, np.float32)
            yield [likely[0], *(step if _is_float32(x) else x for x in likely[1:])]
        yield likely
        if shape == SHAPE:
            # Some code requires that its defaults are passed.
            yield [*likely, *_defaults_of(fn)]
            # A scalar may be a tensor although it has no gradient.
            yield [
                np.asarray(x, np.float32) if type(x) is float and _is_scalar(name) else x
                for name, x in zip(names, likely, strict=True)
            ]
        yield [draw(shape, "float32", generator) for _ in parameters]
        for number in (2, 0.5, None):  # what follows the first is often no tensor
            yield [likely[0], *(number for _ in likely[1:])]
    for shape in (SHAPE, SHAPES[-1]):
        yield from _varied(parameters, flags, shape)


def _shapes_by_weights(fn: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(fn, type):
        original = find_original(fn)
        fn = None if original.is_custom else original.call
    if fn is None or owner_of_method(fn) is not fn or inspect.isfunction(fn):
        return  # it has no weights
    # The lengths of an object's weights hint at its inputs' shapes; the last axes come first.
    shapes = (held_by(each).shape for each in read_state(fn).tensors.values())
    lengths = dict.fromkeys(int(n) for shape in shapes for n in reversed(shape))
    for n in itertools.islice(lengths, MOST_LENGTHS):
        yield from ((4, n), (2, n, 8, 8), (2, 4, n), (n,))


def _varied(
    parameters: Sequence[Any], flags: Mapping[str, Any], shape: tuple[int, ...]
) -> Iterator[Inputs]:
    generator = np.random.default_rng(SEED)
    likely = _likely_inputs(parameters, flags, shape, generator)
    tensors = {
        # Positive, as a bound, a temperature or a step is.
        "scalar": np.asarray(np.abs(draw((), "float32", generator))),
        "uniform": draw(shape, "uniform", generator),
        "line": draw(shape[-1:], "float32", generator),
        "indices": draw(shape, "int64", generator),
    }
    for value in ALTERNATIVE_VALUES:
        # The last arguments first: they are the likeliest not to be tensors.
        for place in reversed(range(len(likely))):
            yield [*likely[:place], tensors.get(str(value), value), *likely[place + 1 :]]


def _likely_inputs(
    parameters: Sequence[Any], flags: Mapping[str, Any], shape: tuple[int, ...], generator: Any
) -> Inputs:
    guesses = [_likely(p, n, shape, generator) for n, p in enumerate(parameters)]
    names = [getattr(p, "name", "") for p in parameters]
    # A constant may be named as what is no float tensor: an axis, labels, a mask.
    return [
        flags[name]
        if name in flags and (_is_float32(guess) or flags[name] is False or name.lower() in GRID)
        else guess
        for name, guess in zip(names, guesses, strict=True)
    ]


def _is_float32(guess: Any) -> bool:
    return getattr(guess, "dtype", None) == np.float32


def _is_scalar(name: str) -> bool:
    return not SCALARS.isdisjoint(name.lower().split("_"))


def _stated_of(fn: Any, parameters: Sequence[Any]) -> dict[str, Any]:
    return {**_numbers_of(fn, parameters), **_flags_of(_code_of(fn))}


def _numbers_of(fn: Any, parameters: Sequence[Any]) -> dict[str, Any]:
    """Return a number for each argument that takes no tensor: a framework fixes it, code fills a
    tensor with it, a class's backward returns a written None for it, or its name is in GRID.
    """
    imported = None if isinstance(fn, Rule) else _original_of(fn).function.recipe.imported
    code = origin_of(fn) or fn
    forward, backward = map(_nodes_of, (_code_of(code), getattr(code, "backward", None)))
    parameter_names = [str(getattr(p, "name", "")) for p in parameters]
    calls = (n for n in (*forward, *backward) if isinstance(n, ast.Call))
    fills = (n.args[1:2] for n in calls if getattr(n.func, "attr", "") in ("full", "full_like"))
    fillers = {getattr(getattr(x, "operand", x), "id", "") for each in fills for x in each}
    takers = fillers.union(_without_gradient(parameter_names, backward))
    signs = (n for n in forward if isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub))
    negated = {getattr(each.operand, "id", "") for each in signs}
    numbers: dict[str, Any] = dict.fromkeys(getattr(imported, "fixed_names", ()), NUMBER)
    # Two bounds that were equal would make a clamp flat, which hides its gradient's faults.
    for n, name in enumerate(each for each in parameter_names if each in takers):
        is_lower = bool(LOWER.intersection(name.lower().split("_")))
        # Code that negates a lower bound takes its size.
        factor = (1 if name in negated else -1) if is_lower else n + 1
        numbers[name] = NUMBERS["float"] * factor
    for name in parameter_names:
        if (bound := GRID.get(name.lower())) is not None:
            numbers[name] = abs(bound) if name in negated else bound
    return numbers


def _without_gradient(names: Sequence[str], backward: Sequence[ast.AST]) -> Iterator[str]:
    returns = [node.value for node in backward if isinstance(node, ast.Return)]
    tuples = [each.elts for each in returns if isinstance(each, ast.Tuple)]
    # What is unpacked leaves open which gradient stands where.
    is_open = any(isinstance(each, ast.Starred) for elements in tuples for each in elements)
    if tuples and len(tuples) == len(returns) and not is_open:
        for name, *elements in zip(names, *tuples, strict=False):
            if all(isinstance(each, ast.Constant) and each.value is None for each in elements):
                yield name


def _nodes_of(function: Any) -> list[ast.AST]:
    try:
        return [*ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))]
    except (OSError, TypeError, SyntaxError):
        return []


def _flags_of(function: Any) -> dict[str, Any]:
    # An argument that is used as a condition is a flag: tensors have no truth value.
    conditions: list[ast.expr] = []
    for node in _nodes_of(function):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            conditions.append(node.test)
        elif isinstance(node, ast.BoolOp):
            conditions += node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            conditions.append(node.operand)
    return {each.id: False for each in conditions if isinstance(each, ast.Name)}


def _forward_of(fn: Any) -> Any:
    return fn[0] if isinstance(fn, tuple) else fn


def _original_of(fn: Any) -> Subject:
    return find_original(_forward_of(fn))


def _parameters_of(fn: Any) -> Sequence[Any]:
    return [] if isinstance(fn, Rule) else arguments_of(_original_of(fn)) or []


def _defaults_of(fn: Any) -> Inputs:
    signature = None if isinstance(fn, Rule) else _original_of(fn).function.parameters
    parameters = signature.parameters.values() if signature is not None else ()
    positional = (p for p in parameters if p.kind is not p.KEYWORD_ONLY)
    return [p.default for p in positional if p.default is not p.empty]


def _code_of(fn: Any) -> Any:
    fn = _forward_of(fn)
    return getattr(fn, "forward", None) or getattr(fn, "call", None) or fn


def _axes_annotated(annotation: Any) -> tuple[list[str], str] | None:
    """Return the axes that an annotation states and a kind for `draw`; None: it states none."""
    # jaxtyping keeps the axes of `Float[Tensor, "n 3"]` in `dim_str`.
    axes = getattr(annotation, "dim_str", None)
    if not isinstance(axes, str):
        return None
    names = " ".join(map(str, getattr(annotation, "dtypes", ()) or ("float32",)))
    kind = next((each for each in ("float32", "bool", "int64") if each in names), "float32")
    return axes.split(), kind


def _axes_in_docstring(name: str, text: str) -> tuple[list[str], str] | None:
    # Matches a docstring's line of an argument, such as `x: of shape (N, C)`.
    match = re.search(
        rf"(?m)^\s*(?:- )?[`*]*{re.escape(name)}\b[^\n(]*(?:\([^)\n]*\))??[^\n(]*{AXES_IN_TEXT}",
        text,
    )
    if match is None:
        return None
    kind = "int64" if name in INTEGERS else "float32"
    return re.split(r", ?", match["axes"].rstrip(", ")), kind


def _lengths_of(axes: Sequence[str], sizes: dict[str, int]) -> tuple[int, ...]:
    lengths = []
    for axis in axes:
        name, length = axis.lstrip("*#?").lower() or "...", LENGTHS[len(sizes) % len(LENGTHS)]
        lengths.append(int(axis) if axis.isdigit() else sizes.setdefault(name, length))
    return tuple(lengths)


def _likely(
    parameter: Any, place: int, shape: tuple[int, ...], generator: np.random.Generator
) -> Any:
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
    if name in AXES:
        return -1
    if name == "eps" or name.startswith("epsilon"):
        return 1e-5
    if place and _is_scalar(name):
        return draw((), "uniform", generator)
    if name in PER_CHANNEL:
        return draw(shape[-1:], "float32", generator)
    if name == "weight" and len(shape) > 1:
        return draw((CHANNELS, CHANNELS), "float32", generator)
    return draw(shape, "float32", generator)


def inputs_to_type(
    obj: Any, guesses: Iterable[Inputs] | None = None, words: Sequence[str] | None = ()
) -> str:
    """Return the names of the arguments that need inputs, and options for the first guess that
    runs; without one, the forms of an input, or, if words are None, of what the module states.
    """
    names = ", ".join(p.name for p in _parameters_of(obj)) or "x"
    for inputs in guessed_inputs(obj) if guesses is None else guesses:
        with contextlib.suppress(Exception):  # of the user's code
            run_where_it_ends(obj, inputs)
            return f"give what fits {names}: {_as_words(inputs)}"
    in_module = f"in the module: {INPUTS_IN_CODE} = {{NAME: [...]}}"
    if words is None:
        return f"state what fits {names} {in_module}"
    forms = f"an --input for each: {FORMS}; others, such as a dict, {in_module}"
    return f"give what fits {names}, {forms}"


def _as_words(inputs: Inputs) -> str:
    return " ".join(f"--input {as_word(x)}" for x in inputs)


def as_word(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)
    kind = value.dtype.name
    if not value.ndim and kind == "float32" and 1 < value < 3:
        kind = SCALAR_KINDS[int]
    if value.size and kind == "float32" and value.min() > 0 and value.max() < 1:
        kind = "uniform"
    shape = "x".join(map(str, value.shape)) or "scalar"
    return shape if kind == "float32" and value.ndim != 1 else f"{shape}:{kind}"


# --- what a command line names: modules, files, objects in them, params and inputs ----------------
SEED = 20


def split_name(what: str) -> tuple[str, str]:
    """Return the file or module before a colon and the name behind it; "" if there is no colon."""
    if what.endswith((".py", ".json")) or ":" not in what:
        return what, ""
    # An operator of torch is module:space::name; a path on Windows has a colon of its own.
    first, double_colon, last = what.partition("::")
    module, _, name = first.rpartition(":")
    return module, f"{name}{double_colon}{last}"


def with_params(found: Any, words: Sequence[str]) -> Any:
    """Return a rule with params set by words such as width=2.0."""
    if not words:
        return found
    if not isinstance(found, xg.Rule):
        raise MultigradError(
            f"{found!r} is not a rule, so it takes no --param: its arguments are --input, one for "
            "each in order"
        )
    values = _split_params(words, "width=2.0")
    return found.with_params(**{name: read_value(value) for name, value in values.items()})


def read_params(words: Sequence[str]) -> dict[str, Any]:
    params = {}
    for name, values in _split_params(words, "width=0.5,1,2").items():
        parts = [read_value(value.strip()) for value in values.split(",")]
        params[name] = parts if len(parts) > 1 else parts[0]
    return params


def _split_params(words: Sequence[str], example: str) -> dict[str, str]:
    params = {}
    for word in words:
        name, _, value = word.partition("=")
        if not name.isidentifier() or not value:
            raise MultigradError(f"{word!r} is no param with its value; write it as {example}")
        params[name] = value
    return params


def read_value(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word


def import_named(name: str) -> types.ModuleType:
    """Import a module, which may be in the current folder, or a file."""
    path = Path(name)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise MultigradError(f"there is no file {name}")
    folder = str(path.parent) if is_file else ""  # as python -m has it: the current folder
    sys.path.insert(0, folder)
    try:
        return _import_file(path) if is_file else importlib.import_module(name)
    except Exception as error:
        if is_file or not isinstance(error, ModuleNotFoundError):
            message = f"{type(error).__name__}: {error}"
            raise MultigradError(f"{name} cannot be imported: {message}") from error
        # The module itself was found, and a module that it imports was not.
        if not f"{name}.".startswith(f"{error.name}."):
            raise MultigradError(f"{name} needs {error.name}, which is not installed") from error
        parent, _, last_name = name.rpartition(".")
        hint = ""
        # The missing module's siblings: their names are the likely ones.
        with suppress(AttributeError, ImportError):
            path_of_parent = importlib.import_module(parent).__path__ if parent else None
            hint = suggest(last_name, (info.name for info in pkgutil.iter_modules(path_of_parent)))
        raise MultigradError(
            f"there is no module {name!r} here; name it as in an import{hint}"
        ) from error
    finally:
        sys.path.remove(folder)


def _import_file(path: Path) -> types.ModuleType:
    if getattr(sys.modules.get(path.stem), "__file__", "") == str(path.absolute()):
        return sys.modules[path.stem]
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # of any .py file
    # In sys.modules before it runs, as importlib does: dataclasses look themselves up there.
    module = sys.modules[path.stem] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def find_in(module: types.ModuleType, name: str) -> Any:
    obj: Any = module
    for part in name.split("."):
        if not hasattr(obj, part):
            owner = module.__name__ if obj is module else f"{module.__name__}:{name}"
            raise MultigradError(f"{owner} has no {part!r}{suggest(part, vars(obj))}")
        obj = getattr(obj, part)
    return obj


FORMS = (
    "4x6 (a float32 tensor), 4x6:int64, 6:float32 (one axis), scalar or scalar:1..2 (none), "
    "4x6:uniform (within 0 and 1), 4x6:1..5 (within 1 and 5), 0.5 (a number, of which no gradient "
    "is compared), 3, True, None, 'text', or a tuple of plain values"
)
GIVEN = re.compile(r"(?P<shape>\d+(x\d+)+|\d+(?=:)|scalar)(:(?P<kind>[\w.-]+))?")
BOUNDS = re.compile(r"(-?\d+\.?\d*)\.\.(-?\d+\.?\d*)")
WHOLE = ("int8", "uint8", "int16", "int32", "int64")
MOST = 3  # integers are below: small enough to be indices


def read_inputs(words: Sequence[str], dtype: str = "float32") -> list[Any]:
    """Return arrays and plain values; an array without a dtype of its own is of the given one."""
    generator = np.random.default_rng(SEED)
    return [read_input(word, generator, dtype) for word in words]


def read_input(word: str, generator: np.random.Generator, dtype: str = "float32") -> Any:
    match = GIVEN.fullmatch(word.strip())
    if match is None:
        try:
            return ast.literal_eval(word.strip())
        except (SyntaxError, ValueError) as error:
            raise MultigradError(f"--input {word!r} is not a value; write {FORMS}") from error
    shape = () if match["shape"] == "scalar" else tuple(map(int, match["shape"].split("x")))
    return draw(shape, match["kind"] or dtype, generator)


def number_hints(words: Sequence[str]) -> list[str]:
    """Return hints for a call that fails: which of the words are read as numbers, not shapes."""
    return [f"{n} is a number, {n}:float32 is a tensor" for n in words if n.isdigit()]


def draw(shape: tuple[int, ...], kind: str, generator: np.random.Generator) -> Any:
    """Return an array of normal numbers, numbers within bounds, small integers or bools."""
    bounds = BOUNDS.fullmatch("0..1" if kind == "uniform" else kind)
    if bounds is not None:
        low, high = sorted(map(float, bounds.groups()))
        # Away from the ends, where logarithms and divisions have poles.
        numbers = generator.uniform(0.95 * low + 0.05 * high, 0.05 * low + 0.95 * high, shape)
        return np.asarray(numbers, np.float32)
    if kind in FLOATS:
        # Drawn in float64 first, so that all dtypes get the same numbers, rounded.
        return np.asarray(generator.standard_normal(shape)).astype(as_numpy_dtype(kind))
    if kind in WHOLE:
        return np.asarray(generator.integers(0, MOST, shape), kind)
    if kind == "bool":
        return np.asarray(generator.integers(0, 2, shape), bool)
    kinds = ", ".join((*FLOATS, *WHOLE, "bool", "uniform", "1..5"))
    raise MultigradError(f"--input: {kind!r} is not a dtype; expected one of {kinds}")
