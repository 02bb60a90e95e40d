"""Estimators: Functions with a forward of their own, each declared by one function.

A declaration is a function `(x, ...) -> (outputs, grad)` in the neutral dialect; `grad` gives the
gradients of the first arguments, the others have none. Its docstring says the forward, then
"Gradients:", then "Source:"; the docs are written from there. Arguments are checked before anything
is captured, so that a mistake is told in the same words on every framework and by every compiler.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import numpy as np

from ..core.backend.contract import Backend
from ..core.backend.discovery import FUNCTION_READERS
from ..core.functions.arguments import Layout, flatten
from ..core.functions.recipe import ArgumentRules, Options, Recipe, Recorded
from ..core.ir.op import FLOATS, T
from ..core.support.params import P, R, Range, read_ranges
from ..core.support.tracebacks import shorten
from ..core.support.trees import Tensor, optree
from ..core.trace.lookups import now
from ..core.trace.trace import Value
from ..core.trace.xp import all as xp
from ..core.xp import finfo, float32
from ..engine.capture.dialect import XP, check_dialect
from ..engine.functions.calls.arguments import read_layout
from ..engine.functions.calls.parameters import Completion, unknown_argument
from ..engine.functions.code_recipes import recipe_of_gradient
from ..engine.functions.entries import kind_of
from ..engine.functions.function import Function, uncaptured
from ..engine.trace.code_trace import CodeTrace
from ..errors import GradientError, RuleTypeError, RuleValueError

MOST_CACHED = 512  # calls of one estimator with arguments of certain types
# Types whose values, which never change, are part of a call's cache key.
PLAIN_TYPES = frozenset((float, int, bool, str, type(None)))
_declared: dict[str, Estimator] = {}  # the library's, by name


class Estimator(Function[P, R]):
    """A Function of the library.

    Examples:
        >>> [argument.name for argument in xg.estimators.lsq.arguments]
        ['x', 'step', 'bits', 'signed', 'scale_gradient']
        >>> xg.estimators.lsq(np.array([1.0]), -0.5)  # checked at the call
        Traceback (most recent call last):
            ...
        multigrad.errors.RuleValueError: function 'lsq': param 'step' is > 0 and finite, got -0.5

    Attributes:
        family: the last name of its module.
        arguments: what it takes, in order; see `arguments.py`.
        examples: arguments that it is tried with, where its signature alone does not tell.
    """

    is_surrogate = True
    completion: ArgumentCheck

    def __init__(
        self,
        function: Callable[..., Any],
        ranges: Mapping[str, str],
        shapes: Mapping[str, ShapeCheck],
        examples: tuple[Any, ...],
        residuals: str = "auto",
    ) -> None:
        recipe = recipe_of_estimator(function, residuals)
        check = ArgumentCheck.declared(recipe.subject, function, ranges, shapes)
        super().__init__(recipe, function, completion=check)
        self.family = function.__module__.rpartition(".")[2]
        self.examples = examples_of(check.arguments, examples)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return self.completion.arguments

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its numbers, by name."""
        ranges = {each.name: each.range for each in self.arguments if each.range is not None}
        return MappingProxyType(ranges)

    def with_defaults(self, values: tuple[Any, ...]) -> Self:
        """Return this Function with other values for all arguments but the first.

        Examples:
            >>> narrow = xg.estimators.ste_sign.with_defaults((0.5,))
            >>> y, pull = xg.vjp(narrow, np.array([0.25, 0.75]))
            >>> pull(np.ones(2))[0]
            array([1., 0.])
        """
        # Captures of its own: the latest one is what `xg.source` and its like show.
        variant = uncaptured(super().with_defaults(values))
        variant.examples = examples_of(variant.arguments, (self.examples or ())[:1])
        return variant

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the outputs for the arguments; gradients flow back by the own backward.

        Raises:
            RuleTypeError: an argument is missing, unknown or of another kind.
            RuleValueError: a number is out of its range, or a shape does not fit.
        """
        for is_reading, call_read, _ in FUNCTION_READERS:  # compilers trace no `except` of ours
            if is_reading():
                return call_read(self, self.prepare(args, kwargs), {})
        try:
            arguments = self.completion.ordered(args, kwargs)
            # The check and the entry of a call with arguments like these are cached; of others
            # than such types it is not known that they may be asked for a shape.
            cached = self.entries.checked.get(tuple(map(type, arguments)))
            entry = None if cached is None else cached.get(_cache_key(arguments))
            if entry is None:
                return self._apply_checked(arguments)
            return entry.run(arguments, self.draws)
        except Exception as error:
            shorten(error)
            raise

    def _apply_checked(self, args: tuple[Any, ...]) -> Any:
        checked_args, entries = self.prepare(args, {}), self.entries
        outputs = self.call_eagerly(checked_args, {})
        # Cached only if checks changed nothing, and nothing in the arguments can change meanwhile.
        if all(map(operator.is_, args, checked_args)) and not any(map(_may_change, args)):
            entry = entries.known.get(tuple(map(kind_of, args)))
            if entry is not None:
                cached = entries.checked.setdefault(tuple(map(type, args)), {})
                if len(cached) >= MOST_CACHED:
                    cached.clear()
                cached[_cache_key(args)] = entry
        return outputs

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return all arguments of a call by position, checked; tensors are not read."""
        return self.completion.checked(args, kwargs)


