"""What a capture must leave as it was: generators, the user's objects, and no symbol outside of the
graph.

A rule is captured once and its graph runs ever after: a draw would be frozen, and an effect would
happen once, on a symbol. Neither can be seen in the graph, so it is looked for around the capture,
in what the rule's functions refer to.
"""

from __future__ import annotations

import collections
import dis
import gc
import random
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...trace.trace import Trace, Value
from .libraries import is_library_file
from .outside_tensors import tensors_of
from .table import contents, nested_codes, registered_dialects

if TYPE_CHECKING:
    from typing_extensions import Self

OWN = __name__.partition(".")[0]
MOST_ITEMS = 4096  # of one container; what is longer is known by its length
MOST_OBJECTS = 256
DEPTH = 3
CONTAINERS = (list, dict, set, collections.deque, bytearray)
# In which a module of torch has its tensors: ordered before torch 2.5.
DICTS = (dict, collections.OrderedDict)
State = tuple[Callable[[], Any], Callable[[Any], None], Any]


class Witness:
    """What was there before a capture, and how to put it back."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.names: set[str] = set()
        self.moved = False  # a generator has drawn
        self.may_keep = False  # the functions hand something to what outlives them
        self.made: list[weakref.ref[Value]] = []  # all symbols
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._variable = ""
        self._owners: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._cells: dict[int, tuple[types.CellType, Any]] = {}
        self._namespaces: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._generators: dict[int, State] = {}
        self.see_generators()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None or kind.__module__.partition(".")[0] == OWN:
            self.moved, change, read = self.drew(), self.changed(), self._state()
        else:  # the user's own error: what had happened before it has happened
            change = read = ""
        for held in (self._namespaces, self._cells, self._owners, self._containers):
            held.clear()  # they lead to copies of functions, which may lead to symbols
        if kind is not None:
            return
        if change:
            advice = self.trace.words.advise("return what is to be kept")
            raise self.trace.error(f"{change}, which a graph does not do{advice}")
        if read:
            raise self.trace.error(
                f"reads {read}, which may change between calls. Make it {self.trace.words.param}, "
                "or a NumPy array, whose values are taken once"
            )

    # --- what is looked at ------------------------------------------------------------------------
    def see(self, function: types.FunctionType, names: Iterable[str]) -> None:
        """Remember what a function of the user's refers to, as it is now."""
        self.names.update(names)
        self.trace.sources.update((id(value), fact) for value, fact in tensors_of(function))
        self.may_keep |= any(map(may_keep, nested_codes(function.__code__)))
        for cell in function.__closure__ or ():
            self._cells.setdefault(id(cell), (cell, contents(cell)))
        referred = [function.__globals__.get(name) for name in names]
        held = [contents(cell) for cell in function.__closure__ or ()]
        own = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for value in (*referred, *held, *own):
            if self.trace.kind == "rule" and hasattr(type(value), "assign") and is_state(value):
                self._variable = "a variable from outside"
            self.see_value(value)

    def see_namespace(self, namespace: dict[str, Any]) -> None:
        """Remember the globals of a copied function, which are a copy as well."""
        self._namespaces.append((namespace, dict(namespace)))

    def see_value(self, value: Any, depth: int = 0) -> None:
        """Remember a value that can change, and what can be reached from it by the names that are
        mentioned.
        """
        known = len(self._containers) + len(self._owners)
        if id(value) in (self._containers | self._owners) or known > MOST_OBJECTS or depth > DEPTH:
            return
        if is_generator(value):
            self.see_generator(value)
        elif isinstance(value, CONTAINERS):
            self._containers[id(value)] = value, _items(value)
            inner = value.values() if isinstance(value, dict) else value
            if len(value) <= 64 and not isinstance(value, bytearray):
                for each in list(inner):
                    self.see_value(each, depth + 1)
        elif has_state(value):
            self._owners[id(value)] = value, dict(vars(value))
            for name, each in list(vars(value).items()):
                if name in self.names or isinstance(each, CONTAINERS):
                    self.see_value(each, depth + 1)

    def see_generators(self) -> None:
        """Remember the states of those that are drawn from without a name."""
        for generator in global_generators():
            self.see_generator(generator)

    def see_generator(self, generator: Any) -> None:
        """Remember the state of a generator of random numbers."""
        if id(generator) not in self._generators:
            read, write = _access(generator)
            self._generators[id(generator)] = read, write, read()

    def _state(self) -> str:
        """Return in words which tensor of an object the rule's functions mention, "" for none."""
        for owner, _ in self._owners.values():
            if isinstance(owner, type | types.ModuleType):
                continue
            own = vars(owner)
            held = [own, *(each for each in own.values() if type(each) in DICTS)]
            for name in sorted(self.names):
                if any(is_state(each.get(name)) for each in held):
                    return f"{name!r} of {_shown(owner)}, a tensor"
        return self._variable

    # --- what has changed -------------------------------------------------------------------------
    def drew(self) -> bool:
        """Return whether a generator has moved on, and put it back."""
        moved = False
        for read, write, before in self._generators.values():
            if not _same_state(read(), before):
                write(before)
                moved = True
        return moved

    def changed(self) -> str:
        """Return in words what has changed outside of the graph, "" for nothing; put it back."""
        found = [self._restore_names(), self._restore_cells()]
        found += [self._restore_attributes(), self._restore_containers()]
        return next((each for each in found if each), "")

    def _restore_names(self) -> str:
        for now, before in self._namespaces:
            for name, value in now.items():
                if name == "__warningregistry__":  # Python notes there which warnings it has shown
                    continue
                if name not in before or before[name] is not value:
                    return f"assigns to the global {name!r}"
        return ""

    def _restore_cells(self) -> str:
        found = ""
        for cell, before in self._cells.values():
            now = contents(cell)
            if before is not None and now is not before:
                cell.cell_contents = before
                found = "assigns to a name of the function around it (nonlocal)"
        return found

    def _restore_attributes(self) -> str:
        found = ""
        for owner, before in self._owners.values():
            now = dict(vars(owner))
            for name in {*now, *before}:
                # A cache, perhaps, unless it holds a symbol or hides the class's own.
                is_new = name not in before
                hides = hasattr(getattr(type(owner), name, None), "__get__") is False
                hides = hides and hasattr(type(owner), name)
                if is_new and (hides or isinstance(now[name], Value)):
                    delattr(owner, name)
                elif is_new or now.get(name) is before[name]:
                    continue
                else:
                    setattr(owner, name, before[name])
                found = f"assigns to the attribute {name!r} of {_shown(owner)}"
        return found

    def _restore_containers(self) -> str:
        found = ""
        for container, before in self._containers.values():
            now = _items(container)
            if not _same_items(now, before):
                found = f"changes a {type(container).__name__} from outside of it"
                _refill(container, before)
        return found

    def check_left(self) -> None:
        """Look for symbols that are kept outside of the graph, when the capture itself holds none.

        Raises:
            TraceError: there is one.
        """
        for generation, seconds in ((1, 0.0), (2, 0.0), (2, 0.02), (2, 0.1)):
            if not self._is_left():
                return
            time.sleep(seconds)  # a search that is at work in another thread lets ours find nothing
            gc.collect(generation)  # it may be in a cycle
        if self._is_left():
            raise self.trace.error(
                "keeps a symbolic tensor outside of it, where the real one is expected"
                f"{self.trace.words.advise('return what is to be kept')}"
            )

    def _is_left(self) -> bool:
        return self.may_keep and any(ref() is not None for ref in self.made)


