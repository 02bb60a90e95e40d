"""A Function with values for some of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import RuleTypeError, suggest
from ...graph.support.notebook import InNotebooks
from ...graph.support.params import FixedParams
from ...trace.scope.moving import Moving
from ...trace.scope.present import now
from .arguments import flatten, owner_of, positional_names, unwrap


class BoundFunction(InNotebooks):
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
        function: Callable[..., Any],
        name: str,
        parameters: inspect.Signature | None,
        params: Mapping[str, Any],
    ) -> None:
        names = positional_names(parameters)
        taken = [] if parameters is None else list(parameters.parameters)
        spread = parameters is None or any(
            p.kind is p.VAR_KEYWORD for p in parameters.parameters.values()
        )
        for param in params:
            if not spread and param not in taken:
                raise RuleTypeError(
                    f"function {name!r} has no argument {param!r}{suggest(param, taken)} "
                    f"(arguments: {', '.join(taken)})"
                )
        self.name = name
        self.params = FixedParams(dict(params), "bind the Function once more")
        self.function = function
        # By position where they are the last ones: so a call needs no look at names.
        is_last = bool(params) and set(names[-len(params) :]) == set(params)
        self._last = tuple(params[name] for name in names[-len(params) :]) if is_last else ()
        self._rest = len(names) - len(params) if is_last else -1
        self._named = dict(params)
        self._moves = any(isinstance(value, Moving) for value in params.values())

    def __repr__(self) -> str:
        return f"<Function {self.name} with {dict(self.params)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs for the rest of the arguments; gradients flow back by the Function's
        backward.
        """
        args, kwargs = self.complete(args, kwargs)
        return self.function(*args, **kwargs)

    def complete(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the Function for the rest of them."""
        last, named = self._last, self._named
        if self._moves:
            owners = map(owner_of, map(unwrap, flatten(args, dict(kwargs))[0]))
            owner = next((each for each in owners if each is not None), None)
            last = tuple(now(value, owner) for value in last)
            named = {name: now(value, owner) for name, value in named.items()}
        if len(args) == self._rest:  # else a default may stand between
            return (*args, *last), dict(kwargs)
        return args, {**named, **kwargs}
