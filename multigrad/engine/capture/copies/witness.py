"""`Witness`: looks for effects of code around its capture that the graph would not have; and the
numbers and symbols in a graph that did not come from the code.

Tests: tests/capture/user_code/test_capture_effects.py.
"""

from __future__ import annotations

import collections
import gc
import math
import time
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Self

from ....core import ops
from ....core.ir.graph import Graph, every_node
from ....core.trace.source import OWN
from ....core.trace.trace import Value
from ...trace.code_trace import CodeTrace
from ...trace.contents import attributes_of
from ..user_code.inspection import contents, may_store, nested_codes, tensors_of
from ..user_code.snapshot import FIXED, Snapshot, has_state, is_state, shown

# Symbols that an error of a library may name: it needs the real thing, so the capture is repeated
# with this fact.
OPAQUE = {"SymbolicDType": "dtype", "SymbolicShape": "shape", "SymbolicDevice": "device"}


def has_number_from_elsewhere(
    graphs: Iterable[Graph], trace: CodeTrace, static: Mapping[str, Any]
) -> bool:
    """Return whether a graph holds a float that the captured source does not contain.

    It may come from a global or from arithmetic; but a draw is one too, and must not be frozen.
    """
    has_array = ops.ARRAY in {node.op for graph in graphs for node in every_node(graph)}
    return has_array or bool(numbers_from_elsewhere(graphs, trace, static))


def numbers_from_elsewhere(
    graphs: Iterable[Graph], trace: CodeTrace, static: Mapping[str, Any]
) -> set[float]:
    """Return the floats of graphs that the source does not contain, without their signs."""
    nodes = [node for graph in graphs for node in every_node(graph)]
    constants = [node.attr("value") for node in nodes if node.op is ops.CONST]
    codes = [code.co_consts for code in trace.source.codes]
    literals = _numbers((*trace.facts.values(), *static.values(), *trace.source.numbers, *codes))
    foreign = _numbers(constants) - literals - {0.0, 1.0}
    if math.inf in foreign:  # `clamp(min=0)` records an infinite limit for the open side
        infinite = {n for n in nodes if n.op is ops.CONST and abs(n.attr("value")) == math.inf}
        users = [node.op for node in nodes if not infinite.isdisjoint(node.operands)]
        foreign -= {math.inf} if {*users} == {ops.CLIP} else set()
    return foreign


def _numbers(values: Iterable[Any]) -> set[float]:
    magnitudes: set[float] = set()
    for value in values:
        if isinstance(value, tuple):
            magnitudes |= _numbers(value)
        elif isinstance(value, float):
            magnitudes.add(abs(value))
    return magnitudes


def find_opaque(trace: CodeTrace, error: Exception) -> str:
    """Return the fact that replaces the symbol which a library could not take, "" for none."""
    word = next((word for word in OPAQUE if word in str(error)), "")
    if not word and trace.facts.gives_dtype and isinstance(error, TypeError):
        return "dtype"  # not every message shows its argument
    return OPAQUE[word] if word else ""


# --- what a capture must leave unchanged ----------------------------------------------------------
# In which a torch module holds its tensors: ordered before torch 2.5.
DICTS = (dict, collections.OrderedDict)


