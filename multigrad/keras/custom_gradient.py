"""`multigrad.keras.CustomGradient`: any Function as a Keras 3 layer.

The layer passes the native tensors of Keras's backend to the Function, or to a bridge. It adds what
Keras needs: shapes of symbolic calls, masks, a config in which the Function is data, a state for
random draws where the framework has no generator, and compiled steps that follow when the Function
or the backend is assigned.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import keras

# Keras (3.15) has no public names for these.
from keras.src.backend import get_keras_mask, set_keras_mask

from ..backend.contract import Backend
from ..errors import RuleTypeError, TraceError, UnsupportedOp
from ..functions.function import Function
from ..functions.recipes.record import NotCaptured
from ..functions.recipes.saved import SavedRecipe
from ..graph.support.class_bases import dataclass
from ..lowering.input_checks import find_lacking
from ..rules.bridging import call_function
from .base import HoldingLayer, list_leaves
from .function import (
    describe_function,
    imitate_outputs,
    infer_outputs,
    knows_lengths,
    probe_outputs,
    read_function,
    run_captured,
)
from .tracing import BACKEND, opaque, refuse_xla

Tensor = Any


@keras.saving.register_keras_serializable(package="multigrad")
class CustomGradient(HoldingLayer):
    """A layer that calls a Function, with the Function's own gradient.

    Examples:
        >>> import keras, multigrad.keras
        >>> @xg.custom_gradient
        ... def reverse(x):
        ...     return x, lambda upstream: -upstream
        >>> layer = multigrad.keras.CustomGradient(reverse)
        >>> keras.ops.convert_to_numpy(layer(np.array([1.0, 2.0])))
        array([1., 2.], dtype=float32)

    It is called as the Function is: with several tensors, nested ones, numbers and words, by
    position or by name; the outputs are nested as the Function nests them. Floating-point tensors
    come in the layer's compute dtype. `training` is handed on where the Function has a parameter of
    that name and the layer is called with it.

    `function` and `backend` may be assigned at any time; the next step follows, on every Keras
    backend. A tf.function of one's own raises StaleTraceError instead.

    A mask is handed on where one argument has one and the only output has that argument's shape.

    What is saved is what was captured of the Function: for the kinds of arguments that it was
    called with. A file loads without the Function's source, on every Keras backend.

    Args:
        function: what `xg.custom_gradient`, `xg.function`, `xg.from_autograd_function` and their
            like make.
        backend: the framework that runs forward and backward: "torch", "jax", "tensorflow" or
            "numpy"; None is Keras's own. Another one is reached as `Activation` does. One that the
            Function alone is written for will do, even where it cannot be captured.
        **options: Keras's own, such as `name` and `dtype`.

    Raises:
        RuleError: it is not a Function (also a TypeError).
        BackendNotFound: no such backend, or it is not installed.
        UnsupportedOp: the backend lacks an op of the Function.
    """

    def __init__(self, function: Function, backend: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._allow_non_tensor_positional_args = True
        self._hold(function, backend)

    # --- what may be assigned ---------------------------------------------------------------------

    @property
    def function(self) -> Function:
        """The Function that is called. Assign to change it."""
        return self._held.what

    @function.setter
    def function(self, function: Function) -> None:
        if function is not self.function:
            with self._changing():
                self._hold(function, self.backend)

    def _hold(self, what: Function, backend: str | None) -> None:
        super()._hold(what, backend)
        self._drawing = what
        if self.seed_generator is not None and not what.is_keyed:
            self._drawing = what._drawing(self._draw_key)
        self._call_signature = CallSignature(f"layer {self.name!r}", what)  # Keras's, of `call`

    def _check(self, what: Any, backend: Backend) -> None:
        check_function(self.name, what)
        for variant in tuple(what.captures.variants.values()):
            graphs = variant.graphs
            find_lacking(f"function {what.name!r}", backend, graphs.forward, graphs.backward)

    def _draw_key(self) -> Tensor:
        return self._draw_words(f"layer {self.name!r}")

    # --- calls ------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # masks are passed here, after the call, as only here all arguments are known
        outputs = super().__call__(*args, **kwargs)
        hand_on_mask((args, kwargs), outputs)
        return outputs

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def _call_symbolically(self, *args: Any, **kwargs: Any) -> Any:
        guest = self._held.guest
        if guest is None:
            return self._drawing(*args, **kwargs)
        try:
            return run_captured(self._drawing, args, kwargs)
        except (NotCaptured, UnsupportedOp):
            # jax's symbolic lengths cannot be given to another framework
            if not knows_lengths(args, kwargs):
                return imitate_outputs(self.function, args, kwargs, guest)
            return self._call_elsewhere(*args, **kwargs)

    def _call_here(self, *args: Any, **kwargs: Any) -> Any:
        return self._drawing(*args, **kwargs)

    def _call_exported(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return run_captured(self._drawing, args, kwargs)
        except NotCaptured as error:
            raise TraceError(
                f"layer {self.name!r} runs in {self._held.guest!r} and cannot be exported from "
                f"{BACKEND}, as its function is not captured: {error.error}"
            ) from error

    @opaque
    def _call_elsewhere(self, *args: Any, **kwargs: Any) -> Any:
        guest = self._held.guest
        assert guest is not None
        return call_function(self._drawing, args, kwargs, guest)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        guest = self._held.guest
        if guest is None:
            return infer_outputs(self._drawing, args, kwargs)
        refuse_xla(self)

        def run(*args: Any, **kwargs: Any) -> Any:
            return run_captured(self._drawing, args, kwargs)

        try:
            return infer_outputs(run, args, kwargs)
        except (NotCaptured, UnsupportedOp):
            return probe_outputs(self.function, args, kwargs, guest)

    def compute_output_shape(self, *shapes: Any, **named: Any) -> Any:
        """Return the outputs' shapes for tensors of these shapes, in the layer's compute dtype."""

        def stand_in(shape: Any) -> Any:
            return keras.KerasTensor(shape, dtype=self.compute_dtype)

        args, kwargs = keras.tree.map_shape_structure(stand_in, (list(shapes), named))
        outputs = self.compute_output_spec(*args, **kwargs)
        return keras.tree.map_structure(lambda y: getattr(y, "shape", None), outputs)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        """Return None: `__call__` passes masks, as it knows all arguments."""

    # --- saving -----------------------------------------------------------------------------------

    def _describe(self) -> dict[str, Any]:
        return {"function": describe_function(f"layer {self.name!r}", self.function)}

    @classmethod
    def _read(cls, layer: str, config: Mapping[str, Any]) -> dict[str, Any]:
        return {"function": read_function(layer, config.get("function"))}


@dataclass(frozen=True, slots=True)
class CallSignature:
    """A Function's signature in the form that Keras reads of a layer's `call`.

    Keras knows no argument that nests tensors with other values, so each leaf counts as an
    argument.
    """

    owner: str
    function: Function
    checked: set[str] = field(default_factory=set)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        known = self.function.parameters
        return {} if known is None else known.parameters

    def bind(self, *args: Any, **kwargs: Any) -> Bound:
        """Return the leaves of a call's arguments.

        Raises:
            TypeError: the Function does not take them.
        """
        # Once for each way of calling, as compilers cannot follow the check.
        way = f"{len(args)} {' '.join(kwargs)}"
        if way not in self.checked:
            self._check(args, kwargs)
            self.checked.add(way)
        return Bound({f"leaf {i}": leaf for i, leaf in enumerate(list_leaves((args, kwargs)))})

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        known = self.function.parameters
        try:
            if not args and not kwargs:
                raise TypeError("called without an argument")
            # A document has the names of parameters, not their defaults.
            if known is not None and not isinstance(self.function.recipe, SavedRecipe):
                known.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.owner}, function {self.function.name!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class Bound:
    """The leaves of a call's arguments, as Keras reads `inspect.BoundArguments`."""

    arguments: dict[str, Any]

    def apply_defaults(self) -> None:
        """Do nothing: the Function fills in its defaults."""


