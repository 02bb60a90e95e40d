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
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...backend.contract import Backend
from ...backend.discovery import FUNCTION_READERS
from ...capture.dialect import XP, check_dialect
from ...errors import GradientError, RuleTypeError, RuleValueError, suggest
from ...functions.calls.arguments import Completion, Layout, flatten, read_layout
from ...functions.calls.binding import Entry
from ...functions.calls.recipe import ArgumentRules, Options, Recipe, Recorded
from ...functions.code_recipes import recipe_of_gradient
from ...functions.entries import Entries, kind_of
from ...functions.function import Function
from ...graph.ir.types import FLOATS, T
from ...graph.support.class_bases import dataclass
from ...graph.support.params import P, R, Range, read_ranges
from ...graph.support.trees import optree
from ...trace.lookups import now
from ...trace.trace import Trace, Value

if TYPE_CHECKING:
    from typing_extensions import Self
from operator import index
from typing import TypeAlias

from ...capture.dialects.xp import finfo, float32
from ...trace.xp import all as xp

Tensor = Any
Lengths: TypeAlias = tuple[Any, ...]
# `fit(lengths, like)` returns the expected shape in words, "" if it fits.
Fit: TypeAlias = Callable[[Lengths, Lengths], str]


# --- kinds ---------------------------------------------------------------------------------------
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


