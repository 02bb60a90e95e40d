"""Parameters: what signatures tell of them, and arguments that a call leaves out.

A `BoundFunction` is another callable, which passes bound values on. A `Completion` belongs to a
Function and fills in the defaults of each call; a subclass adds the tensors that objects hold.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ....core.backend.contract import Backend
from ....core.backend.values import owner_of
from ....core.functions.arguments import flatten
from ....core.support.params import FixedParams
from ....core.support.trees import optree
from ....core.trace.active_rules import Moving
from ....core.trace.lookups import now
from ....errors import RuleTypeError, suggest
from .arguments import positional_names, unwrap

F = TypeVar("F", bound=Callable[..., Any])
# Words of other libraries (matplotlib, zennit) for an argument of ours.
OTHER_WORDS = {"vmax": "limit", "vmin": "limit", "symmetric": "signed"}


# --- signatures of users' functions ---------------------------------------------------------------
def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return a callable's signature, None where it has none that can be read."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return _signature_of_ufunc(function) if isinstance(function, np.ufunc) else None


def _signature_of_ufunc(function: np.ufunc) -> inspect.Signature:
    # NumPy reports this signature itself from 2.4 on.
    count = function.nin
    names = ["x"] if count == 1 else [f"x{i + 1}" for i in range(count)]
    options = {"where": True, "casting": "same_kind", "order": "K", "dtype": None, "subok": True}
    return inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
        + [inspect.Parameter("out", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)]
        + [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in {**options, "signature": None}.items()
        ]
    )


def bind_call(
    subject: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Bind the arguments of a call.

    Raises:
        RuleTypeError: they do not fit; it names the subject, and the keyword that was meant.
    """
    refuse_unknown(subject, signature, kwargs)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(signature.parameters)
        raise RuleTypeError(f"{subject}: {error} (arguments: {names})") from None


def refuse_unknown(subject: str, signature: inspect.Signature, kwargs: Mapping[str, Any]) -> None:
    """Raise if a keyword is not a parameter of the signature, which lists all."""
    known = signature.parameters
    unknown = [word for word in kwargs if word not in known]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        raise unknown_argument(subject, unknown[0], list(known))


def unknown_argument(subject: str, word: str, names: Sequence[str]) -> RuleTypeError:
    """Return the error for an argument that a callable does not have."""
    listing = ", ".join(names) or "none"
    hint = suggest(OTHER_WORDS.get(word, word), names)
    return RuleTypeError(f"{subject} takes no {word!r}{hint} (arguments: {listing})")


def told_arguments(function: F) -> F:
    """Return a function of ours whose error for arguments that do not fit names those that it has,
    and the keyword that was meant.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it was called, and raised
        return bind_call(function.__name__, inspect.signature(function), args, kwargs)

    return call  # type: ignore[return-value]


# By the code: it is the same at each call of the function around it, and holds nothing of these.
_parameters: weakref.WeakKeyDictionary[types.CodeType, Mapping[str, inspect.Parameter]] = (
    weakref.WeakKeyDictionary()
)


def read_parameters(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """Return a function's parameters; those of a plain function are cached, without defaults."""
    # A `__signature__` of its own would not be that of the code.
    is_bare = isinstance(function, types.FunctionType) and not vars(function)
    params = _parameters.get(function.__code__) if is_bare else None
    if params is None:
        signature = signature_of(function)
        if signature is None:
            return None
        params = signature.parameters
        if is_bare:
            params = {
                name: p.replace(default=p.empty, annotation=p.empty) for name, p in params.items()
            }
            _parameters[function.__code__] = params
    return params


# --- arguments that a call leaves out -------------------------------------------------------------
class BoundFunction:
    """What `Function.bind` returns: it is called with the rest of the arguments.

    Attributes:
        function: the Function, keyed where a key was given.
        name: the Function's.
        params: the values, by name.
    """

    # Weakly referenced by jax, which keeps what it traced for as long as the function lives.
    __slots__ = (
        "__weakref__",
        "_last",
        "_moves",
        "_named",
        "_rest",
        "function",
        "name",
        "params",
    )

    def __init__(
        self,
        function: Any,
        name: str,
        parameters: inspect.Signature | None,
        params: Mapping[str, Any],
    ) -> None:
        names = positional_names(parameters)
        if parameters is not None:
            refuse_unknown(f"function {name!r}", parameters, params)
        self.name = name
        self.params = FixedParams(dict(params), "bind the Function once more")
        self.function = function
        # By position where they are the last ones: so a call needs no look at names.
        is_last = bool(params) and set(names[-len(params) :]) == set(params)
        self._last = tuple(params[name] for name in names[-len(params) :]) if is_last else ()
        self._rest = len(names) - len(params) if is_last else -1  # which no call has
        self._named = dict(params)
        self._moves = any(isinstance(value, Moving) for value in params.values())

    def __repr__(self) -> str:
        return f"<Function {self.name} with {dict(self.params)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs for the rest of the arguments, with the Function's gradient."""
        args, kwargs = self.complete(args, kwargs)
        return self.function(*args, **kwargs)

    def complete(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        trailing, by_name = self._last, self._named
        if self._moves:
            owners = map(owner_of, map(unwrap, flatten(args, dict(kwargs))[0]))
            owner = next((each for each in owners if each is not None), None)
            trailing = tuple(now(value, owner) for value in trailing)
            by_name = {name: now(value, owner) for name, value in by_name.items()}
        if len(args) == self._rest:  # else a default may stand between
            return (*args, *trailing), dict(kwargs)
        return args, {**by_name, **kwargs}


class Completion:
    """Values for all arguments of a Function but the first.

    Attributes:
        parameters: the names of the arguments; None: they are not known.
        values: by position; schedules among them are read anew at each call; empty for none.
        is_written_to: whether the code has written to an object among the arguments, so that all
            calls on its own framework run as written.
    """

    is_written_to = False

    def __init__(self, parameters: inspect.Signature | None, values: tuple[Any, ...] = ()) -> None:
        self.parameters = parameters
        self.values = values

    def named(self) -> Mapping[str, Any]:
        """Return the values by the names of the arguments that a call may leave out."""
        return dict(zip(positional_names(self.parameters)[1:], self.values, strict=False))

    def is_needed(self, leaves: Sequence[Any]) -> bool:
        """Return whether `complete` changes a call with these leaves."""
        return bool(self.values)

    def complete(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Sequence[Any], Any]:
        """Return the leaves of a call by position, those left out filled in, and their nesting."""
        if not self.values or self.parameters is None:
            return leaves, tree
        args, kwargs = optree.tree_unflatten(tree, leaves)
        bound = self.parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        return flatten(tuple(now(value, backend) for value in bound.args), {})

    def key(self, leaves: Sequence[Any], tree: Any) -> tuple[Any, ...]:
        """Return the part of an entry's key that the leaves alone do not tell."""
        return ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Completion:
        other = copy.copy(self)
        other.values = copy.deepcopy(self.values, memo)
        return other

    def with_values(self, values: tuple[Any, ...]) -> Completion:
        other = copy.copy(self)
        other.values = values
        if self.parameters is not None:
            first, *after_first = self.parameters.parameters.values()
            parameters = [p.replace(default=v) for p, v in zip(after_first, values, strict=True)]
            other.parameters = self.parameters.replace(parameters=[first, *parameters])
        return other
