"""Custom gradients that are given objects with tensors: modules, functions that call some.

The tensors are hidden arguments, read at each call. A backward adds to their `.grad`; what it adds
are their gradients, which autodiff takes to them on the objects' own framework. Elsewhere they are
constants.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..backend.contract import Backend
from ..capture.code.state import Filled, State, held_by, read_state
from ..graph.ir.types import is_float
from ..graph.support.data import dataclass
from ..graph.support.threads import build_once
from ..graph.support.trees import optree
from ..trace.scope.identity import value_key
from ..trace.trace import Trace, Value
from .calls.arguments import flatten, owner_of
from .calls.binding import Entry
from .calls.recipe import Recorded
from .entries import MOST_ENTRIES, kind_of
from .function import Function
from .held import STATE, Structure, on_backend
from .recipes.record import CodeRecipe

Tensor = Any
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class HoldingRecipe(CodeRecipe):
    """A framework's own custom gradient, with the tensors of its arguments' objects beside them.

    Attributes:
        own: its recipe, which knows `holds(value)` and `gather(run, tensors)`.
    """

    own: Any

    def __getattr__(self, name: str) -> Any:
        """Return what is its own recipe's: its name, how it may be run."""
        return getattr(object.__getattribute__(self, "own"), name)

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.own.name

    @property
    def native(self) -> bool | None:
        """Whether it runs as it is."""
        return self.own.native

    @property
    def copies(self) -> bool:
        """Whether it writes on copies of its arguments."""
        return self.own.copies

    @property
    def gives_tangents(self) -> bool:
        """Whether its author gives its tangents, too."""
        return self.own.gives_tangents

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of the class's own call."""
        return self.own.signature

    def dialect(self) -> str:
        """Return the library that it is written in."""
        return self.own.dialect()

    def functions(self) -> tuple[Any, ...]:
        return self.own.functions()

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        if STATE not in kwargs:
            return self.own.record(trace, args, kwargs)
        kwargs, given = split(kwargs)
        trace.looks_into = False  # they are among the arguments
        before = {name: symbol.node for name, symbol in given.items()}
        floats = {n: symbol for n, symbol in given.items() if is_float(symbol.node.type)}
        held = [*floats.values()]
        trace.leaves += map(weakref.ref, held)
        with without_gradients(held):
            recorded = self.own.record(trace, *self.filled((args, kwargs), given))
        _check(trace, given, before)
        assert recorded.pull is not None  # as a custom gradient has it
        own, added = recorded.pull, set[str]()

        def pull(upstream: Any) -> Any:
            with without_gradients(held):
                returned = own(upstream)
                found = {name: symbol.notes["grad"] for name, symbol in floats.items()}
            _check(trace, given, before)
            added.update(name for name, each in found.items() if each is not None)
            *plain, named = returned if kwargs else (*returned, {})
            return (*plain, {**named, STATE: {**dict.fromkeys(("", *given)), **found}})

        def has_second() -> bool:  # what is added to a `.grad` is a constant
            return bool(recorded.second_order) and not added

        return replace(recorded, pull=pull, second_order=has_second)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        if STATE not in kwargs:
            return self.own.run(args, kwargs)
        kwargs, given = split(kwargs)
        return self.own.run(*self.filled((args, kwargs), given))

    def run_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if STATE in kwargs:
            kwargs, given = split(kwargs)
            args, kwargs = self.filled((args, kwargs), given)
        return self.own.run_forward(args, kwargs)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the original, where it runs as it is on its own framework; with other tensors than
        those of the objects, such that these get their gradients.
        """
        if STATE not in kwargs:
            return self.own.apply(*args, **kwargs)
        kwargs, given = split(kwargs)
        state = self.state_of((args, kwargs))
        if all(given.get(name) is held_by(own) for name, own in state.tensors.items()):
            return self.own.apply(*args, **kwargs)
        leaves, tree = flatten(args, {**kwargs, STATE: given})
        places = [i for i, leaf in enumerate(leaves) if owner_of(leaf) is not None]

        def run(tensors: Sequence[Tensor]) -> Any:
            filled = list(leaves)
            for i, tensor in zip(places, tensors, strict=True):
                filled[i] = tensor
            inner_args, inner_kwargs = optree.tree_unflatten(tree, filled)
            inner_kwargs, inner = split(inner_kwargs)
            args, kwargs = self.filled((inner_args, inner_kwargs), inner)
            return self.own.apply(*args, **kwargs)

        return self.own.gather(run, [leaves[i] for i in places])

    def objects(self, arguments: Arguments) -> list[tuple[int, Any]]:
        """Return the objects with tensors among arguments, each with the place of its leaf."""
        leaves, _ = flatten(*arguments)
        return [(i, leaf) for i, leaf in enumerate(leaves) if self.own.holds(leaf)]

    def state_of(self, arguments: Arguments) -> State:
        """Return what the objects among arguments hold now."""
        return read_state(tuple(each for _, each in self.objects(arguments)))

    def filled(self, arguments: Arguments, given: dict[str, Any]) -> Arguments:
        """Return arguments with copies of the objects, which hold the tensors that are given."""
        places = self.objects(arguments)
        owner = tuple(each for _, each in places)
        copies = Filled(owner, read_state(owner), given).copy
        leaves, tree = flatten(*arguments)
        for (i, _), copy in zip(places, copies, strict=True):
            leaves[i] = copy
        return optree.tree_unflatten(tree, leaves)


def _check(trace: Trace, given: dict[str, Any], before: dict[str, Any]) -> None:
    """Refuse to update what an object holds."""
    for name, symbol in given.items():
        if symbol.node is not before[name]:
            raise trace.error(
                f"updates {name!r} of its arguments in place, which a graph does not do. A module "
                "in training may: call its .eval() first"
            )


@contextmanager
def without_gradients(symbols: Sequence[Any]) -> Iterator[None]:
    """Let code add to the `.grad` of symbols, which has nothing in it first."""
    for symbol in symbols:
        symbol.notes = {**(symbol.notes or {}), "grad": None}
    try:
        yield
    finally:
        for symbol in symbols:
            symbol.notes = {**(symbol.notes or {}), "grad": None}


def split(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the user's own keywords, and the tensors to be in the objects."""
    given = {name: held for name, held in kwargs.get(STATE, {}).items() if name}
    return {name: each for name, each in kwargs.items() if name != STATE}, given