def _cache_key(args: tuple[Any, ...]) -> Any:
    # What the check reads of a call besides types: values of plain types, and none of tensors.
    plain = PLAIN_TYPES
    return tuple([x if type(x) in plain else (x.shape, x.dtype) for x in args])


def _may_change(value: Any) -> bool:
    if type(value) in PLAIN_TYPES:
        return False
    # A traced value, or a shape that is not all ints, may be another one at the next call.
    shape = getattr(value, "shape", None) if not isinstance(value, Value) else None
    return not isinstance(shape, tuple) or any(type(n) is not int for n in shape)


def estimator(
    *,
    ranges: Mapping[str, str] | None = None,
    shapes: Mapping[str, ShapeCheck] | None = None,
    examples: tuple[Any, ...] = (),
    residuals: str = "auto",
) -> Callable[[Callable[P, Any]], Estimator[P, Any]]:
    """Declare a Function of the library.

    Args:
        ranges: of its numbers, as those of a rule's params.
        shapes: the checks of shapes; without one an argument broadcasts to the first one.
        examples: arrays for the first arguments, where not every array will do.
        residuals: what forward keeps, see `Function.keeping`.
    """

    def declare(function: Callable[P, Any]) -> Estimator[P, Any]:
        instance = Estimator(function, ranges or {}, shapes or {}, examples, residuals)
        _declared[instance.name] = instance
        return instance

    return declare


def describe(function: Estimator) -> tuple[str, str, str]:
    """Return the forward, the gradients and the source of a Function, from its docstring.

    Examples:
        >>> forward, gradients, source = xg.estimators.describe(xg.estimators.ste_round)
        >>> forward, gradients
        ('x rounded to the nearest integer, ties to even.', 'x: 1.')
    """
    docstring, _, _ = inspect.cleandoc(function.__doc__ or "").partition("Examples:")
    text = " ".join(docstring.split())
    forward, _, tail = text.partition("Gradients")
    gradients, _, source = tail.partition("Source: ")
    return forward.strip(), gradients.lstrip(":, ").strip(), source.strip()


def catalogue() -> dict[str, Estimator]:
    """Return the Functions of the library, by name.

    Examples:
        >>> sorted(xg.estimators.catalogue())[:2]
        ['approx_sign', 'bernoulli_st']
    """
    return dict(sorted(_declared.items()))