def check_function(layer: str, function: Any) -> None:
    """Raise, with advice, if an object is not a Function."""
    if isinstance(function, Function):
        return
    given = getattr(function, "__name__", None) or type(function).__name__
    if isinstance(function, type):
        advice = f"for a torch.autograd.Function class write xg.from_autograd_function({given})"
    elif callable(function):
        advice = (
            f"write xg.custom_gradient({given}) where it returns (outputs, grad), "
            f"xg.function({given}, backward) where its gradient is another function, "
            f"xg.from_custom_vjp({given}) or xg.from_tf_custom_gradient({given}) where jax or "
            "TensorFlow made it. A rule goes to multigrad.keras.Activation"
        )
    else:
        advice = "make one by xg.custom_gradient, xg.function, or xg.load of a file"
    raise RuleTypeError(
        f"layer {layer!r} takes a Function, got {type(function).__name__} {function!r:.60}; "
        f"{advice}"
    )


def hand_on_mask(given: Any, output: Any) -> None:
    """Give an output the mask of the only masked argument, if their shapes are equal."""
    masked = [leaf for leaf in list_leaves(given) if get_keras_mask(leaf) is not None]
    if len(masked) != 1:
        return
    is_single = keras.ops.is_tensor(output) or isinstance(output, keras.KerasTensor)
    if is_single and shape_of(masked[0]) == shape_of(output):
        set_keras_mask(output, get_keras_mask(masked[0]))


def shape_of(x: Tensor) -> tuple[int | None, ...] | None:
    """Return the known part of a shape; None if TensorFlow does not know the rank."""
    return None if getattr(x.shape, "rank", 0) is None else tuple(x.shape)
