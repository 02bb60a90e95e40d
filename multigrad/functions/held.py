"""Functions of an object: a module, a layer, anything with `__call__`, a method of one, or a plain
function that calls one.

What the object holds is read at each call (`capture/state.py`): its tensors are hidden arguments,
so that weights are never stale, and carry gradients where they are the call's own framework's. On
that framework the object itself is called, unless that was ruled out.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from ..backend.contract import Backend
from ..backend.finding.discovery import FUNCTION_READERS
from ..capture.code.callables import plain_function, wrapped_function
from ..capture.code.readings import written_in
from ..capture.code.signature import called_method, name_of
from ..capture.code.state import OWN, Filled, State, held_by, is_open, read_state
from ..capture.code.table import registered_dialects
from ..capture.copies.capture import run_or_import
from ..errors import FormatError, TraceError
from ..graph.support.data import dataclass
from ..graph.support.threads import build_once
from ..graph.support.trees import optree
from ..trace.scope.draws import FREE
from ..trace.trace import Trace, Value, copy_of
from .calls.arguments import flatten, owner_of, signature_of, unwrap
from .calls.binding import Entry
from .calls.recipe import Recorded
from .custom_gradient import library_of, named_library
from .entries import MOST_ENTRIES, kind_of
from .function import Function
from .recipes.record import CodeRecipe

Tensor = Any
# The hidden argument: it sorts behind all others.
STATE = "~"
HOOKS = ("_forward_hooks", "_forward_pre_hooks")  # of a module


def owner_of_method(function: Any) -> Any:
    """Return the object whose state a callable reads, None where it is none of the kind."""
    if isinstance(function, types.MethodType):
        owner = function.__self__
    elif isinstance(function, types.FunctionType):
        return function
    elif wrapped_function(function) is not None:
        return None
    else:
        owner = function
    if plain_function(function) is None or type(owner).__module__.startswith(OWN):
        return None
    return owner if is_open(owner) else None


def holds_state(function: Any) -> bool:
    """Return whether what a callable computes depends on what an object holds: its own, or, of a
    plain function, an object with tensors that its names stand for.
    """
    if isinstance(function, types.FunctionType):
        return bool(read_state(function).tensors)
    return owner_of_method(function) is not None


@dataclass(frozen=True, slots=True, eq=False)
class HeldRecipe(CodeRecipe):
    """An object, or a method of one, whose tensors are hidden arguments."""

    function: Callable[..., Any]
    name: str
    native: bool | None = None
    library: str = ""
    backward: None = None

    @property
    def owner(self) -> Any:
        """The object."""
        return owner_of_method(self.function)

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of what does the work."""
        return signature_of(called_method(self.function))

    def dialect(self) -> str:
        """Return the library that it is written in, "" where it is written for all."""
        if self.library:
            return named_library(self.library)
        return read_state(self.owner).home or library_of(called_method(self.function))

    def functions(self) -> tuple[Any, ...]:
        return (self.function,)

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        state, given, kwargs = self._split(kwargs)
        trace.looks_into = False  # they are among the arguments
        made = len(trace.witness.made)
        symbols = {name: copy_of(symbol) for name, symbol in given.items()}
        filled = Filled(self.owner, state, symbols)
        filled.mention(trace)
        held = slice(made, len(trace.witness.made))
        called, library = self._of(filled), self.library or state.home
        route = trace.routes.get(library)
        if is_intercepted(called):
            with written_in(trace, (library,)):
                outputs = called(*args, **kwargs)
        else:
            whole = (self._call_with, (given, *args)) if given else None
            # Hooks run around the method, in what calls it.
            hooks = (getattr(called, name, None) for name in HOOKS)
            method = called if any(hooks) else called_method(called)
            outputs = run_or_import(library, method, trace, args, kwargs, whole=whole)
        for name, symbol in symbols.items():
            if symbol.node is not given[name].node:
                raise trace.error(
                    f"updates {name!r} of a {type(self.owner).__name__} in place, which a graph "
                    "does not do. A module in training may: call its .eval() first"
                )
        self._check(filled, trace)
        if route != trace.routes.get(library):  # caches of the library may hold what it refused
            del trace.witness.made[held]
        return Recorded(outputs, None)

    def _call_with(self, given: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Call the object with other tensors in place of its own."""
        return self._of(Filled(self.owner, read_state(self.owner), given))(*args, **kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        state, given, kwargs = self._split(kwargs)
        now = {name: held_by(own) for name, own in state.tensors.items()}
        if all(given.get(name, own) is own for name, own in now.items()):
            return Recorded(self.function(*args, **kwargs), None)
        filled = Filled(self.owner, state, given)
        outputs = self._of(filled)(*args, **kwargs)
        self._check(filled, None)
        return Recorded(outputs, None)

    def _split(self, kwargs: dict[str, Any]) -> tuple[State, dict[str, Any], dict[str, Any]]:
        """Return the object's state now, the tensors to be in place of its own, and the user's own
        arguments.
        """
        given = {name: held for name, held in kwargs.get(STATE, {}).items() if name}
        own = {name: held for name, held in kwargs.items() if name != STATE}
        return read_state(self.owner), given, own

    def _of(self, filled: Filled) -> Any:
        """Return the copy of the object, or its method."""
        method = self.function
        is_call = isinstance(method, types.MethodType) and method.__name__ == "call"
        if isinstance(method, types.MethodType) and not (is_call and is_intercepted(filled.copy)):
            return types.MethodType(method.__func__, filled.copy)
        return filled.copy

    def _check(self, filled: Filled, trace: Trace | None) -> None:
        """Refuse what the object would keep."""
        change = filled.changed()
        if change and trace is not None:
            raise trace.error(f"{change}, which a graph does not do")
        if change:
            raise TraceError(f"function {self.name!r} {change}, which only the object itself does")


def is_intercepted(called: Any) -> bool:
    """Return whether a library's objects come to us when they are called with symbols."""
    keepers = (dialect.keeps for dialect in registered_dialects().values())
    return any(keeps is not None and keeps(called) for keeps in keepers)


class Structure:
    """Stands for all that an object holds beside its tensors, among the arguments of a call."""

    __slots__ = ("__weakref__",)


class OfObject(Function):
    """A Function whose hidden arguments are the tensors that an object holds."""

    def __init__(
        self, function: Callable[..., Any], native: bool | None, library: str, prove: bool
    ) -> None:
        recipe = HeldRecipe(function, name_of(function), native, library)
        super().__init__(recipe, called_method(function), prove)
        self._called = function
        self._structures: dict[Any, Structure] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other = super().__deepcopy__(memo)
        other._called, other._structures = other.recipe.function, {}
        return other

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs for the arguments and for what the object holds now."""
        if any(is_reading() for is_reading, _, _ in FUNCTION_READERS):
            return self._called(*args, **kwargs)  # whose state a compiler guards
        return self._apply(args, kwargs)

    def _apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs, where no compiler reads along."""
        if self.native is not False and self.draws is FREE:
            leaves = [unwrap(leaf) for leaf in flatten(args, kwargs)[0]]
            given = {owner.name for leaf in leaves if (owner := owner_of(leaf)) is not None}
            is_symbolic = any(isinstance(leaf, Value) for leaf in leaves)
            if not is_symbolic and given == {read_state(self._owner).home}:
                return self._called(*args, **kwargs)
        return self._apply_any(args, kwargs, None)

    def to_dict(self) -> dict[str, Any]:
        """Refuse: a document holds no object.

        Raises:
            FormatError: always.
        """
        raise FormatError(
            f"function {self.name!r} reads the tensors of an object at each call, which no "
            "document holds. Make a function that takes them as arguments"
        )

    @property
    def original(self) -> Callable[..., Any]:
        """The object, its method, or the function that calls it."""
        return self._called

    @property
    def _owner(self) -> Any:
        return owner_of_method(self._called)

    @property
    def _completes(self) -> bool:
        """Whether calls leave arguments out: those of the object."""
        return True

    def _complete(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Sequence[Any], Any]:
        """Return the leaves of a call with those of the object, and their nesting."""
        args, kwargs = optree.tree_unflatten(tree, leaves)
        if STATE in kwargs:
            return leaves, tree
        state = read_state(self._owner)
        owners = (owner_of(leaf) for leaf in leaves if not isinstance(leaf, Value))
        backend = next((owner for owner in owners if owner is not None), None)
        held = {name: on_backend(backend, held_by(own)) for name, own in state.tensors.items()}
        return flatten(args, {**kwargs, STATE: {"": self._structure(state), **held}})

    def _structure(self, state: State) -> Structure:
        """Return what stands for a structure, always the same for one."""
        if len(self._structures) >= MOST_ENTRIES:
            self._structures.clear()
        return self._structures.setdefault(state.key, Structure())

    def _find_entry(self, leaves: Sequence[Any], tree: Any, key: Any) -> Entry:
        structure = self._structure(read_state(self._owner))
        key = (tree, structure, tuple(kind_of(leaf) for leaf in leaves))
        if None in key[2]:
            return self._build(leaves, tree)
        return self._entries.get(key) or build_once(
            self._entries, key, lambda: self._build(leaves, tree), MOST_ENTRIES
        )


def on_backend(backend: Backend | None, tensor: Tensor) -> Tensor:
    """Return a tensor on a call's framework; there, one of another is a constant."""
    own = owner_of(tensor)
    if backend is None or own is None or own is backend:
        return tensor
    return backend.tensors.from_numpy(own.tensors.to_numpy(tensor))
