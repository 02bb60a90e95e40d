"""Facts that only code asks about its arguments, of a kind that no plain rule asks for.

"device_type" is the kind of device of the first tensor, "gradient:w" whether w asks for one,
"strided:w" whether w is no sparse tensor, "contiguous:w" whether it lies in memory in order,
"attribute.a:w" whether w has an attribute a, "buffers" that what the code makes from numbers is
written into. A call may need more than its code has asked for: the library of its tensors, and
shapes for constant indices that may lie outside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from functools import partial
from typing import Any

from ....core import ops
from ....core.backend.values import owner_of
from ....core.functions.arguments import Layout
from ....core.functions.captures import Captures
from ....core.functions.facts import first_tensor, gather_facts, leaf_of_each
from ....core.functions.recipe import INDEXED, Recipe, Variant
from ....core.ir.graph import Node
from ....core.ir.op import FLOATS, dtype_name
from ....core.passes.facts import LIBRARY
from ....core.support.trees import Tensor
from ....core.trace.trace import NeedsConcrete, Value, known_shape
from ....errors import TraceError
from ...capture.dialect import find_dialect
from ...capture.values.memory import is_known_contiguous
from ...passes.shapes import ComputedShapes, computed_shape, needed_shapes
from ...trace.code_trace import CodeTrace, library_of, place_of

ATTRIBUTE = "attribute."


# --- of a call's arguments ------------------------------------------------------------------------
def _told(name: str, otherwise: Any, value: Tensor) -> Any:
    owner = owner_of(value)
    ask = None if owner is None else getattr(owner.tensors, name)
    return otherwise if ask is None else ask(value)


def requires_grad(value: Tensor) -> bool:
    """Return whether a tensor asks for a gradient, or may do so."""
    return _told("requires_grad", dtype_name(value.dtype) in FLOATS, value)


QUESTIONS: dict[str, Callable[[Tensor], Any]] = {
    # Without an answer a tensor counts as contiguous, dense, and on a CPU.
    "contiguous": partial(_told, "is_contiguous", True),
    "device_type": partial(_told, "device_type", "cpu"),
    "gradient": requires_grad,
    "strided": partial(_told, "is_strided", True),
}


def question_of(kind: str) -> Callable[[Tensor], Any] | None:
    """Return a function that answers a fact of this kind about an argument."""
    if kind.startswith(ATTRIBUTE):
        return partial(attribute_of, kind.removeprefix(ATTRIBUTE))
    return QUESTIONS.get(kind)


def answer_of_tensor(subject: str, kind: str, value: Any) -> Any:
    ask = library_of_leaf if kind == LIBRARY else question_of(kind)
    if ask is None:
        raise TraceError(f"{subject} needs {kind} of an argument in Python, which no call tells")
    found = ask(value)
    if found is None:
        raise TraceError(
            f"{subject} looks for .{kind.removeprefix(ATTRIBUTE)} of an argument, which a "
            "function sets on what it returns. On its own framework alone it is kept: call "
            "both inside one captured function"
        )
    return found


# By backend, the names of attributes that results there lack.
left_out: set[tuple[str, str]] = set()


def attribute_of(name: str, value: Tensor) -> bool | None:
    """Return whether an argument has an attribute; None: it may have lost it."""
    if hasattr(value, name):
        return True
    owner = owner_of(value)
    return None if owner is not None and (owner.name, name) in left_out else False


def library_of_leaf(value: Any) -> str:
    owner = owner_of(value)
    return "" if owner is None else owner.name


def library_so_far(libraries: Collection[str], facts: Container[str]) -> dict[str, str]:
    """Return the library of a rule's tensors where it is needed, "" unless all calls had one."""
    name = next(iter(libraries)) if len(libraries) == 1 else ""
    return {LIBRARY: name} if LIBRARY in facts else {}


def library_of_leaves(layout: Layout, leaves: Sequence[Any]) -> str:
    """Return the library of a call's tensors, "" without one."""
    first = first_tensor(layout)
    return "" if first is None else library_of_leaf(leaves[first])


def find_facts(
    subject: str, layout: Layout, leaves: Sequence[Any], needed: Sequence[str]
) -> dict[str, Any]:
    """Return these facts about a call's arguments alone."""
    gathered = gather_facts(subject, frozenset(needed), layout, leaves)
    return {fact: gathered[fact] for fact in needed}


# --- of symbols, when a function is called with them ----------------------------------------------
def answer_of_code(trace: Any, kind: str, value: Any) -> Any:
    """Return a fact about a symbol, besides type and shape, that the surrounding capture knows."""
    if kind == "device_type":
        return place_of(trace)
    if kind == LIBRARY:
        return library_of(trace)
    # A constant, or a value whose gradient is stopped, asks for none.
    is_cut = not isinstance(value, Value) or value.node.op is ops.STOP_GRADIENT
    if kind == "gradient" and is_cut:
        return False
    if kind in ("gradient", "strided"):  # the function around it drops what nobody asks for
        return True
    if kind == "contiguous":
        return isinstance(value, Value) and is_known_contiguous(value)
    return _has_attribute(trace, kind, value)


