"""Corrections of a recorded call, whose ops may compute in another dtype than the library.

    the library                         the ops        then
    gives int64                         give int32     the result is cast, which is exact
    gives float32                       give T         operands are cast, and it is recorded anew
    casts operands before it computes   cast later     likewise, for those that it casts
    computes 16 bits in float32         round each     it is recorded in float32, and cast back

Each function takes the call and what was recorded, and returns what replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....core import ops
from ....core.ir.graph import Node
from ....core.ir.op import BOOL, FLOATS, PER_ELEMENT, WHOLE, Op, T
from ....core.trace.trace import NeedsConcrete, Value
from ....core.trace.xp import all as xp
from ...trace.code_trace import CodeTrace
from ..meanings.places import Extremes
from ..symbols import (
    cast_in_graph,
    is_bool,
    is_exact_cast,
    is_tensor,
    is_tensor_of_other_dtype,
    is_wider,
    own_dtype,
    source_dtype,
)
from .oracle import COMPUTES_IN, KINDS, Answer, leaves_of, with_leaves


# --- ops of floats that libraries compute in integers ---------------------------------------------
def itself(x: Any) -> Any:
    return x


def remainder_of_first(a: Any, b: Any) -> Any:
    # The sign of the dividend; not by absolute values, since the least integer has none.
    r = xp.remainder(a, b)
    differs = xp.not_equal(xp.less(r, 0), xp.less(a, 0))
    return xp.where(xp.logical_and(xp.not_equal(r, 0), differs), r - b, r)


ON_INTEGERS: Mapping[Op, Callable[..., Any]] = {
    **dict.fromkeys((ops.FLOOR, ops.CEIL, ops.ROUND, ops.TRUNC), itself),
    ops.FMAX: xp.maximum,
    ops.FMIN: xp.minimum,
    ops.FMOD: remainder_of_first,
}


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A call of a library's function on symbols, and how its ops are recorded.

    Attributes:
        function: the library's own, which it is asked about.
        args, kwargs: symbols, numbers, and whatever else it is given.
        record: (*args, **kwargs) -> the result.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    record: Callable[..., Any]

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "") or ""

    @property
    def operands(self) -> Sequence[Any]:
        """All arguments, those in containers too."""
        return leaves_of((self.args, self.kwargs))

    def recorded(self) -> Any:
        return self.record(*self.args, **self.kwargs)

    def with_operands(self, change: Callable[[Any], Any]) -> LibraryCall:
        args, kwargs = with_leaves((self.args, dict(self.kwargs)), change)
        return replace(self, args=args, kwargs=kwargs)

    def computed_in(self, dtype: str) -> LibraryCall:
        """Return the call on tensors in the dtype that its arguments name, without that name."""
        call = self.with_operands(lambda x: cast_tensor(x, dtype))
        keywords = {name: x for name, x in call.kwargs.items() if name not in COMPUTES_IN}
        return replace(call, kwargs=keywords)


def cast_tensor(x: Any, dtype: str) -> Any:
    return cast_in_graph(x, dtype) if isinstance(x, Value) and is_tensor(x) else x


def agree(leaves: Sequence[Any], answer: Answer) -> bool:
    pairs = zip(leaves, answer, strict=True)
    return not [x for x, leaf_type in pairs if is_tensor_of_other_dtype(x, leaf_type.dtype)]


def corrected(trace: CodeTrace, call: LibraryCall, result: Any, answer: Answer) -> Any:
    """Return a result in the library's dtypes: cast where exact, else made of cast operands.

    Raises:
        NeedsConcrete: whether they differ depends on the input's dtype.
        TypeError: the ops do not compute in them.
    """
    dtypes = [leaf_type.dtype for leaf_type in answer]
    pairs = zip(leaves_of(result), dtypes, strict=True)
    wrong = [(x, dtype) for x, dtype in pairs if is_tensor_of_other_dtype(x, dtype)]
    if all(is_exact_cast(source_dtype(x), dtype) for x, dtype in wrong):
        dtypes_left = iter(dtypes)
        return with_leaves(result, lambda x: _recast(x, next(dtypes_left)))
    x, dtype = wrong[0]
    if dtype in (T, *FLOATS, *WHOLE) and all(each == dtype for _, each in wrong):
        retry = call.with_operands(lambda x: x if is_bool(x) else cast_tensor(x, dtype)).recorded()
        if agree(leaves_of(retry), answer):
            return retry
    if "dtype" not in trace.facts and T in (dtype, x.node.type.dtype):
        raise NeedsConcrete("dtype")
    theirs, ours = _shown(trace, dtype), _shown(trace, x.node.type.dtype)
    advice = f"its operands to {theirs}"
    if theirs == BOOL and any(map(is_bool, call.operands)):
        advice = f"the mask to {ours}"  # TensorFlow multiplies a float by a mask as two masks
    raise TypeError(f"it gives {theirs}, and {ours} as a graph: cast {advice} first")


def _recast(x: Any, dtype: str) -> Any:
    """Return a tensor in a dtype; one that was cast from integers, from these."""
    if not is_tensor_of_other_dtype(x, dtype):
        return x
    node = x.node.operands[0] if x.node.op is ops.CAST else x.node
    return cast_in_graph(x.trace.value(node), dtype)


def _shown(trace: CodeTrace, dtype: str) -> str:
    return str(trace.facts.get("dtype", "the input's dtype")) if dtype == T else dtype


def with_places_in(result: Extremes, dtype: str) -> Extremes:
    """Return values whose places, recorded when they are asked for, have a dtype."""
    return Extremes(result.values, lambda: cast_in_graph(result.indices, dtype))


def promoted_first(call: LibraryCall, result: Any, dtype: str) -> tuple[Any, LibraryCall]:
    """Return a result whose operands took its dtype before the first of several ops, as a library
    casts them: floats, and all others where each element stands for itself. Also return its call;
    both are those that were given, if the operands are right already.
    """
    operands = {x.node for x in call.operands if isinstance(x, Value) and is_tensor(x)}
    dtypes = {node.type.dtype for node in operands} - {dtype}
    if not dtypes or dtype not in (T, *FLOATS, *WHOLE) or not isinstance(result, Value):
        return result, call
    steps = steps_between(result.node, operands)
    cast_all = all(node.op.result in PER_ELEMENT or node.op.view for node in steps)
    exempt: tuple[str, ...] = () if cast_all else (BOOL, *WHOLE)
    if cast_all and (dtype in WHOLE or any(node.op is ops.WHERE for node in steps)):
        exempt = (BOOL,)  # perhaps a mask
    dtypes -= {*exempt}
    # A count, or a place, is no dtype that operands have in common.
    widens = dtype not in WHOLE or (cast_all and all(is_wider(each, dtype) for each in dtypes))
    if len(steps) < 2 or not dtypes or not widens:
        return result, call
    retry = call.with_operands(lambda x: x if own_dtype(x) in exempt else cast_tensor(x, dtype))
    try:
        return retry.recorded(), retry
    except TypeError:  # one of them is a mask, or says where something is
        return result, call


def computed_in_float32(call: LibraryCall) -> Any:
    """Return a call's result, computed in float32 and rounded to 16 bits once."""
    stacked = replace(call, args=tuple(map(_as_stacked, call.args)))
    wide = stacked.with_operands(lambda x: cast_in_graph(x, "float32") if own_dtype(x) == T else x)
    return with_leaves(
        wide.recorded(), lambda x: cast_in_graph(x, T) if own_dtype(x) == "float32" else x
    )