class MayTakeObjects(Function):
    """A framework's own custom gradient, whose hidden arguments are the tensors that objects among
    its arguments hold.
    """

    recipe: HoldingRecipe

    def __init__(self, recipe: Any, prove: bool = True) -> None:
        super().__init__(HoldingRecipe(recipe), prove=prove)
        self._structures: dict[Any, Structure] = {}

    if not TYPE_CHECKING:  # to a checker, a name that is not there is an error

        def __getattr__(self, name: str) -> Any:
            """Return what the class has under a name, for code that goes on to use it as one."""
            original = getattr(vars(self).get("recipe"), "function_class", None)
            if original is None or name.startswith("__") or not hasattr(original, name):
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(message, name=name, obj=self)
            return getattr(original, name)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        """Return the class, as the base of another."""
        return (self.recipe.own.function_class,)

    def _is_incomplete(self, leaves: Sequence[Any]) -> bool:
        """Return whether a call leaves arguments out: those of objects."""
        return super()._is_incomplete(leaves) or any(map(self.recipe.own.holds, leaves))

    def _complete(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Sequence[Any], Any]:
        """Return the leaves of a call with those of the objects, and their nesting."""
        args, kwargs = optree.tree_unflatten(tree, leaves)
        if STATE in kwargs or not self._is_incomplete(leaves):
            return leaves, tree
        is_inside = any(isinstance(leaf, Value) for leaf in leaves)
        state = self.recipe.state_of((args, kwargs))
        if is_inside and not all(isinstance(own, Value) for own in state.tensors.values()):
            return leaves, tree  # what is no symbol of the capture around is a constant there
        backend = next((each for each in map(owner_of, leaves) if each is not None), None)
        held = {
            name: own if is_inside else on_backend(backend, held_by(own))
            for name, own in state.tensors.items()
        }
        return flatten(args, {**kwargs, STATE: {"": self._structure(state), **held}})

    def _structure(self, state: State) -> Structure:
        """Return what stands for a structure, always the same for one."""
        if len(self._structures) >= MOST_ENTRIES:
            self._structures.clear()
        return self._structures.setdefault(state.key, Structure())

    def _find_entry(self, leaves: Sequence[Any], tree: Any, key: Any) -> Entry:
        if not self._is_incomplete(leaves):
            return super()._find_entry(leaves, tree, key)
        state = self.recipe.state_of(optree.tree_unflatten(tree, leaves))
        kinds = tuple(kind_of(leaf) or value_key(leaf) for leaf in leaves)
        key = (tree, self._structure(state), kinds)
        return self._entries.get(key) or build_once(
            self._entries, key, lambda: self._build(leaves, tree), MOST_ENTRIES
        )