KEEPING = {
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
STORING = frozenset(
    dis.opmap[name] for name in ("STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL", "STORE_SUBSCR")
)


def may_keep(code: types.CodeType) -> bool:
    """Return whether code may hand a value to an object; most rules do not, and to look is slow."""
    # Without it no proof finds test_what_keeps_a_tensor_out_of_sight_keeps_the_real_one.
    if KEEPING.intersection(code.co_names):
        return True
    return not STORING.isdisjoint(code.co_code[::2])  # to decode each instruction takes long


def global_generators() -> Iterator[Any]:
    """Yield the generators drawn from without a name, of Python and of the libraries in use."""
    yield random
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield numpy.mtrand._rand
    for dialect in registered_dialects().values():
        if dialect.generators is not None:
            yield from dialect.generators()


def is_generator(value: Any) -> bool:
    """Return whether a value draws random numbers and tells its state."""
    kind = type(value)  # of a class or a module: it is none
    return (
        isinstance(value, random.Random)
        or hasattr(kind, "bit_generator")
        or (hasattr(kind, "get_state") and hasattr(kind, "set_state"))
    )


def _access(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return what reads and what writes a generator's state."""
    if hasattr(generator, "getstate"):
        return generator.getstate, generator.setstate
    if hasattr(generator, "get_state"):
        return generator.get_state, generator.set_state
    bits = generator.bit_generator
    return lambda: bits.state, lambda state: setattr(bits, "state", state)


def _same_state(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and type(a[-1]) in (int, float, type(None)) and isinstance(a[1], tuple):
        return a == b  # Python's own, of 625 numbers
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_same_state, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same_state(a[key], b[key]) for key in a)
    return bool((a == b).all()) if hasattr(a, "shape") else a == b


def is_state(value: Any) -> bool:
    """Return whether a value is a library's tensor or variable; NumPy's arrays are taken."""
    if issubclass(type(value), Value):  # in place of a tensor that is an input
        return False
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return False
    root = type(value).__module__.partition(".")[0].removesuffix("lib")
    return root != "numpy" and (
        root in registered_dialects() or issubclass(type(value), _tensor_classes())
    )


def _tensor_classes() -> tuple[type, ...]:
    return tuple(d.tensor for name, d in registered_dialects().items() if name != "numpy")


def has_state(value: Any) -> bool:
    """Return whether a value is the user's own object, class or module, with attributes."""
    if isinstance(value, types.FunctionType | Value):
        return False
    kind = value if isinstance(value, type) else type(value)
    module = value if isinstance(value, types.ModuleType) else sys.modules.get(kind.__module__)
    if module is None or is_library_file(getattr(module, "__file__", None)):
        return False
    is_own = module.__name__.partition(".")[0] == OWN
    return not is_own and hasattr(value, "__dict__")


def _shown(owner: Any) -> str:
    """Return an object in words."""
    if isinstance(owner, type | types.ModuleType):
        return owner.__name__
    return f"a {type(owner).__name__}"


def _items(container: Any) -> Any:
    """Return what a container holds."""
    if len(container) > MOST_ITEMS:
        return len(container)
    return dict(container) if isinstance(container, dict) else list(container)


def _same_items(a: Any, b: Any) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return a == b if isinstance(a, int) and isinstance(b, int) else False
    if len(a) != len(b):
        return False
    if isinstance(a, dict):
        return all(x is y for x, y in zip(a, b, strict=True)) and all(a[k] is b[k] for k in a)
    return all(x is y for x, y in zip(a, b, strict=True))


def _refill(container: Any, items: Any) -> None:
    """Put back what a container held."""
    if isinstance(items, int):
        while isinstance(container, list) and len(container) > items:
            container.pop()
        return
    if isinstance(container, list | bytearray):
        container[:] = items
    else:
        container.clear()
        (container.extend if isinstance(container, collections.deque) else container.update)(items)
