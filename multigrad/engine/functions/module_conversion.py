"""`xg.convert(module, to=...)`: an object that holds tensors as a function of its parameters.

    apply, parameters = xg.convert(layer, to="jax")    y = apply(parameters, x)

The function captures a copy of the object; the other tensors of the copy are constants.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.backend.discovery import backend_of, load_backend
from ...core.functions.recipe import GraphSource, Recipe, Recorded, Variant
from ...core.ir.op import FLOATS, dtype_name
from ...core.rules.capture import Capture
from ...core.rules.signature import name_of
from ...core.support.trees import Tensor
from ...core.trace.coercion import lift_array
from ...errors import DisprovedError, RuleTypeError, RuleValueError, suggest
from ..capture.user_code.object_state import ObjectState, copied, describe, held_by, read_state
from ..trace.code_trace import CodeTrace
from .code_proof import prove_code
from .function import Function
from .object_function import STATE, holds_state, owner_of_method, recipe_of_object
from .proof.verdicts import ProofSubject, leave_open

# The first argument of the function that is made.
PARAMETERS = inspect.Parameter("parameters", inspect.Parameter.POSITIONAL_ONLY)


def convert_module(
    obj: Any, framework: str, options: Capture
) -> tuple[Function[..., Any], dict[str, Tensor]]:
    """Return an object as a function of its parameters, and these as tensors of a framework."""
    if not callable(obj) or not holds_state(obj):
        raise RuleTypeError(
            f"to={framework!r} is for a module, a layer, or another object with parameters, not "
            f"for {name_of(obj)!r}: without any, it runs on every framework as xg.convert(obj)"
        )
    copy = copied(obj)  # what changes later is the object's own
    backend = load_backend(framework)
    state = read_state(owner_of_method(copy))
    tensors = {name: held_by(each) for name, each in state.tensors.items()}
    learned = {name: tensor for name, tensor in tensors.items() if _is_learned(state, name)}
    if not learned:
        raise RuleTypeError(
            f"{name_of(obj)!r} holds no tensor that asks for a gradient: one that makes them at "
            "its first call has to be called before, and one without any runs on every framework "
            "as xg.convert(obj). A method that takes the parameters as an argument, as apply of "
            "flax.linen does, is a function of them as it is: xg.convert(module.apply)"
        )
    names = _names_of_parameters(state, learned)
    fixed = {name: _as_array(tensor) for name, tensor in tensors.items() if name not in learned}
    recipe = recipe_of_module(copy, name_of(obj), options.library, aliases=names, fixed=fixed)
    function = Function(recipe, None, options.prove)
    parameters = {names[path]: tensor for path, tensor in learned.items()}
    ordered = dict.fromkeys(names.values())
    return function, {n: backend.tensors.from_numpy(_as_array(parameters[n])) for n in ordered}


def _is_learned(state: ObjectState, name: str) -> bool:
    tensor = held_by(state.tensors[name])
    if dtype_name(tensor.dtype) not in FLOATS:
        return False
    # The library's own word on the tensor or on its holder comes first.
    described = describe(state.tensors[name]) or describe(state.holders[name])
    if described is not None:
        return described[1]
    # No library knows it: what may get a gradient is a parameter.
    asks = backend_of(tensor).tensors.requires_grad
    return asks is None or asks(tensor)


def _names_of_parameters(state: ObjectState, learned: Mapping[str, Tensor]) -> dict[str, str]:
    # By the paths of the parameters in the object.
    names: dict[int, str] = {}
    library_names = {path: (describe(state.tensors[path]) or ("", True))[0] for path in learned}
    # A tensor held in several places has one name: the library's, else the shortest path.
    for path in sorted(
        learned, key=lambda path: (not library_names[path], path.count("."), len(path))
    ):
        name = library_names[path] or path
        while name in names.values() and id(learned[path]) not in names:
            name += "'"  # another tensor has this name
        names.setdefault(id(learned[path]), name)
    return {path: names[id(tensor)] for path, tensor in learned.items()}


def _as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return np.array(backend_of(tensor).tensors.to_numpy(tensor))  # which may have shared its memory


def recipe_of_module(
    module: Any,
    name: str,
    library: str,
    *,
    aliases: Mapping[str, str],
    fixed: Mapping[str, Any],
) -> Recipe:
    """Return the recipe of an object that is called with other parameters than its own.

    `aliases` has the name by which each parameter is given, by its path in the object; `fixed` the
    other tensors that it holds, as arrays.
    """
    inner = recipe_of_object(module, name, native=False, library=library)
    record_own = inner.record
    assert record_own is not None

    def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        args, kwargs = _with_parameters(name, aliases, args, kwargs)
        constants = {each: trace.value(lift_array(trace, array)) for each, array in fixed.items()}
        return record_own(trace, args, {**kwargs, STATE: {**kwargs[STATE], **constants}})

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        args, kwargs = _with_parameters(name, aliases, args, kwargs)
        # The object computes with tensors of its own library.
        home = load_backend(read_state(owner_of_method(module)).home).tensors
        constants = {each: home.from_numpy(array) for each, array in fixed.items()}
        return inner.run(args, {**kwargs, STATE: {**kwargs[STATE], **constants}})

    signature = inner.signature
    if signature is not None:
        signature = signature.replace(parameters=[PARAMETERS, *signature.parameters.values()])
    return replace(
        inner,
        run=run,
        record=record,
        signature=signature,
        copied=None,
        graphs=GraphSource(prove=_prove_module),
    )


def _prove_module(recipe: Recipe, variant: Variant, leaves: Sequence[Any], *, is_call: bool) -> str:
    # They may differ where a class inside it that is given modules adds to their `.grad`, which
    # no derivative of the object itself has.
    try:
        return prove_code(recipe, variant, leaves, is_call=is_call)
    except DisprovedError:
        if variant.graphs.second_order:
            raise
        subject = ProofSubject(recipe.subject, None, "")
        return leave_open(subject, "a backward inside it adds to .grad, or differs")


def _with_parameters(
    name: str, aliases: Mapping[str, str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    parameters, names = args[0] if args else None, list(dict.fromkeys(aliases.values()))
    if not isinstance(parameters, Mapping):
        raise RuleTypeError(
            f"function {name!r} takes its parameters first, a dict by name, not "
            f"{type(parameters).__name__}"
        )
    for each in names:
        if each not in parameters:
            raise RuleValueError(f"function {name!r} got no parameter {each!r}")
    for each in parameters:
        if each not in names:
            raise RuleValueError(
                f"function {name!r} has no parameter {each!r}{suggest(each, names)}"
            )
    by_path = {path: parameters[alias] for path, alias in aliases.items()}
    return args[1:], {**kwargs, STATE: {"": None, **by_path}}
