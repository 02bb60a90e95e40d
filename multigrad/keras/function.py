"""A Function as an operation of a Keras model under construction, and how a config holds it.

A call on symbolic tensors becomes an operation of the model, which holds the Function as data, so
that a model that was saved loads without its source.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from ..errors import FormatError, MultigradError, RuleError
from ..functions.function import Function, take_placeholders
from ..lowering.forwards import Forward
from ..rules.model.forwards_of_code import ForwardOfCode
from ..rules.saving.files import from_dict
from .symbolic import infer_outputs
from .tracing import BACKEND


@keras.saving.register_keras_serializable(package="multigrad")
class FunctionOperation(keras.Operation):
    """A Function as an operation of a Keras model.

    Examples:
        >>> import keras, multigrad.keras
        >>> x = keras.Input((2,))
        >>> y = xg.estimators.ste_round(x)  # of a symbolic tensor: an operation in the model
        >>> model = keras.Model(x, y)
        >>> any(isinstance(each, multigrad.keras.FunctionOperation) for each in model.operations)
        True

    Args:
        function: what to call.
    """

    def __init__(self, function: Function, name: str | None = None) -> None:
        super().__init__(name=name)
        self.function = function
        keyed = function.is_keyed or BACKEND != "jax"
        self._run = function if keyed else function._drawing(self._refuse_draw)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the Function's outputs."""
        return self._run(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs' shapes and dtypes."""
        return infer_outputs(self._run, args, kwargs)

    def _refuse_draw(self) -> Any:
        raise RuleError(
            f"operation {self.name!r} draws random numbers, for which jax has no generator: make "
            f"it a layer, which holds one, multigrad.keras.CustomGradient({self.function.name}), "
            f"or use {self.function.name}.keyed(0)"
        )

    def get_config(self) -> dict[str, Any]:
        """Return the operation as data.

        Raises:
            MultigradError: the Function runs as it is, so there is nothing to be saved.
        """
        return {
            "name": self.name,
            "function": describe_function(f"operation {self.name!r}", self.function),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FunctionOperation:
        """Return the operation that a config describes.

        Raises:
            FormatError: its Function is malformed.
        """
        name = config.get("name")
        return cls(read_function(f"operation {name!r}", config.get("function")), name=name)


# --- as data --------------------------------------------------------------------------------------


def describe_function(owner: str, function: Function) -> dict[str, Any]:
    """Return the Function of a layer or an operation as data: the forms in which it was captured.

    Raises:
        MultigradError: it cannot be captured, or a document cannot hold it.
    """
    try:
        return function.to_dict()
    except MultigradError as error:
        raise type(error)(f"{owner} cannot be saved: {error}") from error


def read_function(owner: str, data: Any) -> Function:
    """Return the Function that `describe_function` described.

    Raises:
        FormatError: the data are malformed.
    """
    try:
        function = from_dict(data)
    except FormatError as error:
        raise FormatError(f"{owner}: {error}") from error
    if not isinstance(function, Function):
        raise FormatError(
            f"{owner}: it needs a function, and this document is a {type(function).__name__}"
        )
    return function


def describe_forward(owner: str, forward: Forward) -> Any:
    """Return the forward of a layer as data: a name, or the Function of code in its place.

    Raises:
        MultigradError: it cannot be captured, or a document cannot hold it.
    """
    if isinstance(forward, ForwardOfCode):
        try:
            function = forward.saved()
        except MultigradError as error:
            raise type(error)(f"{owner} cannot be saved: {error}") from error
        return describe_function(owner, function)
    return forward.name


def read_forward(owner: str, data: Any) -> Any:
    """Return what `describe_forward` described.

    Raises:
        FormatError: the data are malformed.
    """
    return data if isinstance(data, str) else read_function(owner, data)


def call_symbolic(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Add a call of a Function to the model under construction."""
    return FunctionOperation(function)(*args, **kwargs)


take_placeholders(keras.KerasTensor, call_symbolic)
