"""A module for another framework: a function of its parameters and of what it is called with, and
these parameters as that framework's tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..backend.finding.discovery import backend_of, load_backend
from ..capture.code.options import Capture
from ..capture.code.signature import called_method, name_of
from ..capture.code.state import State, copied, describe, held_by, read_state
from ..errors import DisprovedError, RuleTypeError, RuleValueError, suggest
from ..graph.ir.types import FLOATS, dtype_name
from ..graph.support.data import dataclass
from ..trace.constants import lift_array
from ..trace.trace import Trace
from .calls.arguments import signature_of
from .calls.recipe import Recorded, Variant
from .function import Function
from .held import STATE, HeldRecipe, holds_state, owner_of_method
from .proof.verdict import Subject, leave_open
from .recipes.record import CodeRecipe

Tensor = Any
PARAMETERS = inspect.Parameter("parameters", inspect.Parameter.POSITIONAL_ONLY)


def apart(
    obj: Any, framework: str, options: Capture
) -> tuple[Function[..., Any], dict[str, Tensor]]:
    """Return a function of an object's parameters and arguments, and the parameters for a
    framework.

    Raises:
        RuleTypeError: the object holds no parameters.
    """
    if not callable(obj) or not holds_state(obj):
        raise RuleTypeError(
            f"to={framework!r} is for a module, a layer, or another object with parameters, not "
            f"for {name_of(obj)!r}: what has none runs on every framework as xg.convert(obj)"
        )
    own = copied(obj)  # what changes later is the object's own
    backend = load_backend(framework)
    state = read_state(owner_of_method(own))
    held = {name: held_by(each) for name, each in state.tensors.items()}
    found = {name: tensor for name, tensor in held.items() if _is_learned(state, name)}
    if not found:
        raise RuleTypeError(
            f"{name_of(obj)!r} holds no tensor that asks for a gradient. A method that takes the "
            "parameters as an argument, as apply of flax.linen does, is a function of them as it "
            "is: xg.convert(module.apply)"
        )
    others = _named(state, found)
    fixed = {name: _as_array(tensor) for name, tensor in held.items() if name not in found}
    inner = HeldRecipe(own, name_of(obj), False, options.library)
    recipe = AppliedRecipe(inner, others, fixed, name_of(obj))
    function = Function(recipe, None, options.prove)
    given = {others[way]: tensor for way, tensor in found.items()}
    return function, {n: backend.tensors.from_numpy(_as_array(given[n])) for n in recipe.names}


def _is_learned(state: State, name: str) -> bool:
    """Return whether a tensor is a parameter: a float one that is trained, or may be."""
    tensor = held_by(state.tensors[name])
    if dtype_name(tensor.dtype) not in FLOATS:
        return False
    described = describe(state.tensors[name]) or describe(state.holders[name])
    if described is not None:
        return described[1]
    asks = backend_of(tensor).tensors.requires_grad
    return asks is None or asks(tensor)


def _named(state: State, found: Mapping[str, Tensor]) -> dict[str, str]:
    """Return, by the way to each parameter, its name: one for those that are one tensor."""
    names: dict[int, str] = {}
    own = {way: (describe(state.tensors[way]) or ("", True))[0] for way in found}
    for way in sorted(found, key=lambda way: (not own[way], way.count("."), len(way))):
        name = own[way] or way
        while name in names.values() and id(found[way]) not in names:
            name += "'"
        names.setdefault(id(found[way]), name)
    return {way: names[id(tensor)] for way, tensor in found.items()}


def _as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return np.array(backend_of(tensor).tensors.to_numpy(tensor))  # which may have shared its memory


@dataclass(frozen=True, slots=True, eq=False)
class AppliedRecipe(CodeRecipe):
    """An object that is called with other parameters than its own.

    Attributes:
        aliases: by the way to each parameter that it holds, the name by which that is given.
        fixed: the other tensors that it holds, as arrays.
    """

    own: HeldRecipe
    aliases: Mapping[str, str]
    fixed: Mapping[str, Any]
    name: str
    native: bool | None = False
    backward: None = None

    @property
    def names(self) -> list[str]:
        """The names of its parameters."""
        return [*dict.fromkeys(self.aliases.values())]

    @property
    def signature(self) -> inspect.Signature | None:
        """Its own, behind the parameters."""
        own = signature_of(called_method(self.own.function))
        if own is None:
            return None
        return own.replace(parameters=[PARAMETERS, *own.parameters.values()])

    def dialect(self) -> str:
        return self.own.dialect()

    def functions(self) -> tuple[Callable[..., Any], ...]:
        return self.own.functions()

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        args, kwargs = self._filled(args, kwargs)
        fixed = {name: trace.value(lift_array(trace, each)) for name, each in self.fixed.items()}
        return self.own.record(trace, args, {**kwargs, STATE: {**kwargs[STATE], **fixed}})

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        args, kwargs = self._filled(args, kwargs)
        home = load_backend(read_state(self.own.owner).home).tensors
        fixed = {name: home.from_numpy(each) for name, each in self.fixed.items()}
        return self.own.run(args, {**kwargs, STATE: {**kwargs[STATE], **fixed}})

    def prove(self, variant: Variant, leaves: Sequence[Any], *, is_call: bool = False) -> str:
        """Compare graphs with the object. They may differ where a class inside of it that is given
        modules adds to their `.grad`, which no derivative of the object itself has.
        """
        try:
            return CodeRecipe.prove(self, variant, leaves, is_call=is_call)
        except DisprovedError:
            if variant.graphs.second_order:
                raise
            subject = Subject(self.subject, None, "")
            return leave_open(subject, "a backward inside of it adds to .grad, or differs")

    def _filled(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the object's own arguments, and with them the parameters.

        Raises:
            RuleTypeError, RuleValueError: they are not its parameters.
        """
        given = args[0] if args else None
        if not isinstance(given, Mapping):
            raise RuleTypeError(
                f"function {self.name!r} takes its parameters first, a dict by name, not "
                f"{type(given).__name__}"
            )
        for name in self.names:
            if name not in given:
                raise RuleValueError(f"function {self.name!r} got no parameter {name!r}")
        for name in given:
            if name not in self.names:
                raise RuleValueError(
                    f"function {self.name!r} has no parameter {name!r}{suggest(name, self.names)}"
                )
        own = {name: given[other] for name, other in self.aliases.items()}
        return args[1:], {**kwargs, STATE: {"": None, **own}}