# --- the recipe: that of a custom gradient, of float tensors, which may leave out gradients -------
def recipe_of_estimator(function: Callable[..., Any], residuals: str) -> Recipe:
    library, options = check_dialect(XP), Options(native=False, residuals=residuals)
    recipe = recipe_of_gradient(function, function.__name__, library=library, options=options)
    record_unpadded = recipe.record
    assert record_unpadded is not None

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return pad_gradients(recipe.run(args, kwargs), len(args))

    def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return pad_gradients(record_unpadded(trace, args, kwargs), len(args))

    arguments = ArgumentRules(partial(lay_out_floats, recipe))
    return replace(recipe, run=run, record=record, copied=None, arguments=arguments)


def lay_out_floats(
    own: Recipe, parameters: inspect.Signature | None, leaves: Sequence[Any], tree: Any
) -> Layout:
    """Return the layout of a call, whose tensors are floats."""
    layout = read_layout(own.name, parameters, leaves, tree)
    for leaf in layout.tensors:
        if leaf.dtype not in (*FLOATS, T):
            raise GradientError(
                f"{own.subject} got a tensor of dtype {leaf.dtype} for argument {leaf.path!r}; "
                f"expected one of {', '.join(FLOATS)}: cast it first"
            )
    return layout


def pad_gradients(recorded: Recorded, count: int) -> Recorded:
    """Let the pullback give None for those of `count` arguments without a gradient, the last."""
    pull = recorded.pull
    assert pull is not None

    def pull_all(grad_out: Any) -> tuple[Any, ...]:
        result = pull(grad_out)
        gradients = result if isinstance(result, tuple) else (result,)
        return (*gradients, *(None,) * (count - len(gradients)))

    return replace(recorded, pull=pull_all, recomputes=True)


# --- what an estimator takes, and the check of a call: names, then shapes, kinds and ranges -------
#     @estimator(ranges={"bits": "2..16"})
#     def lsq(x: Tensor, step: Tensor, bits: int = 4): ...
#
# `step` is a tensor or a number by its annotation, broadcasts to x as no other shape check is
# given, and `bits` is an int from 2 to 16. Tensors are never read: only their shapes are checked.

