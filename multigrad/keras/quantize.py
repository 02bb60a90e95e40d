"""Keras layers with quantized weights and inputs: `Quantized` around any layer, `Quantizer` alone,
and the usual layers by name.

While the inner layer is called, each of its quantized weights has the quantized tensor as its
value, on the calling thread only; elsewhere it is trained, saved and read unquantized.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, ClassVar, Self

import keras
import numpy as np

# Keras (3.15) has no public name for it.
from keras.src.backend.common.variables import AutocastScope

from ..engine.functions.function import Function
from ..errors import RuleTypeError, RuleValueError
from ..estimators.declared import Estimator
from ..estimators.quantizers import STANDARD, Description, axes_of, look_at, read_quantization
from .base import explaining, naming_options
from .compiled_steps import in_symbolic_scope, keeping_weights
from .config import choices_of, describe_function, read_function

Tensor = Any
value_of: Any = keras.Variable.value.fget


class QuantizedWeights(threading.local):
    """The values of quantized weights on this thread, by the weights' identities."""

    def __init__(self) -> None:  # of each thread: Dynamo's guards refuse one that appears later
        self.tensors: Mapping[int, Tensor] = {}


ACTING = QuantizedWeights()


class QuantizedVariable(keras.Variable):
    """A weight that is quantized while its layer is called; `Quantized.build` changes its class."""

    @property
    def value(self) -> Tensor:
        """The quantized tensor while the layer is called, else the weight."""
        tensor = ACTING.tensors.get(id(self))
        if tensor is None:
            return value_of(self)
        return keras.ops.cast(tensor, self.dtype)


