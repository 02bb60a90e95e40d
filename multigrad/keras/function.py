"""Functions in a Keras model under construction: a call on symbolic tensors becomes an operation of the model.

The operation holds the Function as data, so that a model that was saved loads without its source.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from ..errors import MultigradError
from ..functions.function import Function, symbolic

Tensor = Any


@keras.saving.register_keras_serializable(package="multigrad")
class FunctionOperation(keras.Operation):
    """A Function as an operation of a Keras model.

    Args:
        function: what to call.
    """

    def __init__(self, function: Function, name: str | None = None) -> None:
        super().__init__(name=name)
        self.function = function

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the Function's outputs."""
        return self.function(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the operation as data.

        Raises:
            MultigradError: the Function runs as it is, so there is nothing to be saved.
        """
        try:
            data = self.function.to_dict()
        except MultigradError as error:
            raise type(error)(f"operation {self.name!r} cannot be saved: {error}") from error
        return {"name": self.name, "function": data}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FunctionOperation:
        """Return the operation that a config describes.

        Raises:
            FormatError: its Function is malformed.
        """
        from ..saving import from_dict

        return cls(from_dict(config["function"]), name=config["name"])


def is_symbolic(leaf: Any) -> bool:
    """Return whether an argument stands for a tensor of a model under construction."""
    return isinstance(leaf, keras.KerasTensor)


def call_symbolic(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Add a call of a Function to the model under construction."""
    return FunctionOperation(function)(*args, **kwargs)


symbolic.append((is_symbolic, call_symbolic))