def _as_stacked(x: Any) -> Any:
    """Return a list that the library stacks, cast to T (16 bits) if any tensor in it has T."""
    if not isinstance(x, list) or all(own_dtype(each) != T for each in x):
        return x
    return [cast_tensor(each, T) for each in x]


def is_one_step(result: Any, operands: Iterable[Any]) -> bool:
    """Return whether a result is known to be one op of T, integers, bools and numbers.

    Most are, and it saves the search of `is_composed`: a tenth of the Python calls of a capture.
    """
    if not isinstance(result, Value) or result.node.op is ops.FLOOR_DIVIDE:
        return False
    nodes = []
    for x in operands:
        if isinstance(x, Value) and x.node.type.dtype not in FLOATS:  # T is none of these
            nodes.append(x.node)
        elif type(x) not in KINDS:
            return False
    return all(each in nodes or not each.operands for each in result.node.operands)


CHOICES = {ops.CLIP, ops.MAXIMUM, ops.MINIMUM, ops.STOP_GRADIENT, ops.WHERE}


def is_composed(result: Any, given: Any) -> bool:
    """Return whether rounding a result at each step may differ from rounding it once."""
    operands = {x.node for x in leaves_of(given) if isinstance(x, Value)}
    nodes = [x.node for x in leaves_of(result) if isinstance(x, Value) and own_dtype(x) == T]
    steps = [step for node in nodes for step in steps_between(node, operands)]
    # A number that 16 bits round gives another quotient.
    quotients = [step for step in steps if step.op is ops.FLOOR_DIVIDE]
    jumps = any(o.op is ops.CONST for quotient in quotients for o in quotient.operands)
    # A choice among elements rounds nothing but, before it, the numbers among its operands.
    rounds = any(s.type.dtype != BOOL and s.op not in CHOICES for s in steps)
    return jumps or (rounds and len(steps) > len(nodes))


def steps_between(node: Node, operands: set[Node]) -> list[Node]:
    """Return the ops between operands and a result, without casts of the operands themselves."""
    steps: dict[Node, None] = {}
    stack = [node]
    while stack:
        step = stack.pop()
        is_cast = step.op is ops.CAST and step.operands[0] in operands and step is not node
        if step.operands and step not in operands and step not in steps and not is_cast:
            steps[step] = None
            stack.extend(step.operands)
    return list(steps)
