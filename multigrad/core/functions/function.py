"""`FunctionBase`: a function with its own gradient, as its graphs and the entries that run it.

A rule under an activation is one. `xg.Function` is one that people call, with any arguments: see
`engine/functions/function.py`.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from typing import Any

from ...errors import TraceError
from ..backend.discovery import in_use
from ..support.lazy_modules import NEEDS_ENGINE, of_engine, provided
from ..support.params import Fused
from ..trace.active_rules import FREE
from .captures import Captures
from .entries import Entries
from .recipe import Recipe

# For compilers whose traces hold constants alone: by `identifier`; a row goes with its Function.
by_identifier: weakref.WeakValueDictionary[str, FunctionBase] = weakref.WeakValueDictionary()
_serials = itertools.count()


class FunctionBase:
    """A function with its own gradient.

    Attributes:
        name: the name of the function that it was made from.
        draws: where its random draws come from.
        entries: what runs its calls.
        is_surrogate: whether its gradient is meant to differ from the true one.
    """

    is_surrogate: bool = False
    draws = FREE

    def __init__(self, recipe: Recipe, entries: Entries) -> None:
        in_use()  # compilers can neither read the discovery of backends nor load one
        self.name, self.entries = recipe.name, entries
        self._identify()

    def _identify(self) -> None:
        self.identifier = f"{self.name}#{next(_serials)}"
        by_identifier[self.identifier] = self

    @property
    def captures(self) -> Captures:
        """The graphs of its code; copies of it share them."""
        return self.entries.captures

    @property
    def recipe(self) -> Recipe:
        """How its code is run and captured."""
        return self.entries.recipe

    @property
    def parameters(self) -> inspect.Signature | None:
        """The parameters of a call; None: they are not known."""
        return self.entries.parameters

    @property
    def native(self) -> bool | None:
        """None: code that cannot be captured runs as written, on its own framework; True: it always
        does; False: it never does.
        """
        return self.entries.options.native

    @property
    def residuals(self) -> str:
        """What forward keeps for backward; see `xg.Function.keeping`."""
        return self.entries.options.residuals

    @property
    def defaults(self) -> tuple[Any, ...]:
        """What a call may leave out, and numbers that move among it."""
        return ()


inline = of_engine(__name__, "inline", "a call within a capture", TraceError)
encode_function = of_engine(__name__, "encode_function", "a document of a Function", TraceError)


@provided
def _rebuild(
    data: dict[str, Any],
    key: Any,
    defaults: tuple[Any, ...] = (),
    residuals: str | None = None,
    fused: Fused | None = None,
) -> FunctionBase:
    # What pickles call: the Function of a document.
    raise TraceError(f"a document of a Function {NEEDS_ENGINE}")
