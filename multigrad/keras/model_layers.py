"""The layers of a Keras model under their dotted names.

Keras names layers within the model that holds them, so a name may stand twice in nested models.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections import Counter
from typing import Any

import keras

from ..models.selectors import Layer


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
            inner = f"{path}.{child.name}" if path else child.name
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