def as_word(value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError("a str")
    return value


# By annotation, the type that is taken unchanged, and the conversion of all else.
KINDS: Mapping[str, tuple[type, Callable[[Any], Any]]] = {
    "Tensor": (float, as_tensor),
    "float": (float, as_tensor),
    "int": (int, as_int),
    "bool": (bool, as_bool),
    "str": (str, as_word),
}


def coerce(subject: str, name: str, annotation: str, value: Any) -> Any:
    kind, _, rest = annotation.partition(" | ")
    if isinstance(value, Value) or (value is None and rest == "None"):
        return value
    try:
        if value is None:
            raise TypeError("a number or a tensor" if KINDS[kind][1] is as_tensor else kind)
        return KINDS[kind][1](value)
    except TypeError as expected:
        description = f"{type(value).__name__} {value!r:.40}"
        raise RuleTypeError(f"{subject}: {name!r} is {expected}, got {description}") from None


# --- shapes --------------------------------------------------------------------------------------
def lengths_of(value: Any) -> Lengths | None:
    # None: there is no shape, or it is not known yet.
    if isinstance(value, Value):
        return None
    shape = getattr(value, "shape", None)
    if shape is None or getattr(shape, "rank", 0) is None:
        return None
    return tuple(shape)


def agree(length: Any, other: Any) -> bool:
    return length is None or other is None or length == other


def broadcasts(lengths: Lengths, like: Lengths) -> str:
    """Return "" if a shape broadcasts to the first argument's, else the expected one in words."""
    if len(lengths) <= len(like):
        for mine, other in zip(lengths[::-1], like[::-1], strict=False):
            if mine != 1 and not agree(mine, other):
                break
        else:
            return ""
    expected = "a shape that broadcasts to it, as ()"
    places = [i for i, n in enumerate(like) if lengths == (n,)]
    if not places:
        return expected
    channels = tuple(n if i == places[0] else 1 for i, n in enumerate(like))
    return f"{expected}, or {channels} for one number per index of axis {places[0]}"


def alike(lengths: Lengths, like: Lengths) -> str:
    is_same = len(lengths) == len(like) and all(map(agree, lengths, like))
    return "" if is_same else "the same shape"


def codes(lengths: Lengths, like: Lengths) -> str:
    """Return "" for a table of vectors as long as the first one's last axis, else its shape."""
    if len(lengths) == 2 and like and agree(lengths[1], like[-1]) and lengths[0] != 0:
        return ""
    return f"(number of codes, {like[-1] if like else 'length of a vector'})"


def row(lengths: Lengths, like: Lengths) -> str:
    is_row = len(lengths) == 1 and lengths[0] != 0
    return "" if is_row else "one axis, with a number for each level but one"


MOST = 512  # calls whose arguments are known to be right
PLAIN = frozenset((float, int, bool, str, type(None)))
_declared: dict[str, Estimator] = {}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an estimator.

    Attributes:
        annotation: "Tensor", "float", "int", "bool" or "str", perhaps with "| None". A tensor may
            be given for a float and, but for the first argument, a number for a tensor.
        usual: the type that needs no conversion.
        fits: the check of its shape.
    """

    name: str
    annotation: str
    default: Any
    usual: type
    range: Range | None
    fits: Fit


def examples_of(arguments: Sequence[Argument]) -> tuple[Any, ...]:
    first = np.linspace(-1.6, 1.5, 12).reshape(3, 4)
    channels = np.array([0.5, 0.75, 1.0, 1.25])
    arrays = [first, *(first[::-1] if each.fits is alike else channels for each in arguments[1:])]
    return tuple(
        array if each.default is inspect.Parameter.empty else each.default
        for each, array in zip(arguments, arrays, strict=True)
    )


def _recipe_of_estimator(function: Callable[..., Any]) -> Recipe:
    # An argument without a gradient gets None.
    name = function.__name__
    options = Options(native=False)
    own = recipe_of_gradient(function, name, library=check_dialect(XP), options=options)
    record_own = own.record
    assert record_own is not None

    def lay_out_leaves(
        parameters: inspect.Signature | None, leaves: Sequence[Any], tree: Any
    ) -> Layout:
        layout = read_layout(name, parameters, leaves, tree)
        for leaf in layout.tensors:
            if leaf.dtype not in (*FLOATS, T):
                raise GradientError(
                    f"{own.subject} got a {leaf.dtype} tensor for argument {leaf.path!r}; "
                    f"expected one of {', '.join(FLOATS)}: cast it first"
                )
        return layout

    def record(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return _padded(record_own(trace, args, kwargs), len(args))

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return _padded(own.run(args, kwargs), len(args))

    arguments = ArgumentRules(lay_out_leaves)
    return replace(own, run=run, record=record, copied=None, arguments=arguments)


def _padded(recorded: Recorded, count: int) -> Recorded:
    pull = recorded.pull
    assert pull is not None

    def pull_all(grad_out: Any) -> tuple[Any, ...]:
        returned = pull(grad_out)
        gradients = returned if isinstance(returned, tuple) else (returned,)
        return (*gradients, *(None,) * (count - len(gradients)))

    return replace(recorded, pull=pull_all)


class Checked(Completion):
    """Checks and completes the arguments of calls that bypass an estimator's `__call__`."""

    def __init__(
        self, estimator: Estimator[Any, Any], parameters: Any, values: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(parameters, values)
        self.estimator = estimator

    def named(self) -> Mapping[str, Any]:
        empty, arguments = inspect.Parameter.empty, self.estimator.arguments
        return {each.name: each.default for each in arguments if each.default is not empty}

    def complete(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Sequence[Any], Any]:
        args, kwargs = optree.tree_unflatten(tree, leaves)
        return flatten(self.estimator.prepare(args, kwargs, backend), {})


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
        arguments: what it takes, in order.
        examples: arguments that it is tried with, where its signature alone does not tell.
    """

    is_surrogate = True

    def __init__(
        self,
        function: Callable[..., Any],
        ranges: Mapping[str, str],
        shapes: Mapping[str, Fit],
        examples: tuple[Any, ...] | None,
    ) -> None:
        recipe = _recipe_of_estimator(function)
        super().__init__(recipe, function, completion=Checked(self, inspect.signature(function)))
        assert self.parameters is not None
        self.family = function.__module__.rpartition(".")[2]
        read = read_ranges(ranges, self.recipe.subject)
        self.arguments = tuple(
            Argument(
                name=name,
                annotation=str(each.annotation),
                default=each.default,
                usual=KINDS[str(each.annotation).partition(" | ")[0]][0],
                range=read.get(name),
                fits=shapes.get(name, broadcasts),
            )
            for name, each in self.parameters.parameters.items()
        )
        self.examples = examples or examples_of(self.arguments)
        self._values = tuple(each.default for each in self.arguments)
        self._required = self._values.count(inspect.Parameter.empty)
        self._kinds: set[tuple[type, ...]] = set()  # argument types that `_looked` may know

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
        other = super().with_defaults(values)
        first, *rest = self.arguments
        changed = [replace(each, default=v) for each, v in zip(rest, values, strict=True)]
        other.arguments = (first, *changed)
        other._values = (self._values[0], *values)
        other._required = 1
        other.choose(completion=Checked(other, other.parameters, values))
        return other

    def _run_by(self, entries: Entries) -> None:
        super()._run_by(entries)
        # New entries make what was cached for the old ones void.
        self._looked: dict[Any, Entry] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the outputs for the arguments; gradients flow back by the own backward.

        Raises:
            RuleTypeError: an argument is missing, unknown or of another kind.
            RuleValueError: a number is out of its range, or a shape does not fit.
        """
        for is_reading, call_read, _ in FUNCTION_READERS:
            if is_reading():
                return call_read(self, self.prepare(args, kwargs), {})
        arguments = self._completed(args, kwargs)
        # The check and the entry of a call with arguments like these are cached.
        is_known = tuple(map(type, arguments)) in self._kinds
        entry = self._looked.get(_look(arguments)) if is_known else None
        return self._apply_checked(arguments) if entry is None else entry.run(arguments, self.draws)

    def _apply_checked(self, args: tuple[Any, ...]) -> Any:
        checked = self.prepare(args, {})
        outputs = self._apply(checked, {})
        # Cached only if checks changed nothing, and nothing in the arguments can change meanwhile.
        if all(map(operator.is_, args, checked)) and not any(map(_is_open, args)):
            entry = self._known.get(tuple(map(kind_of, args)))
            if entry is not None:
                if len(self._looked) >= MOST:
                    self._looked.clear()
                self._kinds.add(tuple(map(type, args)))
                self._looked[_look(args)] = entry
        return outputs

    def prepare(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], backend: Backend | None = None
    ) -> tuple[Any, ...]:
        """Return all arguments of a call by position, checked; tensors are not read."""
        args = self._completed(args, kwargs)
        shape = lengths_of(args[0])
        values: dict[str, Any] = {}
        bounded = []
        for argument, value in zip(self.arguments, args, strict=True):
            if type(value) is not argument.usual:
                value = now(value, backend)
                lengths = lengths_of(value)
                if lengths is not None and shape is not None and values:
                    self._check_shape(argument, lengths, shape)
                value = coerce(self.recipe.subject, argument.name, argument.annotation, value)
            values[argument.name] = value
            if argument.range is not None and type(value) is argument.usual:
                bounded.append(argument)
        for argument in bounded:
            assert argument.range is not None
            argument.range.check(self.recipe.subject, argument.name, values[argument.name], values)
        return tuple(values.values())

    def _completed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        if kwargs or not self._required <= len(args) <= len(self._values):
            return self._in_order(args, kwargs)
        return (*args, *self._values[len(args) :])

    def _in_order(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        arguments = self.arguments
        values, rest = list(args), dict(kwargs)
        for argument in arguments[len(args) :]:
            values.append(rest.pop(argument.name, argument.default))
        missing = [
            each.name
            for each, value in zip(arguments, values, strict=False)
            if value is inspect.Parameter.empty
        ]
        if len(args) > len(arguments) or rest or missing:
            names = [each.name for each in arguments]
            twice = [name for name in rest if name in names]
            if missing:
                problem = f"lacks {', '.join(missing)}"
            elif twice:
                problem = f"got {', '.join(twice)} twice"
            elif rest:
                word = next(iter(rest))
                problem = f"takes no {word!r}{suggest(word, names)}"
            else:
                problem = f"got {len(args)} arguments for {len(arguments)}"
            raise RuleTypeError(f"{self.recipe.subject} {problem} (arguments: {', '.join(names)})")
        return tuple(values)

    def _check_shape(self, argument: Argument, lengths: Any, shape: Any) -> None:
        expected = argument.fits(lengths, shape)
        if expected:
            raise RuleValueError(
                f"{self.recipe.subject} got {argument.name!r} of shape {lengths} for "
                f"{self.arguments[0].name!r} of shape {shape}; expected {expected}"
            )


def _look(args: tuple[Any, ...]) -> Any:
    # The key by which the check and the entry of a call are cached.
    return tuple(
        [
            (type(each), each) if type(each) in PLAIN else (type(each), each.shape, each.dtype)
            for each in args
        ]
    )


def _is_open(value: Any) -> bool:
    if type(value) in PLAIN:
        return False
    # A traced value, or a shape that is not all ints, may be another one at the next call.
    shape = getattr(value, "shape", None) if not isinstance(value, Value) else None
    return not isinstance(shape, tuple) or any(type(n) is not int for n in shape)


def estimator(
    *,
    ranges: Mapping[str, str] | None = None,
    shapes: Mapping[str, Fit] | None = None,
    examples: tuple[Any, ...] | None = None,
    residuals: str = "auto",
) -> Callable[[Callable[P, Any]], Estimator[P, Any]]:
    """Declare a Function of the library.

    Args:
        ranges: of its numbers, as those of a rule's params.
        shapes: the checks of shapes; without one an argument broadcasts to the first one.
        examples: see `Estimator`.
        residuals: what forward keeps, see `Function.keeping`.
    """

    def declare(function: Callable[P, Any]) -> Estimator[P, Any]:
        made = Estimator(function, ranges or {}, shapes or {}, examples)
        made.choose(residuals=residuals)
        _declared[made.name] = made
        return made

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
    forward, _, rest = text.partition("Gradients")
    gradients, _, source = rest.partition("Source: ")
    return forward.strip(), gradients.lstrip(":, ").strip(), source.strip()


def catalogue() -> dict[str, Estimator]:
    """Return the Functions of the library, by name.

    Examples:
        >>> sorted(xg.estimators.catalogue())[:2]
        ['approx_sign', 'bernoulli_st']
    """
    return dict(sorted(_declared.items()))


# --- what declarations share ----------------------------------------------------------------------
def is_tensor(value: Any) -> bool:
    return not isinstance(value, int | float)


def widened(value: Any) -> Any:
    """Return a 16-bit tensor in float32, any other argument as it is."""
    if not is_tensor(value) or finfo(value).bits > 16:
        return value
    return xp.cast(value, float32)


def summed(gradient: Tensor, argument: Any) -> Tensor | None:
    """Return the gradient of an argument that was broadcast; None for a number."""
    if not is_tensor(argument):
        return None
    return xp.cast_like(xp.sum_to(gradient, argument), argument)