# The length of each axis; None: it is not known yet.
Shape: TypeAlias = tuple[Any, ...]
# `check(shape, first)` compares a shape with the first argument's: "", or the expected in words.
ShapeCheck: TypeAlias = Callable[[Shape, Shape], str]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an estimator.

    Attributes:
        annotation: "Tensor", "float", "int", "bool" or "str", perhaps with "| None". A tensor may
            be given for a float and, but for the first argument, a number for a tensor.
        plain_type: the type that needs no conversion.
        range: of a number; None: any.
        check_shape: the check of a tensor's shape.
    """

    name: str
    annotation: str
    default: Any
    plain_type: type
    range: Range | None
    check_shape: ShapeCheck


class ArgumentCheck(Completion):
    """Orders, completes and checks the arguments of an estimator's calls.

    Attributes:
        subject: what messages call the estimator.
        arguments: what it takes, in order.
    """

    def __init__(
        self,
        subject: str,
        arguments: tuple[Argument, ...],
        parameters: inspect.Signature | None,
        values: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(parameters, values)
        self.subject, self.arguments = subject, arguments
        self._defaults = tuple(each.default for each in arguments)
        self._required = self._defaults.count(inspect.Parameter.empty)

    @classmethod
    def declared(
        cls,
        subject: str,
        function: Callable[..., Any],
        ranges: Mapping[str, str],
        shapes: Mapping[str, ShapeCheck],
    ) -> ArgumentCheck:
        """Return the check of the arguments that a declaration has."""
        signature, range_by_name = inspect.signature(function), read_ranges(ranges, subject)
        arguments = tuple(
            Argument(
                name=name,
                annotation=str(each.annotation),
                default=each.default,
                plain_type=plain_type_of(str(each.annotation)),
                range=range_by_name.get(name),
                check_shape=shapes.get(name, broadcastable),
            )
            for name, each in signature.parameters.items()
        )
        return cls(subject, arguments, signature)

    def with_values(self, values: tuple[Any, ...]) -> ArgumentCheck:
        parameters, (first, *options) = super().with_values(values).parameters, self.arguments
        options = [replace(each, default=v) for each, v in zip(options, values, strict=True)]
        return ArgumentCheck(self.subject, (first, *options), parameters, values)

    def named(self) -> Mapping[str, Any]:
        empty = inspect.Parameter.empty
        return {each.name: each.default for each in self.arguments if each.default is not empty}

    def complete(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Sequence[Any], Any]:
        args, kwargs = optree.tree_unflatten(tree, leaves)
        return flatten(self.checked(args, kwargs, backend), {})

    def ordered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of all arguments in order, defaults among them."""
        if not kwargs and self._required <= len(args) <= len(self._defaults):
            return (*args, *self._defaults[len(args) :])
        values, keywords = list(args), dict(kwargs)
        for argument in self.arguments[len(args) :]:
            values.append(keywords.pop(argument.name, argument.default))
        names = [each.name for each in self.arguments]
        empty = inspect.Parameter.empty
        missing = [n for n, value in zip(names, values, strict=False) if value is empty]
        if len(args) > len(names) or keywords or missing:
            repeats = [name for name in keywords if name in names]
            unknown = [name for name in keywords if name not in names]
            if unknown:
                raise unknown_argument(self.subject, unknown[0], names)
            if missing:
                problem = f"lacks {', '.join(missing)}"
            elif repeats:
                problem = f"got {', '.join(repeats)} twice"
            else:
                problem = f"got {len(args)} arguments for {len(names)}"
            raise RuleTypeError(f"{self.subject} {problem} (arguments: {', '.join(names)})")
        return tuple(values)

    def checked(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], backend: Backend | None = None
    ) -> tuple[Any, ...]:
        """Return the values of all arguments in order, converted to their kinds.

        Raises:
            RuleTypeError: one is missing, unknown or of another kind.
            RuleValueError: a number is out of its range, or a shape does not fit.
        """
        ordered = self.ordered(args, kwargs)
        first_shape = shape_of(ordered[0])
        values: dict[str, Any] = {}
        range_rows = []
        for argument, value in zip(self.arguments, ordered, strict=True):
            if type(value) is not argument.plain_type:
                value = now(value, backend)
                shape = shape_of(value)
                if shape is not None and first_shape is not None and values:
                    expected = argument.check_shape(shape, first_shape)
                    if expected:
                        raise RuleValueError(
                            f"{self.subject} got {argument.name!r} of shape {shape} for "
                            f"{self.arguments[0].name!r} of shape {first_shape}; expected "
                            f"{expected}"
                        )
                value = convert(self.subject, argument.name, argument.annotation, value)
            values[argument.name] = value
            if argument.range is not None and type(value) is argument.plain_type:
                range_rows.append((argument.name, argument.range))
        # Ranges come last: a bound may be the value of another argument.
        for name, limits in range_rows:
            limits.check(self.subject, name, values[name], values)
        return tuple(values.values())


# --- kinds: each function returns a value as its kind, or raises TypeError with the kind's name ---
def as_tensor(value: Any) -> Any:
    """A tensor or a number: an int is the float of that value."""
    if isinstance(value, float) or type(value) is int:
        return float(value)  # NumPy's among them
    if isinstance(value, bool | str | list | tuple | dict):
        raise TypeError("a number or a tensor")
    return value


def as_int(value: Any) -> Any:
    if type(value) is int:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__") or getattr(value, "ndim", 0):
        raise TypeError("an int")
    return index(value)


def as_bool(value: Any) -> Any:
    if type(value) is bool:
        return value
    if type(value).__name__ in ("bool", "bool_"):  # NumPy's
        return bool(value)
    raise TypeError("a bool")


