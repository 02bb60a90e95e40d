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
from functools import partial
from types import MappingProxyType
from typing import Any, Self

from ..core.backend.discovery import FUNCTION_READERS
from ..core.functions.arguments import Layout, read_layout
from ..core.functions.entries import kind_of
from ..core.functions.function import Function, uncaptured
from ..core.functions.recipe import ArgumentRules, Options, Recipe, Recorded
from ..core.ir.op import FLOATS, T
from ..core.support.params import P, R, Range
from ..core.support.tracebacks import shorten
from ..core.trace.trace import Trace, Value
from ..engine.capture.dialect import XP, check_dialect
from ..engine.functions.code_recipes import recipe_of_gradient
from ..errors import GradientError
from .arguments import Argument, ArgumentCheck, ShapeCheck, examples_of

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

    def record(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
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