@keras.saving.register_keras_serializable(package="multigrad")
class Quantizer(keras.layers.Layer):
    """A layer that quantizes its input by an estimator.

    Examples:
        >>> import keras, multigrad.keras
        >>> layer = multigrad.keras.Quantizer({"name": "lsq", "signed": False}, bits=2)
        >>> y = layer(np.array([[-1.0, 0.5, 9.0]], np.float32))
        >>> [weight.name for weight in layer.trainable_weights]
        ['step']

    Shape: input and output are the same, of any float dtype.

    Args:
        how: as `activations` of `xg.quantize`.
        bits: the bit width, unless the description gives one.
        axis: the axes with separate quantizer parameters per index (-1: per channel).
        sample: typical inputs, from which what is learned starts; it is not saved.
        of: "weights" or "activations"; a name such as "dorefa" means another estimator for each.
        **options: Keras's own, such as `name` and `dtype`.

    Raises:
        RuleError: no such estimator (also a ValueError), or a wrong option (also a TypeError).
    """

    def __init__(
        self,
        how: Description = "lsq",
        bits: int = 4,
        axis: int | tuple[int, ...] | None = None,
        sample: Any = None,
        *,
        of: str = "activations",
        **options: Any,
    ) -> None:
        with naming_options(options, explaining(Quantizer)):
            super().__init__(**options)
        self.supports_masking = True
        self.how, self.bits, self.axis, self.of = how, bits, axis, of
        self._quantization = read_quantization(f"layer {self.name!r}", of, how, bits)
        self._read_sample = None if sample is None else lambda: keras.ops.convert_to_numpy(sample)
        self._learned: list[Any] = []

    def build(self, input_shape: Any) -> None:
        """Make the weights that the estimator learns."""
        axes = axes_of(f"layer {self.name!r}", self.axis, len(input_shape))
        shape = tuple(n if i in axes else 1 for i, n in enumerate(input_shape)) if axes else ()
        while self._learned:  # left by a build that failed
            self._untrack_variable(self._learned.pop())
        for place, name in enumerate(self._quantization.learned):
            weight = self.add_weight(
                shape=shape,
                initializer=self._make_start(place, axes),
                dtype="float64" if self.variable_dtype == "float64" else "float32",
                autocast=False,
                name=name,
            )
            self._learned.append(weight)
            setattr(self, name, weight)

    def _make_start(self, place: int, axes: tuple[int, ...]) -> Callable[..., Tensor]:
        # a function, so that it runs when all weights exist
        def start(shape: Any, dtype: Any = None) -> Tensor:
            sample = STANDARD if self._read_sample is None else look_at(self._read_sample(), axes)
            value = self._quantization.start(sample)[place]
            return keras.ops.convert_to_tensor(np.broadcast_to(value, shape), dtype)

        return start

    def apply_to(self, x: Tensor) -> Tensor:
        """Return a tensor quantized, in its own dtype."""
        return self._quantization(x, *[each.value for each in self._learned])

    @keeping_weights
    def call(self, inputs: Tensor) -> Tensor:
        return self.apply_to(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs: that of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        description = description_to_config(self.name, self.how)
        options = {"how": description, "bits": self.bits, "axis": self.axis, "of": self.of}
        return {**super().get_config(), **options}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        return cls(**{**config, "how": description_from_config(config, "how")})


@keras.saving.register_keras_serializable(package="multigrad")
class Quantized(keras.layers.Wrapper):
    """A layer around another one, whose weights and inputs it quantizes; `xg.quantize` makes it.

    Examples:
        >>> import keras, multigrad.keras
        >>> layer = multigrad.keras.Quantized(keras.layers.Conv1D(4, 3), bits=3, axis=-1)
        >>> layer(np.ones((1, 5, 2), np.float32)).shape[-1]
        4
        >>> [weight.name for weight in layer.trainable_weights]
        ['kernel', 'bias', 'step']

    Args:
        layer: the layer within, built or not.
        weights: how its weights are quantized, as in `xg.quantize`.
        activations: how its inputs are.
        bits: the bit width, unless the descriptions give one.
        axis: the axes with separate quantizer parameters per index.
        sample: typical inputs, from which what is learned of them starts; it is not saved.
        **options: Keras's own, such as `name`.

    Attributes:
        layer: the layer within; its weights are the ones that are trained, not quantized.
        quantizers: the `Quantizer` of each weight.
        inputs_quantizer: the one of the inputs, or None.

    Raises:
        RuleValueError: no such estimator; the layer has no such weights (when it is built), or is
            quantized already.
        RuleTypeError: a wrong option; a layer within was made in a `keras.RematScope`.
    """

    def __init__(
        self,
        layer: Any,
        weights: Description | None = "lsq",
        activations: Description | None = None,
        bits: int = 4,
        axis: int | tuple[int, ...] | None = None,
        sample: Any = None,
        **options: Any,
    ) -> None:
        with naming_options(options, explaining(Quantized)):
            super().__init__(layer, **options)
        self.supports_masking = True
        self.how = {"weights": weights, "activations": activations}
        self.bits, self.axis = bits, axis
        self.quantizers: list[Any] = []
        self.inputs_quantizer: Any = None
        # A function, so that Keras does not track the weights twice: an attribute's are taken for
        # this layer's own.
        self._weights_with_quantizers: Callable[[], Any] = tuple
        if weights is not None:
            read_quantization(f"layer {self.name!r}", "weights", weights, bits)
            refuse_recomputed(self.name, layer)
        if activations is not None:
            if isinstance(layer, keras.Model):
                raise RuleTypeError(
                    f"layer {self.name!r}: a network takes no quantizer of inputs: quantize the "
                    "layers within it"
                )
            self.inputs_quantizer = Quantizer(
                activations, bits, None, sample, name="inputs_quantizer", dtype=layer.dtype_policy
            )

    def build(self, input_shape: Any) -> None:
        """Make what the estimators learn, after the weights of the layer within."""
        if not self.layer.built:
            super().build(input_shape)
        weights = [] if self.how["weights"] is None else self._list_weights()
        quantizers = [self._make_quantizer(each) for each in weights]
        if self.inputs_quantizer is not None:
            self.inputs_quantizer.build(input_shape)
        with ExitStack() as undo:  # last, so that an earlier error has changed no weight
            for each in weights:
                undo.callback(setattr, each, "__class__", type(each))
                each.__class__ = QuantizedVariable
            self.quantizers = quantizers
            self._weights_with_quantizers = lambda: zip(weights, quantizers, strict=True)
            undo.pop_all()
        self.built = True

    def _list_weights(self) -> list[Any]:
        quantizers = [each for each in self.layer._flatten_layers() if isinstance(each, Quantizer)]
        learned = {id(weight) for each in quantizers for weight in each.weights}
        weights = [
            each
            for each in self.layer.weights
            if len(each.shape) >= 2 and "bias" not in each.name and "float" in str(each.dtype)
            if id(each) not in learned
        ]
        if not weights:
            raise RuleValueError(
                f"layer {self.name!r}: {self.layer.name!r} has no weight of two axes or more: with "
                "weights=None inputs alone are quantized"
            )
        for each in weights:
            if isinstance(each, QuantizedVariable):
                raise RuleValueError(
                    f"layer {self.name!r}: weight {each.path!r} is quantized already, by another "
                    "layer: quantize it once"
                )
        return weights

    def _make_quantizer(self, weight: Any) -> Any:
        description = self.how["weights"]
        assert description is not None
        # Layers of a network may have weights of one name, and paths are to differ.
        is_network = isinstance(self.layer, keras.Model)
        name = (weight.path.replace("/", "_") if is_network else weight.name) + "_quantizer"
        quantizer = Quantizer(description, self.bits, self.axis, of="weights", name=name)
        quantizer._read_sample = lambda: keras.ops.convert_to_numpy(weight.value)
        quantizer.build(weight.shape)
        return quantizer

    @keeping_weights
    def call(self, inputs: Tensor, **options: Any) -> Any:
        # shapes do not depend on the quantization
        if in_symbolic_scope():
            return self.layer(inputs, **options)
        if self.inputs_quantizer is not None:
            inputs = self.inputs_quantizer(inputs)
        previous = ACTING.tensors
        with AutocastScope(None):  # the weights as they are stored, in 32 bits
            tensors = {
                id(weight): quantizer.apply_to(weight.value)
                for weight, quantizer in self._weights_with_quantizers()
            }
        ACTING.tensors = {**previous, **tensors}
        try:
            return self.layer(inputs, **options)
        finally:
            ACTING.tensors = previous

    @property
    def metrics(self) -> list[Any]:
        # Keras (3.15) would report those of a compiled network within, which no step updates.
        return [] if isinstance(self.layer, keras.Model) else super().metrics

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        return self.layer.compute_mask(inputs, previous_mask)

    def __getattr__(self, name: str) -> Any:
        with suppress(AttributeError):  # on torch, a module has a method that finds its layers
            return super().__getattr__(name)
        words = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name != "layer" and not name.startswith("_") and name in dir(self.layer):
            words += f"; the {type(self.layer).__name__} within has it: write .layer.{name}"
        raise AttributeError(words, name=name, obj=self)

    def get_config(self) -> dict[str, Any]:
        options = {of: description_to_config(self.name, how) for of, how in self.how.items()}
        return {**super().get_config(), **options, "bits": self.bits, "axis": self.axis}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Self:
        options = {of: description_from_config(config, of) for of in ("weights", "activations")}
        return super().from_config({**config, **options}, custom_objects)


class QuantizedKind(Quantized):
    """Base of `QuantDense` and others: builds the Keras layer `kind` and quantizes it."""

    kind: ClassVar[Any]

    def __init__(
        self,
        *args: Any,
        weights: Description | None = "lsq",
        activations: Description | None = None,
        bits: int = 4,
        axis: int | tuple[int, ...] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        no_scope: Any = None
        # Only the outer layer belongs to that scope.
        explain = explaining(type(self), self.kind)
        with keras.RematScope(mode=no_scope), naming_options(options, explain):
            layer = self.kind(*args, **options)
        super().__init__(
            layer, weights, activations, bits, axis, name=name, dtype=layer.dtype_policy
        )
        self.trainable = layer.trainable

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["layer"]
        return {**self.layer.get_config(), **config}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Self:
        options = {of: description_from_config(config, of) for of in ("weights", "activations")}
        return cls(**{**config, **options})


@keras.saving.register_keras_serializable(package="multigrad")
class QuantDense(QuantizedKind):
    """`keras.layers.Dense` with its kernel, and its inputs, quantized. `.layer` is the Dense, whose
    `.layer.kernel` is trained, not quantized; `.quantizers[0].step` is the kernel's step.

    Examples:
        >>> import keras, multigrad.keras
        >>> layer = multigrad.keras.QuantDense(3, activation="relu", bits=4, activations="lsq")
        >>> layer(np.ones((2, 5), np.float32)).shape[-1]
        3
        >>> len(layer.trainable_weights)  # kernel, bias, and the steps of the kernel and the inputs
        4

    Args:
        *args: those of Dense.
        weights: how the kernel is quantized, as in `xg.quantize`.
        activations: how the inputs are.
        bits: the bit width, unless the descriptions give one.
        axis: the axes with separate quantizer parameters per index (-1: per unit).
        **options: those of Dense.
    """

    kind = keras.layers.Dense


@keras.saving.register_keras_serializable(package="multigrad")
class QuantConv1D(QuantizedKind):
    """`keras.layers.Conv1D` with its kernel, and its inputs, quantized; see `QuantDense`.

    Examples:
        >>> import keras, multigrad.keras
        >>> layer = multigrad.keras.QuantConv1D(4, 3, bits=3)
        >>> tuple(layer(np.ones((1, 5, 2), np.float32)).shape)
        (1, 3, 4)
    """

    kind = keras.layers.Conv1D


@keras.saving.register_keras_serializable(package="multigrad")
class QuantConv2D(QuantizedKind):
    """`keras.layers.Conv2D` with its kernel, and its inputs, quantized; see `QuantDense`.

    Examples:
        >>> import keras, multigrad.keras
        >>> layer = multigrad.keras.QuantConv2D(4, 3, bits=3, axis=-1)
        >>> tuple(layer(np.ones((1, 5, 5, 2), np.float32)).shape)
        (1, 3, 3, 4)
    """

    kind = keras.layers.Conv2D


def description_to_config(layer: str, how: Description | None) -> Any:
    if isinstance(how, Function):
        is_named = isinstance(how, Estimator) and not choices_of(how)
        return how.name if is_named else {"function": describe_function(f"layer {layer!r}", how)}
    return how if how is None or isinstance(how, str) else dict(how)


def description_from_config(config: Mapping[str, Any], key: str) -> Description | None:
    """Return the description that `description_to_config` wrote into a config."""
    description = config.get(key)
    if isinstance(description, Mapping) and "function" in description:
        return read_function(f"layer {config.get('name')!r}", description["function"])
    return description


def refuse_recomputed(name: str, layer: Any) -> None:
    for each in layer._flatten_layers():
        # it would run again in backward without us, on unquantized weights
        mode = getattr(each._remat_mode, "mode", None)
        if mode is not None:
            raise RuleTypeError(
                f"layer {name!r}: {each.name!r} was made in a RematScope, and would be computed "
                "again without its weights quantized: make it outside, and the quantized layer "
                "in the scope"
            )
