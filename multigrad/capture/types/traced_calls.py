"""Calls that a library traces itself, for given shapes and dtypes; and two questions about a call's
dtypes: whose they are in code that mentions no framework, and whether several ops here round at
each step in 16 bits, while the library may round once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...errors import TraceError
from ...graph import ops
from ...graph.ir.types import BOOL, FLOATS, INT_SCALAR, T
from ...graph.passes.facts import LIBRARY, ON_NUMBERS
from ...graph.support.trees import optree
from ...trace.axes import ask_for
from ...trace.source import OF_CODE, TENSORS, UNDECIDED, meet_numpy, rely_on_library
from ...trace.trace import NeedsConcrete, Trace, Value
from ..dtypes import is_tensor, own_dtype, steps_between
from ..symbols import SymbolicDType, SymbolicShape, is_number
from .oracle import KINDS, leaves_of

JUMPS = (ops.FLOOR_DIVIDE,)


def meet_call(trace: Trace, given: Any) -> None:
    """Note what the arguments of a call tell about the library of the code.

    Raises:
        NeedsConcrete: the library of the tensors has to be known.
    """
    if trace.reading.owner not in UNDECIDED:  # as in most code
        return
    is_lent = trace.reading.owner != TENSORS or ON_NUMBERS in trace.facts
    if is_lent and any(isinstance(x, np.ndarray) for x in leaves_of(given)):
        meet_numpy(trace)
    elif _depends_on_library(trace, given):
        rely_on_library(trace)
        if trace.reading.owner not in OF_CODE and LIBRARY not in trace.facts:
            raise NeedsConcrete(LIBRARY)


def _depends_on_library(trace: Trace, given: Any) -> bool:
    # Whether libraries may give other dtypes for this call.
    if trace.reading.owner == TENSORS and LIBRARY in trace.facts:
        return False  # the library is known by now
    if trace.facts.has_dtype("bfloat16"):
        return True
    leaves = leaves_of(given)
    symbols = [x for x in leaves if isinstance(x, Value)]
    others = [x for x in leaves if not isinstance(x, Value)]
    is_open = any(own_dtype(x) != T for x in symbols if is_tensor(x) and not is_number(x))
    return is_open or any(hasattr(x, "dtype") for x in others)


def is_one_step(result: Any, operands: Iterable[Any]) -> bool:
    """Return whether a result is known to be one op of T and numbers, without a search."""
    if not isinstance(result, Value) or result.node.op in JUMPS:
        return False
    nodes = []
    for x in operands:
        if isinstance(x, Value) and x.node.type.dtype not in FLOATS:
            nodes.append(x.node)
        elif type(x) not in KINDS:
            return False
    return not [each for each in result.node.operands if each.operands and each not in nodes]


def is_composed(result: Any, given: Any) -> bool:
    """Return whether rounding a result at each step may differ from rounding it once."""
    operands = {x.node for x in leaves_of(given) if isinstance(x, Value)}
    made = [x.node for x in leaves_of(result) if isinstance(x, Value) and own_dtype(x) == T]
    steps = [step for node in made for step in steps_between(node, operands)]
    # A number that 16 bits round gives another quotient.
    jumps = any(s.op in JUMPS and any(o.op is ops.CONST for o in s.operands) for s in steps)
    # A choice among elements rounds nothing but, before it, the numbers among its operands.
    rounds = any(s.type.dtype != BOOL and s.op is not ops.WHERE for s in steps)
    return jumps or (rounds and len(steps) > len(made))


OWN_TRACE = "'s own trace of "


class TracedCall:
    """A call of a library's function, as a function of the tensors among its arguments.

    Attributes:
        trace: the capture.
        given: the tensors, symbolic or not.
        has_none: whether None is among the arguments.
    """

    def __init__(self, function: Callable[..., Any], tensor: type, args: Any, kwargs: Any) -> None:
        """Take a call; symbolic numbers and shapes among its arguments become facts.

        Raises:
            NeedsConcrete: they, or the shapes of the tensors, are not known in this capture.
            TypeError: no tensor is among them.
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
        """Record a library's own trace; the calling code may not mention that library."""
        trace = self.trace
        routes = dict(trace.source.routes)
        with trace.reading_as((library,)):
            yield
        trace.source.routes = routes
        self._note_route(trace.reading.dialect)

    def _note_route(self, library: str) -> None:
        # The route lists, for `xg.show`, the functions whose own trace was taken.
        words = f" and by {library}{OWN_TRACE}"
        before, _, names = self.trace.source.routes.get(library, "").partition(words)
        own = getattr(self._function, "__name__", str(self._function))
        listed = dict.fromkeys((*filter(None, names.split(", ")), own))
        self.trace.source.routes[library] = f"{before or 'protocol'}{words}{', '.join(listed)}"


def dtype_in(trace: Trace, name: str) -> str:
    """Return the name of a dtype, with `T` replaced by the input's."""
    if name != T:
        return name
    if "dtype" not in trace.facts:
        raise NeedsConcrete("dtype")
    return str(trace.facts["dtype"])


@contextmanager
def giving_reasons(library: str) -> Iterator[None]:
    """Turn any error of a library's tracer into a TypeError, which refuses the call."""
    try:
        yield
    except (NeedsConcrete, TraceError, TypeError):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise TypeError(f"{library} cannot trace it for these shapes: {reason}") from error
