"""Functions of objects that hold tensors: a module, a layer, anything with `__call__`, a method.

Plain functions that call such an object are among them. Its tensors are hidden arguments
(`hidden_tensors.py`), and carry gradients where they are tensors of the call's own framework. On
that framework the object itself is called, unless that was ruled out; elsewhere its tensors are
constants.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from ..backend.discovery import FUNCTION_READERS
from ..capture.copies.run_or_import import run_or_import
from ..capture.dialect import registered_dialects
from ..capture.user_code.libraries import written_in
from ..capture.user_code.object_copies import FilledCopy
from ..capture.user_code.object_state import held_by, read_state
from ..capture.user_code.signature import called_method, name_of
from ..errors import FormatError, TraceError
from ..trace.active_rules import FREE
from ..trace.trace import Trace, Value, copy_of
from .calls.arguments import flatten, owner_of, unwrap
from .calls.recipe import Options, Recipe, Recorded, library_of
from .calls.signatures import signature_of
from .function import Function
from .hidden_tensors import (
    HiddenTensors,
    owner_of_method,
    refuse_updates,
    split_hidden,
)

HOOKS = ("_forward_hooks", "_forward_pre_hooks")  # of a module


class ObjectFunction(Function):
    """A Function whose hidden arguments are the tensors that an object holds."""

    completion: HiddenTensors

    def __init__(
        self, function: Callable[..., Any], native: bool | None, library: str, prove: bool
    ) -> None:
        recipe = recipe_of_object(function, name_of(function), native=native, library=library)
        completion = HiddenTensors(function)
        super().__init__(recipe, called_method(function), prove, completion)
        completion.parameters = self.parameters

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(is_reading() for is_reading, _, _ in FUNCTION_READERS):
            return self.original(*args, **kwargs)  # whose state a compiler guards
        return self._apply(args, kwargs)

    def _apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # On the object's own framework the object itself runs, whatever it does besides.
        if self.native is not False and self.draws is FREE:
            leaves = [unwrap(leaf) for leaf in flatten(args, kwargs)[0]]
            homes = {owner.name for leaf in leaves if (owner := owner_of(leaf)) is not None}
            is_symbolic = any(isinstance(leaf, Value) for leaf in leaves)
            if not is_symbolic and homes == {read_state(owner_of_method(self.original)).home}:
                return self.original(*args, **kwargs)
        return self._apply_any(args, kwargs, None)

    def to_dict(self) -> dict[str, Any]:
        """Raise: no document holds an object.

        Raises:
            FormatError: always.
        """
        raise FormatError(
            f"function {self.name!r} reads the tensors of an object at each call, which no "
            "document holds. Make a function that takes them as arguments"
        )

    @property
    def original(self) -> Callable[..., Any]:
        return self.completion.called


def recipe_of_object(
    function: Callable[..., Any], name: str, *, native: bool | None = None, library: str = ""
) -> Recipe:
    """Return the recipe of an object, or of a method of one, whose tensors are hidden arguments.

    Args:
        library: what its author says that it is written in.
    """
    owner, method = owner_of_method(function), called_method(function)

    def home() -> str:
        known = "" if library else read_state(owner).home
        return known or library_of(method, said=library)

    def record(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return _record_object(function, library, trace, args, kwargs)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        kwargs, held = split_hidden(kwargs)
        state = read_state(owner)
        now = {name: held_by(each) for name, each in state.tensors.items()}
        if all(held.get(name, each) is each for name, each in now.items()):
            return Recorded(function(*args, **kwargs), None)
        filled = FilledCopy(owner, state, held)
        outputs = _method_of(function, filled)(*args, **kwargs)
        change = filled.changed()
        if change:
            raise TraceError(f"function {name!r} {change}, which only the object itself does")
        return Recorded(outputs, None)

    def copied(copy: Callable[[Any], Any]) -> Recipe:
        return recipe_of_object(copy(function), name, native=native, library=library)

    return Recipe(
        name,
        run,
        record,
        functions=(function,),
        written_in=home,
        signature=signature_of(method),
        is_derived=True,
        copied=copied,
        options=Options(native=native),
    )


def _record_object(
    function: Callable[..., Any],
    said: str,
    trace: Trace,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Recorded:
    kwargs, hidden = split_hidden(kwargs)
    owner = owner_of_method(function)
    state = read_state(owner)
    trace.source.looks_into = False  # they are among the arguments
    made = len(trace.source.witness.made)
    symbols = {name: copy_of(symbol) for name, symbol in hidden.items()}
    filled = FilledCopy(owner, state, symbols)
    filled.mention(trace)
    held = slice(made, len(trace.source.witness.made))
    called, library = _method_of(function, filled), said or state.home
    route = trace.source.routes.get(library)

    def call_with(given: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return _method_of(function, FilledCopy(owner, read_state(owner), given))(*args, **kwargs)

    if is_intercepted(called):
        with written_in(trace, (library,)):
            outputs = called(*args, **kwargs)
    else:
        whole = (call_with, (hidden, *args)) if hidden else None
        # Hooks run around the method, in what calls it.
        hooks = (getattr(called, name, None) for name in HOOKS)
        method = called if any(hooks) else called_method(called)
        outputs = run_or_import(library, method, trace, args, kwargs, whole=whole)
    before = {name: symbol.node for name, symbol in hidden.items()}
    refuse_updates(trace, f"a {type(owner).__name__}", symbols, before)
    # The object is a copy: what the code stores in it would be lost.
    if change := filled.changed():
        raise trace.error(f"{change}, which a graph does not do")
    # Caches of the library may hold what it refused.
    if route != trace.source.routes.get(library):
        del trace.source.witness.made[held]
    return Recorded(outputs, None)


def _method_of(method: Callable[..., Any], filled: FilledCopy) -> Any:
    is_call = isinstance(method, types.MethodType) and method.__name__ == "call"
    if isinstance(method, types.MethodType) and not (is_call and is_intercepted(filled.object)):
        return types.MethodType(method.__func__, filled.object)
    return filled.object


def is_intercepted(called: Any) -> bool:
    """Return whether a library passes a call of this object with symbols on to multigrad."""
    keepers = (dialect.calls.keeps for dialect in registered_dialects().values())
    return any(keeps is not None and keeps(called) for keeps in keepers)
