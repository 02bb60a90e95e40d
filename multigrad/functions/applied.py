"""A module for another framework: a function of its parameters and of what it is called with, and
these parameters as that framework's tensors.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..backend.contract import Backend
from ..backend.finding.discovery import backend_of, load_backend
from ..capture.code.options import Capture
from ..capture.code.signature import called_method, name_of
from ..capture.code.state import held_by, read_state
from ..errors import RuleTypeError, RuleValueError, suggest
from ..graph.ir.types import FLOATS, dtype_name
from ..trace.constants import lift_array
from ..trace.trace import Trace
from .calls.arguments import signature_of
from .calls.recipe import Recorded
from .function import Function
from .held import STATE, HeldRecipe, holds_state, owner_of_method
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
    own = copy.deepcopy(obj)  # what changes later is the object's own
    backend = load_backend(framework)
    held = {name: held_by(each) for name, each in read_state(owner_of_method(own)).tensors.items()}
    found = {name: tensor for name, tensor in held.items() if _is_learned(tensor)}
    shortest: dict[int, str] = {}  # of the names of one tensor
    for name in sorted(found, key=lambda name: (name.count("."), len(name))):
        shortest.setdefault(id(found[name]), name)
    others = {name: shortest[id(tensor)] for name, tensor in found.items()}
    if not found:
        raise RuleTypeError(f"{name_of(obj)!r} holds no tensor that asks for a gradient")
    fixed = {
        name: backend_of(tensor).tensors.to_numpy(tensor)
        for name, tensor in held.items()
        if name not in found
    }
    inner = HeldRecipe(own, name_of(obj), False, options.library)
    recipe = AppliedRecipe(inner, others, fixed, name_of(obj))
    function = Function(recipe, None, options.prove)
    return function, {name: _moved(found[name], backend) for name in recipe.names}


def _is_learned(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter: a float one that asks for a gradient, or may."""
    asks = backend_of(tensor).tensors.requires_grad
    return dtype_name(tensor.dtype) in FLOATS and (asks is None or asks(tensor))


def _moved(tensor: Tensor, backend: Backend) -> Tensor:
    return backend.tensors.from_numpy(backend_of(tensor).tensors.to_numpy(tensor))


@dataclass(frozen=True, slots=True, eq=False)
class AppliedRecipe(CodeRecipe):
    """An object that is called with other parameters than its own.

    Attributes:
        aliases: by each name under which it holds a parameter, the one by which that is given.
        fixed: the other tensors that it holds, as arrays.
    """

    own: HeldRecipe
    aliases: Mapping[str, str]
    fixed: Mapping[str, Any]
    name: str
    native: bool | None = False

    @property
    def names(self) -> list[str]:
        """The names of its parameters."""
        return [name for name, given in self.aliases.items() if name == given]

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
        return self.own.run(*self._filled(args, kwargs))

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
