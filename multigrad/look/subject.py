"""What is checked: a Function, an activation (or a layer with one) or a rule, as a function of
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend.contract import Backend
from ..backend.finding.discovery import (
    backend_among,
    backend_of,
    load_backend,
    refuse_unusable,
)
from ..capture.code.signature import name_of
from ..errors import RuleTypeError
from ..functions.calls.arguments import BoundFunction, owner_of, positional_names, unwrap
from ..functions.calls.decision import SHOWN
from ..functions.function import Function
from ..functions.plain import PairRecipe
from ..functions.recipes.examples import find_variant
from ..functions.recipes.record import NotCaptured
from ..graph.ops.numerics import as_numpy_dtype
from ..graph.support.trees import optree
from ..lowering.forwards import Forward
from ..rules.in_force.activation import Activation
from ..rules.model.forwards_of_code import ForwardOfCode
from ..rules.model.rule import Rule
from ..rules.model.under import RuleUnder
from ..rules.registry import resolve

Array = Any
Tensor = Any
SHAPE = (3, 4)  # of inputs that are made up
SEED = 20


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked.

    Attributes:
        call: a function of tensors of any framework.
        forward: the activation, where it is one; its derivative is known.
        is_surrogate: whether its gradient is meant to differ from the true one.
    """

    name: str
    call: Callable[..., Any]
    function: Function | None = None
    forward: Forward | None = None
    is_surrogate: bool = False


def subject_of(obj: Any) -> Subject:
    """Return what an object means as a function with a gradient.

    Raises:
        RuleError: it is a name that no rule has.
        RuleTypeError: it is nothing that has a gradient.
    """
    inner = getattr(obj, "_activation", obj)  # of a module or layer
    inner = getattr(inner, "captured_form", inner)  # of what `override` returned
    if isinstance(inner, Function):
        return Subject(inner.name, inner, function=inner, is_surrogate=gives_surrogate(inner))
    if isinstance(inner, Activation):
        ruled = inner.in_force() is not None
        if isinstance(inner.forward, ForwardOfCode) and not ruled:
            return Subject(repr(inner), inner, function=inner.forward.function)
        return Subject(repr(inner), inner, forward=inner.forward, is_surrogate=ruled)
    if isinstance(inner, str | Rule):
        rule = resolve(inner)
        act = Activation("Linear", rule)
        return Subject(f"{rule.name} under Linear", act, forward=act.forward, is_surrogate=True)
    if callable(inner):
        is_bound = isinstance(inner, BoundFunction)
        name = inner.name if is_bound else name_of(inner)
        whole = Function(PairRecipe(inner, None, None, name), inner)
        ruled = is_bound and gives_surrogate(inner.function)
        return Subject(name, inner, function=whole, is_surrogate=ruled)
    raise RuleTypeError(
        f"expected a Function, an activation, a rule or its name, got {type(obj).__name__}"
    )


def gives_surrogate(function: Any) -> bool:
    """Return whether a Function's gradient is meant to differ from its forward's derivative."""
    recipe = getattr(function, "recipe", None)
    ruled = isinstance(recipe, RuleUnder) and recipe.specialization is not None
    return ruled or getattr(function, "is_surrogate", False)


def make_inputs(subject: Subject) -> tuple[Any, ...]:
    """Return inputs for an object that was given none: a grid for an activation, else normal
    numbers.

    Raises:
        TraceError: it is not known which arguments a Function takes.
    """
    if subject.forward is not None or subject.function is None:
        return (np.linspace(-2.0, 2.0, 41),)
    if subject.function.examples is not None:
        return subject.function.examples
    try:
        layout = find_variant(subject.function, SHOWN).layout
    except NotCaptured as error:
        raise error.error from None
    generator = np.random.default_rng(SEED)
    leaves: list[Any] = []
    for leaf in layout.leaves:
        if leaf.kind == "tensor":
            leaves.append(
                generator.standard_normal(SHAPE) if leaf.is_float else np.zeros(SHAPE, leaf.dtype)
            )
        else:
            leaves.append(1.0 if leaf.kind == "number" else leaf.value)
    args, _ = layout.rebuild(leaves)
    return args


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs as flat leaves, tensors among them as NumPy arrays."""

    leaves: tuple[Any, ...]
    tree: Any
    places: tuple[int, ...]  # of the tensors
    paths: tuple[str, ...]
    owner: Backend | None

    def arrays(self, dtype: str | None = None) -> list[Array]:
        """Return the tensors as arrays, floats in the given dtype."""
        found = [np.asarray(self.leaves[i]) for i in self.places]
        return [as_float(array, dtype) if is_float_array(array) else array for array in found]

    def nest(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Return the inputs with other tensors."""
        given = list(self.leaves)
        for i, tensor in zip(self.places, tensors, strict=True):
            given[i] = tensor
        return optree.tree_unflatten(self.tree, given)


def is_float_array(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def as_float(array: Array, dtype: str | None) -> Array:
    """Return an array in a float dtype by its name."""
    if dtype is None:
        return array

    return array.astype(as_numpy_dtype(dtype))


def read_inputs(subject: Subject, inputs: tuple[Any, ...]) -> Inputs:
    """Return inputs as they were given, tensors of any framework as NumPy arrays."""
    if subject.forward is not None:
        check_array(subject, inputs)
    leaves, tree = optree.tree_flatten(inputs, none_is_leaf=True)
    leaves = [unwrap(leaf) for leaf in leaves]
    places = tuple(i for i, leaf in enumerate(leaves) if owner_of(leaf) is not None)
    if not places:
        leaves = [np.asarray(leaf) if isinstance(leaf, float) else leaf for leaf in leaves]
        places = tuple(i for i, leaf in enumerate(leaves) if owner_of(leaf) is not None)
    if not places:
        refuse_unusable(*map(type, leaves))
        raise RuleTypeError(f"{subject.name} got no tensor to be checked with; pass arrays")
    owner = backend_among(leaves[i] for i in places)
    for i in places:
        leaves[i] = backend_of(leaves[i]).tensors.to_numpy(leaves[i])
    return Inputs(tuple(leaves), tree, places, _name_paths(subject, tree), owner)


def check_array(subject: Subject, inputs: tuple[Any, ...]) -> None:
    """Check that an activation was given one tensor, or a number.

    Raises:
        RuleTypeError: it was given more, or a list.
    """
    if len(inputs) != 1:
        raise RuleTypeError(f"{subject.name} takes one tensor, got {len(inputs)} inputs")
    if isinstance(inputs[0], list | tuple | dict):
        kind = type(inputs[0]).__name__
        raise RuleTypeError(f"{subject.name} takes a tensor, got a {kind}: give numpy.array(x)")


def _name_paths(subject: Subject, tree: Any) -> tuple[str, ...]:

    names = positional_names(subject.function.parameters) if subject.function else ["x"]
    paths = []
    for first, *rest in optree.treespec_paths(tree):
        head = names[first] if first < len(names) else f"args[{first}]"
        paths.append(head + "".join(f"[{entry!r}]" for entry in rest))
    return tuple(paths)


def precision(backend: Backend, dtype: str) -> AbstractContextManager[Any]:
    """Return the mode in which a backend keeps a dtype."""
    return nullcontext() if backend.tensors.precision is None else backend.tensors.precision(dtype)


def find_backend(name: str | None, inputs: Inputs) -> Backend:
    """Return the backend asked for, else the one that owns the inputs."""
    if name is not None:
        return load_backend(name)
    return inputs.owner or load_backend("numpy")