def as_str(value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError("a str")
    return value


# By annotation, the type that is taken unchanged, and the conversion of all else.
KINDS: Mapping[str, tuple[type, Callable[[Any], Any]]] = {
    "Tensor": (float, as_tensor),
    "float": (float, as_tensor),
    "int": (int, as_int),
    "bool": (bool, as_bool),
    "str": (str, as_str),
}


def plain_type_of(annotation: str) -> type:
    return KINDS[annotation.partition(" | ")[0]][0]


def convert(subject: str, name: str, annotation: str, value: Any) -> Any:
    """Return a value as the kind of its annotation; a symbol, and None if allowed, unchanged."""
    kind, _, alternative = annotation.partition(" | ")
    if isinstance(value, Value) or (value is None and alternative == "None"):
        return value
    try:
        if value is None:
            raise TypeError("a number or a tensor" if KINDS[kind][1] is as_tensor else kind)
        return KINDS[kind][1](value)
    except TypeError as expected:
        description = f"{type(value).__name__} {value!r:.40}"
        raise RuleTypeError(f"{subject}: {name!r} is {expected}, got {description}") from None


# --- shapes: each check returns "" if a shape fits the first argument's, else the expected one ----
def shape_of(value: Any) -> Shape | None:
    """Return a value's shape; None: it has none, or it is not known yet."""
    # Dynamo (torch 2.13) asks no symbol of a number for its attributes.
    if isinstance(value, Value) or type(value) in (int, float):
        return None
    shape = getattr(value, "shape", None)
    if shape is None or getattr(shape, "rank", 0) is None:
        return None
    return tuple(shape)


def may_be_equal(length: Any, other: Any) -> bool:
    return length is None or other is None or length == other


def broadcastable(shape: Shape, first: Shape) -> str:
    """Check that a shape broadcasts to the first argument's."""
    if len(shape) <= len(first):
        for length, first_length in zip(shape[::-1], first[::-1], strict=False):
            if length != 1 and not may_be_equal(length, first_length):
                break
        else:
            return ""
    expected = "a shape that broadcasts to it, as ()"
    places = [i for i, n in enumerate(first) if shape == (n,)]
    if not places:
        return expected
    channels = tuple(n if i == places[0] else 1 for i, n in enumerate(first))
    return f"{expected}, or {channels} for one number per index of axis {places[0]}"


def same_shape(shape: Shape, first: Shape) -> str:
    is_same = len(shape) == len(first) and all(map(may_be_equal, shape, first))
    return "" if is_same else "the same shape"


def codebook_of_vectors(shape: Shape, first: Shape) -> str:
    if len(shape) == 2 and first and may_be_equal(shape[1], first[-1]) and shape[0] != 0:
        return ""
    return f"(number of codes, {first[-1] if first else 'length of a vector'})"


def one_axis(shape: Shape, first: Shape) -> str:
    is_row = len(shape) == 1 and shape[0] != 0
    return "" if is_row else "one axis, with a number for each level but one"


# --- arguments that are tried, and what declarations do with those that may be numbers ------------
def examples_of(arguments: Sequence[Argument], arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return a value for each argument: its default, or an array, given or of a shape that fits."""
    first = np.linspace(-1.6, 1.5, 12).reshape(3, 4)
    channels = np.array([0.5, 0.75, 1.0, 1.25])
    others = (first[::-1] if each.check_shape is same_shape else channels for each in arguments[1:])
    return tuple(
        array if each.default is inspect.Parameter.empty else each.default
        for each, array in zip(arguments, (*arrays, *(first, *others)[len(arrays) :]), strict=True)
    )


def is_tensor(value: Any) -> bool:
    return value is not None and not isinstance(value, int | float)


def widened(value: Any) -> Any:
    """Return a 16-bit tensor in float32, any other argument, or None, as it is."""
    if not is_tensor(value) or finfo(value).bits > 16:
        return value
    return xp.cast(value, float32)


def summed(gradient: Tensor, argument: Any) -> Tensor | None:
    """Return the gradient of an argument that was broadcast; None for a number."""
    if not is_tensor(argument):
        return None
    return xp.cast_like(xp.sum_to(gradient, argument), argument)
