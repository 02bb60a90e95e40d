"""The layers of a Keras model under their dotted names.

Keras names layers within the model that holds them, so a name may stand twice in nested models.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import keras

from ...errors import RuleTypeError, RuleValueError
from ...models.selectors import Function, Layer
from .operations import FUNCTIONS, NAMES

# The attributes of Keras's layers that are functions, which `activation="relu"` sets.
ATTRIBUTES = ("activation", "recurrent_activation")


def list_layers(model: Any) -> list[Layer]:
    """Return a model and all that it calls: layers of all depths, and the `keras.ops` nodes of
    functional models.

    A layer's names are its dotted paths from the model down ("resnet50.conv1_relu"), then its own
    name where no other layer of the model has it.
    """
    found: dict[int, Any] = {}
    paths: dict[int, list[str]] = {}

    def visit(layer: Any, path: str, within: tuple[int, ...]) -> None:
        if id(layer) in within:
            return  # a layer that holds the one that holds it
        found[id(layer)] = layer
        paths.setdefault(id(layer), []).append(path)
        for child in children_of(layer):
            own = [child.name, *(a for a in ATTRIBUTES if getattr(layer, a, None) is child)]
            for name in own:
                inner = f"{path}.{name}" if path else name
                visit(child, inner, (*within, id(layer)))

    visit(model, "", ())
    owners = Counter(layer.name for layer in found.values() if layer is not model)
    layers = []
    for key, layer in found.items():
        own = [layer.name] if layer is not model and owners[layer.name] == 1 else []
        names = tuple(dict.fromkeys(paths[key] + own))
        layers.append(Layer(names, layer, is_leaf=not children_of(layer)))
    return layers


def children_of(layer: Any) -> list[Any]:
    """Return what a layer holds and calls itself; an InputLayer computes nothing."""
    # Keras (3.15) has no public name for either.
    held = [*getattr(layer, "_layers", ()), *getattr(layer, "_operations", ())]
    once = {id(each): each for each in held if not isinstance(each, keras.layers.InputLayer)}
    return list(once.values())


def list_functions(layers: Sequence[Layer]) -> list[Layer]:
    """Return the functions that layers hold as activations."""
    found = []
    for each in layers:
        for attribute in ATTRIBUTES:
            held = getattr(each.layer, attribute, None)
            if not callable(held) or held is keras.activations.linear:
                continue
            if isinstance(held, keras.Operation):
                continue
            names = tuple(f"{name}.{attribute}" if name else attribute for name in each.names)
            found.append(Layer(names, Function(each.layer, attribute, held)))
    return found


def operation_held(name: str, held: Function) -> str:
    """Return the operation that an activation of a layer is.

    Raises:
        RuleValueError: it is none that can be told from what else the layer calls.
    """
    operation = FUNCTIONS.get(held.function) if inspect.isfunction(held.function) else None
    if operation is None or operation not in NAMES.values():
        shown = getattr(held.function, "__name__", type(held.function).__name__)
        raise RuleValueError(
            f"{name!r} is {shown!r}, which is no operation that Keras computes: select the layer, "
            "or an operation that the function calls"
        )
    others = {a: getattr(held.layer, a, None) for a in ATTRIBUTES if a != held.attribute}
    for attribute, other in others.items():
        if other is held.function:
            raise RuleValueError(
                f"{name!r} and its {attribute!r} are both {operation!r}, which cannot be told "
                f"apart within the layer: select the layer, or the operation {operation!r}"
            )
    return operation


def callers_of(held: Function, layers: Sequence[Layer]) -> list[Any]:
    """Return the layers that call an activation: of a recurrent layer its cell does, unless it
    takes a kernel for all of it.
    """
    cell = getattr(held.layer, "cell", held.layer)
    around = [each.layer for each in layers if getattr(each.layer, "cell", None) is cell]
    return [cell, *around]


def refuse_cells(layers: Sequence[Layer], chosen: Collection[int]) -> None:
    """Refuse rules on the cells of recurrent layers, by their identities.

    Raises:
        RuleTypeError: one is on such a cell.
    """
    for each in layers:
        cell = getattr(each.layer, "cell", None)
        if cell is not None and id(cell) in chosen:
            raise RuleTypeError(
                f"layer {cell.name!r} ({type(cell).__name__}) is the cell of layer "
                f"{each.layer.name!r}, which takes several tensors or is computed in one kernel "
                f"with it: select layer {each.names[0]!r}, its activation, or an operation"
            )