class Witness:
    """The state before a capture, and how to restore it.

    A graph runs ever after: a draw would be frozen, and an effect would happen once, on a symbol.
    The graph shows neither, so both are looked for around the capture, in the objects that the
    code refers to; no symbol may stay outside the graph either.

    Attributes:
        outside: the objects that the functions refer to, as they were.
        may_store_symbols: whether the functions may store a value in an object that outlives them.
        made: all symbols of the capture.
        substitutions: those that made copies for it, which are released at its end.
    """

    def __init__(
        self, trace: CodeTrace, functions: Iterable[Any] = (), values: Iterable[Any] = ()
    ) -> None:
        self.trace = trace
        self.outside = Snapshot()
        self.may_store_symbols = False
        self.made: list[weakref.ref[Value]] = []
        self.substitutions: list[Any] = []
        self._cells: dict[int, tuple[types.CellType, Any]] = {}
        self._namespaces: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.outside.see_all(functions, values)
        self._first = len(self.outside.owners)

    def __enter__(self) -> Self:
        if self.outside.used_up:
            self.outside.restore()
        self._refuse_used_up()
        return self

    @property
    def is_suspect(self) -> bool:
        """Whether it drew a number or set a new attribute, so that another run may differ."""
        return self.outside.moved or bool(self.outside.new_attributes)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        # The user's own error ends the call, and its effects remain, as without a capture. A class
        # runs once more unconverted, so its effects are undone.
        is_users_own_error = (
            kind is not None
            and kind.__module__.partition(".")[0] != OWN
            and self.trace.kind != "imported function"
        )
        change = "" if is_users_own_error else self.restore_and_describe_change()
        words = "" if is_users_own_error else self._tensor_read_from_object()
        self._namespaces.clear()  # they refer to copies of functions, which may refer to symbols
        self._cells.clear()
        for substitution in self.substitutions:
            substitution.clear()
        self.outside.clear()
        if kind is not None:
            self.outside.drop_added()
            return
        if change:
            self.outside.drop_added()
            advice = self.trace.words.advise("return what is to be kept")
            raise self.trace.error(f"{change}, which a graph does not do{advice}")
        if words:
            raise self.trace.error(
                f"reads {words}, which may change between calls. Make it {self.trace.words.param}, "
                "or a NumPy array, whose values are taken once"
            )

    # --- before -----------------------------------------------------------------------------------
    def see(self, function: types.FunctionType) -> None:
        """Remember the state that a function of the user's refers to."""
        self.trace.memory.outside.update((id(value), fact) for value, fact in tensors_of(function))
        self.may_store_symbols |= any(map(may_store, nested_codes(function.__code__)))
        for cell in function.__closure__ or ():
            self._cells.setdefault(id(cell), (cell, contents(cell)))
        self.outside.see_function(function)
        self._refuse_used_up()

    def see_value(self, value: Any) -> None:
        self.outside.see(value)
        self._refuse_used_up()

    def see_namespace(self, namespace: dict[str, Any]) -> None:
        """Remember the globals of a copied function, which are a copy as well."""
        self._namespaces.append((namespace, dict(namespace)))

    def _refuse_used_up(self) -> None:
        # An iterator that a run has advanced cannot be put back.
        if self.outside.used_up:
            problem = f"refers to {self.outside.used_up}, and a graph would not"
            raise self.trace.error(f"{problem}{self.trace.words.advise('give it what comes')}")

    def _tensor_read_from_object(self) -> str:
        # The tensor of an object that the rule's functions mention, in words; "" for none.
        # Tensors that are among the arguments are in copies, which are seen later.
        start = 0 if self.trace.source.looks_into else self._first
        for owner, _ in self.outside.owners[start:]:
            if isinstance(owner, FIXED) or not has_state(owner):
                continue
            attributes = dict(attributes_of(owner))
            mappings = [attributes, *(each for each in attributes.values() if type(each) in DICTS)]
            for name in sorted(self.outside.names):
                if any(is_state(each.get(name)) for each in mappings):
                    return f"{name!r} of {shown(owner)}, a tensor"
        return ""

    # --- after ------------------------------------------------------------------------------------
    def restore_and_describe_change(self) -> str:
        """Restore the state, and return in words what had changed, "" for nothing."""
        assignment = ""
        for cell, content in self._cells.values():
            if content is not None and contents(cell) is not content:
                cell.cell_contents = content
                assignment = "assigns to a name of the function around it (nonlocal)"
        self.outside.restore()
        return self._assigned_global() or assignment or self.outside.change

    def _assigned_global(self) -> str:
        for namespace, namespace_before in self._namespaces:
            for name, value in namespace.items():
                if name == "__warningregistry__":  # Python notes there which warnings it has shown
                    continue
                if name not in namespace_before or namespace_before[name] is not value:
                    return f"assigns to the global {name!r}"
        return ""

    def refuse_escaped_symbols(self) -> None:
        """Raise TraceError for a symbol outside the graph, once the capture itself holds none."""
        # Cheap collections first; the pauses are for a collector at work in another thread.
        for generation, seconds in ((1, 0.0), (2, 0.0), (2, 0.02), (2, 0.1)):
            if not self._has_escaped():
                return
            time.sleep(seconds)  # a collection at work in another thread makes ours find nothing
            gc.collect(generation)  # a symbol in a reference cycle
        if self._has_escaped():
            raise self.trace.error(
                "keeps a symbolic tensor outside it, where the real one is expected"
                f"{self.trace.words.advise('return what is to be kept')}"
            )

    def _has_escaped(self) -> bool:
        return self.may_store_symbols and any(ref() is not None for ref in self.made)
