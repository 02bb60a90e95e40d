"""Calls that a library traces itself, for the shapes and dtypes that they are made with."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...errors import TraceError
from ...graph.ir.types import INT_SCALAR, T
from ...graph.support.trees import optree
from ...trace.axes import ask_for
from ...trace.owners import CODE
from ...trace.trace import NeedsConcrete, Trace, Value
from ..symbols.symbols import SymbolicDType, SymbolicShape

OWN_TRACE = "'s own trace of "


class TracedCall:
    """A call of a library's function, as a function of the tensors among its arguments.

    Attributes:
        trace: the capture.
        given: the tensors, symbols and others.
        has_none: whether None is among the arguments.
    """

    def __init__(self, function: Callable[..., Any], tensor: type, args: Any, kwargs: Any) -> None:
        """Take a call; numbers and shapes among the symbols are known from now on.

        Raises:
            NeedsConcrete: they, or the shapes of the tensors, are not known in this capture.
            TypeError: there is none.
        """
        self._function = function
        self._tensors = (Value, tensor)
        leaves, self._tree = optree.tree_flatten((args, kwargs), none_is_leaf=True)
        first = next((leaf for leaf in leaves if isinstance(leaf, Value)), None)
        if first is None:
            raise TypeError("no tensor is among its arguments")
        self.trace: Trace = first.trace
        self._leaves = list(map(self._known, leaves))
        self.has_none = any(x is None for x in leaves)
        self.given = [x for x in self._leaves if isinstance(x, self._tensors)]
        ask_for("shape", [x for x in self.given if isinstance(x, Value)])

    def _known(self, x: Any) -> Any:
        if isinstance(x, Value) and x.node.type.kind == "scalar":
            return operator.index(x) if x.node.type == INT_SCALAR else float(x)
        if isinstance(x, SymbolicDType):
            return dtype_in(self.trace, x.symbol)
        return np.asarray(x) if isinstance(x, SymbolicShape) else x

    def __call__(self, *tensors: Any) -> Any:
        rest = iter(tensors)
        whole = [next(rest) if isinstance(x, self._tensors) else x for x in self._leaves]
        args, kwargs = optree.tree_unflatten(self._tree, whole)
        return self._function(*args, **kwargs)

    @contextmanager
    def read_by(self, library: str) -> Iterator[None]:
        """Record what a library's trace holds, which the code that calls it may not mention."""
        trace = self.trace
        before, routes = (trace.dialect, trace.readings, trace.types_of), dict(trace.routes)
        trace.dialect, trace.readings, trace.types_of = library, (library,), CODE
        try:
            yield
        finally:
            trace.dialect, trace.readings, trace.types_of = before
        trace.routes = routes
        self._note_route(trace.dialect)

    def _note_route(self, library: str) -> None:
        """Say of which functions the library's own trace was taken."""
        words = f" and by {library}{OWN_TRACE}"
        before, _, names = self.trace.routes.get(library, "").partition(words)
        own = getattr(self._function, "__name__", str(self._function))
        listed = dict.fromkeys((*filter(None, names.split(", ")), own))
        self.trace.routes[library] = f"{before or 'protocol'}{words}{', '.join(listed)}"


def dtype_in(trace: Trace, name: str) -> str:
    """Return the name of a dtype, that of the input where it is `T`.

    Raises:
        NeedsConcrete: it is not known in this capture.
    """
    if name != T:
        return name
    if "dtype" not in trace.facts:
        raise NeedsConcrete("dtype")
    return str(trace.facts["dtype"])


@contextmanager
def giving_reasons(library: str) -> Iterator[None]:
    """Make a TypeError, which refuses a call, of whatever a library's tracer raises."""
    try:
        yield
    except (NeedsConcrete, TraceError, TypeError):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise TypeError(f"{library} cannot trace it for these shapes: {reason}") from error
