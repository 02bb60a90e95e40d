"""What a capture must leave unchanged: generators, the user's objects and names.

A rule is captured once and its graph runs ever after: a draw would be frozen, and an effect would
happen once, on a symbol. The graph shows neither, so a `Witness` looks for both around the capture,
in the objects that the rule's functions refer to; no symbol may stay outside the graph either.
Tested by tests/capture/user_code/test_capture_effects.py.
"""

from __future__ import annotations

import collections
import dis
import gc
import time
import types
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from ...trace.identity import attributes_of
from ...trace.trace import Trace, Value
from ..user_code.inspection import contents, nested_codes, tensors_of
from ..user_code.snapshot import FIXED, Snapshot, has_state, is_state, referred, shown

if TYPE_CHECKING:
    from typing_extensions import Self

OWN = __name__.partition(".")[0]
# The classes in which a torch module holds its tensors: ordered before torch 2.5.
DICTS = (dict, collections.OrderedDict)


# Methods by which an object stores a value.
STORING_METHODS = {
    "add",
    "append",
    "appendleft",
    "extend",
    "insert",
    "put",
    "put_nowait",
    "send",
    "set",
    "setattr",
    "setdefault",
    "update",
}
STORING_INSTRUCTIONS = frozenset(
    dis.opmap[name] for name in ("STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL", "STORE_SUBSCR")
)


def may_store(code: types.CodeType) -> bool:
    """Return whether code may hand a value to an object; most rules do not, and to look is slow."""
    # Guarded by test_what_keeps_a_tensor_out_of_sight_keeps_the_real_one in
    # tests/capture/user_code/test_capture_effects.py.
    if STORING_METHODS.intersection(code.co_names):
        return True
    # the bytes themselves: decoding the instructions is slow
    return not STORING_INSTRUCTIONS.isdisjoint(code.co_code[::2])


class Witness:
    """The state before a capture, and how to restore it.

    Attributes:
        outside: the objects that the functions refer to, as they were.
        may_store_symbols: whether the functions may store a value in an object that outlives them.
        made: all symbols of the capture.
    """

    def __init__(
        self, trace: Trace, functions: Iterable[Any] = (), values: Iterable[Any] = ()
    ) -> None:
        self.trace = trace
        self.outside = Snapshot()
        self.may_store_symbols = False
        self.made: list[weakref.ref[Value]] = []
        self._variable = ""
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
        read = "" if is_users_own_error else self._tensor_read_from_object()
        self._namespaces.clear()  # they refer to copies of functions, which may refer to symbols
        self._cells.clear()
        self.outside.clear()
        if kind is not None:
            self.outside.drop_added()
            return
        if change:
            self.outside.drop_added()
            advice = self.trace.words.advise("return what is to be kept")
            raise self.trace.error(f"{change}, which a graph does not do{advice}")
        if read:
            raise self.trace.error(
                f"reads {read}, which may change between calls. Make it {self.trace.words.param}, "
                "or a NumPy array, whose values are taken once"
            )

    # --- before -----------------------------------------------------------------------------------
    def see(self, function: types.FunctionType, names: Iterable[str]) -> None:
        """Remember the state that a function of the user's refers to."""
        self.trace.memory.outside.update((id(value), fact) for value, fact in tensors_of(function))
        self.may_store_symbols |= any(map(may_store, nested_codes(function.__code__)))
        for cell in function.__closure__ or ():
            self._cells.setdefault(id(cell), (cell, contents(cell)))
        for value in referred(function, names) if self.trace.kind == "rule" else ():
            if hasattr(type(value), "assign") and is_state(value):
                self._variable = "a variable from outside"
        self.outside.see_function(function, names)
        if self.outside.used_up:
            self._refuse_used_up()

    def see_value(self, value: Any) -> None:
        """Remember a value that can change."""
        self.outside.see(value)
        if self.outside.used_up:
            self._refuse_used_up()

    def see_namespace(self, namespace: dict[str, Any]) -> None:
        """Remember the globals of a copied function, which are a copy as well."""
        self._namespaces.append((namespace, dict(namespace)))

    def _refuse_used_up(self) -> NoReturn:
        # An iterator that a run has advanced cannot be put back.
        problem = f"refers to {self.outside.used_up}, and a graph would not"
        raise self.trace.error(f"{problem}{self.trace.words.advise('give it what comes')}")

    def _tensor_read_from_object(self) -> str:
        # The tensor of an object that the rule's functions mention, in words; "" for none.
        # Tensors that are among the arguments are in copies, which are seen later.
        first = 0 if self.trace.source.looks_into else self._first
        for owner, _ in self.outside.owners[first:]:
            if isinstance(owner, FIXED) or not has_state(owner):
                continue
            attributes = dict(attributes_of(owner))
            mappings = [attributes, *(each for each in attributes.values() if type(each) in DICTS)]
            for name in sorted(self.outside.names):
                if any(is_state(each.get(name)) for each in mappings):
                    return f"{name!r} of {shown(owner)}, a tensor"
        return self._variable

    # --- after ------------------------------------------------------------------------------------
    def restore_and_describe_change(self) -> str:
        """Restore the state, and return in words what had changed, "" for nothing."""
        changes = [self._assigned_global(), self._restore_cells()]
        self.outside.restore()
        return next((each for each in (*changes, self.outside.change) if each), "")

    def _assigned_global(self) -> str:
        for now, before in self._namespaces:
            for name, value in now.items():
                if name == "__warningregistry__":  # Python notes there which warnings it has shown
                    continue
                if name not in before or before[name] is not value:
                    return f"assigns to the global {name!r}"
        return ""

    def _restore_cells(self) -> str:
        change = ""
        for cell, before in self._cells.values():
            now = contents(cell)
            if before is not None and now is not before:
                cell.cell_contents = before
                change = "assigns to a name of the function around it (nonlocal)"
        return change

    def refuse_escaped_symbols(self) -> None:
        """Look for symbols that are kept outside the graph, when the capture itself holds none.

        Raises:
            TraceError: there is one.
        """
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