def _has_attribute(trace: CodeTrace, kind: str, value: Any) -> bool:
    name = kind.removeprefix(ATTRIBUTE)
    if not isinstance(value, Value) or name in (value.notes or {}):
        return hasattr(value, name)
    # A computed symbol has what its capture has set; the caller may have set one on an input.
    if value.node.op is not ops.INPUT:
        return False
    fact = f"{kind}:{value.node.attr('name')}"
    if fact not in trace.facts:
        raise NeedsConcrete(fact)
    return trace.facts[fact]


# --- lengths, which a framework may leave open ----------------------------------------------------
def closed(shape: Iterable[Any], unknown: int = 1) -> tuple[int, ...]:
    """Return a shape with a number for the lengths that a framework leaves open."""
    return tuple(n if isinstance(n, int) else unknown for n in shape)


def find_lengths(
    needed: frozenset[str], layout: Layout, leaves: Sequence[Any], *, unknown: int
) -> dict[str, Any]:
    """Return the shapes that facts are about, with a number for the lengths that a framework leaves
    open, as does a batch in TensorFlow; None for symbols whose shapes a capture can fix.
    """
    shapes: dict[str, Any] = {}
    for fact, kind, index in leaf_of_each(sorted(needed), layout, first_tensor(layout)):
        shapes[fact] = None
        if kind == "shape" and index is not None:
            shapes[fact] = _lengths_of(leaves[index], unknown)
    return shapes


def _lengths_of(value: Any, unknown: int) -> tuple[int, ...] | None:
    if not isinstance(value, Value):
        return closed(value.shape, unknown)
    facts, shape = value.trace.facts, known_shape(value)
    if shape is not None or facts.lengths is None:
        return shape
    needed = frozenset(needed_shapes(value.node))
    found = facts.lengths(needed, unknown=unknown)
    if None in found.values() or found == facts.lengths(needed, unknown=unknown + 1):
        return None
    return computed_shape({**facts, **found}, value.node)


# --- what a call needs besides --------------------------------------------------------------------
def asks_more(
    captures: Captures, variant: Variant | None, layout: Layout, leaves: Sequence[Any]
) -> bool:
    """Return whether a call needs facts that its code has not asked for, which are then required:
    shapes for a constant index, or the library of the tensors that names mean something of.
    """
    if variant is not None and looks_outside(captures, variant, layout, leaves):
        return True
    reads_names = variant is None or variant.reads_names
    if reads_names and _is_of_another(captures, layout, leaves):
        captures.require((LIBRARY,))
        return True
    return False


def _is_of_another(captures: Captures, layout: Layout, leaves: Sequence[Any]) -> bool:
    # Whether names in the code may mean something else for the tensors of a call.
    recipe = captures.recipe
    if isinstance(recipe.written_in, str) or LIBRARY in captures.facts:
        return False
    if any(isinstance(leaf, Value) for leaf in leaves):
        return False
    called = library_of_leaves(layout, leaves)
    return recipe.dialect(called) not in ("", called)


def looks_outside(
    captures: Captures, variant: Variant, layout: Layout, leaves: Sequence[Any]
) -> bool:
    """Return whether an open index lies outside in a call; the shape then becomes a fact."""
    for node, needed in open_indices(captures.recipe, variant).items():
        try:
            # An index that fits an axis of 1 fits any: lengths may be open, as of a batch.
            shapes = find_lengths(needed, layout, leaves, unknown=1)
            if None in shapes.values():
                shapes = gather_facts(captures.recipe.subject, needed, layout, leaves)
            computed_shape({**variant.facts, **shapes}, node)
        except IndexError:
            captures.require(needed, variant.graphs.forward.locations.get(node))
            return True
    return False


def open_indices(recipe: Recipe, variant: Variant) -> dict[Node, frozenset[str]]:
    """Return the ops with a constant index that a library moves inside, or drops, where it lies
    outside, which a variant leaves open; and the facts that tell it.
    """
    indexed = [node for node in variant.graphs.forward.nodes if node.op.name in INDEXED]
    called = variant.facts.get(LIBRARY)
    dialect = find_dialect(recipe.dialect(called)) if indexed else None
    if dialect is None or dialect.habits.outside[0] == "refused":
        return {}
    shapes = ComputedShapes({})
    needed = {node: frozenset(needed_shapes(node, shapes)) for node in indexed}
    return {node: facts for node, facts in needed.items() if not facts <= variant.facts.keys()}
