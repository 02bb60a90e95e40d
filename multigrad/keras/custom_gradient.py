"""`multigrad.keras.CustomGradient`: any Function as a Keras 3 layer.

The layer hands the native tensors of Keras's backend to the Function, or to a bridge. What it adds is Keras's: shapes of
symbolic calls, masks, a config in which the Function is data, a state for random draws where the framework has no
generator, and compiled steps that follow when the Function or the backend is assigned.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

# Keras (3.15) has no public names for them.
from keras.src.backend import get_keras_mask, set_keras_mask

from ..errors import RuleTypeError, TraceError, UnsupportedOp
from ..functions.function import Function
from ..functions.record import NotCaptured
from ..functions.saved import SavedRecipe
from ..lowering.backend import load_backend
from ..lowering.input_checks import find_lacking
from .config import read_backend
from .function import (
    describe_function,
    imitate_outputs,
    infer_outputs,
    knows_lengths,
    probe_outputs,
    read_function,
    run_captured,
)
from .structure import keeping_weights, note_models, renew_steps
from .tracing import BACKEND, HOST, in_symbolic_scope, is_exporting, refuse_scan, refuse_xla

Tensor = Any


@keras.saving.register_keras_serializable(package="multigrad")
class CustomGradient(keras.layers.Layer):
    """A layer that calls a Function, with the Function's own gradient.

    Example:
        >>> clipped = xg.from_autograd_function(ClippedReLU)
        >>> y = multigrad.keras.CustomGradient(clipped)(x, 1.5)

    It is called as the Function is: with several tensors, nested ones, numbers and words, by position or by name; the
    outputs are nested as the Function nests them. Floating-point tensors come in the layer's compute dtype. `training` is
    handed on where the Function has a parameter of that name and the layer is called with it.

    `function` and `backend` may be assigned at any time; the next step follows, on every Keras backend. A tf.function of
    one's own raises StaleTraceError instead.

    A mask is handed on where one argument has one and the only output has that argument's shape.

    What is saved is what was captured of the Function: for the kinds of arguments that it was called with. A file loads
    without the Function's source, on every Keras backend.

    Args:
        function: what `xg.custom_gradient`, `xg.function`, `xg.from_autograd_function` and their like make.
        backend: the framework that runs forward and backward: "torch", "jax", "tensorflow" or "numpy"; None is Keras's
            own. Another one is reached as `Activation` does. One that the Function alone is written for will do, even
            where it cannot be captured.
        **options: Keras's own, such as `name` and `dtype`.

    Raises:
        RuleError: it is no Function (also a TypeError).
        BackendNotFound: no such backend, or it is not installed.
        UnsupportedOp: the backend lacks an op of the Function.
    """

    def __init__(self, function: Function, backend: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.supports_masking = True
        self._allow_non_tensor_positional_args = True
        self._traced_for: weakref.WeakSet[Any] = weakref.WeakSet()
        self.seed_generator = None
        if BACKEND == "jax":
            # jax has no generator to draw from; as in Dropout, the model's state holds one.
            self.seed_generator = keras.random.SeedGenerator()
        self._hold(function, backend)

    # --- what may be assigned ------------------------------------------------------------------------

    @property
    def function(self) -> Function:
        """What is called. Assign to change it."""
        return self._held.function

    @function.setter
    def function(self, function: Function) -> None:
        self._replace(function, self.backend)

    @property
    def backend(self) -> str | None:
        """The framework that runs this layer; None is Keras's own. Assign to change it."""
        return self._held.backend

    @backend.setter
    def backend(self, backend: str | None) -> None:
        self._replace(self.function, backend)

    def _replace(self, function: Function, backend: str | None) -> None:
        before = self._held
        if before.function is function and before.backend == backend:
            return
        self._hold(function, backend)
        before.superseded = True
        renew_steps(self._traced_for)

    def _hold(self, function: Function, backend: str | None) -> None:
        check_function(self.name, function)
        check_backend(function, backend)
        self._held = Held(function, backend, self._draw_key if BACKEND == "jax" else None)
        self._call_signature = CallSignature(f"layer {self.name!r}", function)  # Keras's, of `call`
        # Whether XLA may compile the layer: `jit_compile="auto"` asks.
        self.supports_jit = BACKEND != "tensorflow" or self._held.guest is None

    def _draw_key(self) -> Tensor:
        """Return the generator's next state: two words, known at run time."""
        assert self.seed_generator is not None
        refuse_scan(f"layer {self.name!r}")
        return self.seed_generator.next().astype("uint32")

    # --- calls ---------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the Function's outputs."""
        outputs = super().__call__(*args, **kwargs)
        hand_on_mask((args, kwargs), outputs)
        return outputs

    @keeping_weights
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the Function's outputs for tensors of Keras's backend."""
        held = self._held
        if in_symbolic_scope():
            return self._call_symbolically(args, kwargs)
        if HOST.watch is not None:
            note_models(self._traced_for, find_tensor((args, kwargs)))
            HOST.watch(held)
        if held.guest is None:
            return held.run(*args, **kwargs)
        if is_exporting(find_tensor((args, kwargs))):
            return self._call_at_home(args, kwargs)
        return call_elsewhere(held.run, args, kwargs, held.guest)

    def _call_symbolically(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what has the outputs' shapes and dtypes; no gradient is taken."""
        held = self._held
        if held.guest is None:
            return held.run(*args, **kwargs)
        refuse_xla(self)
        try:
            return run_captured(held.run, args, kwargs)
        except (NotCaptured, UnsupportedOp):
            if not knows_lengths(args, kwargs):
                return imitate_outputs(held.function, args, kwargs, held.guest)
            return call_elsewhere(held.run, args, kwargs, held.guest)

    def _call_at_home(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs on Keras's own backend: what is exported must run where no other framework is.

        Raises:
            TraceError: only the other framework can run the Function.
        """
        held = self._held
        try:
            return run_captured(held.run, args, kwargs)
        except NotCaptured as error:
            raise TraceError(
                f"layer {self.name!r} runs in {held.guest!r} and cannot be exported from {BACKEND}, as its function is "
                f"not captured: {error.error}"
            ) from error

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs' shapes and dtypes."""
        held = self._held
        if held.guest is None:
            return infer_outputs(held.run, args, kwargs)
        refuse_xla(self)

        def run(*args: Any, **kwargs: Any) -> Any:
            return run_captured(held.run, args, kwargs)

        try:
            return infer_outputs(run, args, kwargs)
        except (NotCaptured, UnsupportedOp):
            return probe_outputs(held.function, args, kwargs, held.guest)

    def compute_output_shape(self, *shapes: Any, **named: Any) -> Any:
        """Return the outputs' shapes for tensors of these shapes, in the layer's compute dtype."""

        def stand_in(shape: Any) -> Any:
            return keras.KerasTensor(shape, dtype=self.compute_dtype)

        args, kwargs = keras.tree.map_shape_structure(stand_in, (list(shapes), named))
        outputs = self.compute_output_spec(*args, **kwargs)
        return keras.tree.map_structure(lambda y: getattr(y, "shape", None), outputs)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        """Return None: `__call__` hands masks on, as it knows all arguments."""

    # --- saving --------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Return the layer as data.

        Raises:
            MultigradError: the Function cannot be captured, or was captured with what no document holds.
        """
        data = describe_function(f"layer {self.name!r}", self.function)
        return {**super().get_config(), "function": data, "backend": self.backend}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CustomGradient:
        """Return the layer that a config describes.

        Raises:
            FormatError: its Function is malformed.
        """
        function = read_function(f"layer {config.get('name')!r}", config.get("function"))
        backend = read_backend(str(config.get("name")), config.get("backend"))
        return cls(**{**config, "function": function, "backend": backend})


class Held:
    """What a layer calls, and where. Another takes its place when one of them is assigned.

    Attributes:
        run: the Function, which draws from the layer's own generator where it has one.
        guest: the framework to run in, where it is not Keras's own.
        superseded: whether another has taken its place, so that what was traced with it is stale.
    """

    __slots__ = ("backend", "function", "guest", "run", "superseded")

    def __init__(
        self, function: Function, backend: str | None, draw_key: Callable[[], Tensor] | None
    ) -> None:
        self.function = function
        self.backend = backend
        self.guest = None if backend in (None, BACKEND) else backend
        self.run = function
        if draw_key is not None and not function.is_keyed:
            self.run = function.drawing(draw_key)
        self.superseded = False


@dataclass(frozen=True, slots=True)
class CallSignature:
    """A Function's signature, as Keras reads that of a layer's `call`.

    Keras knows no argument that nests tensors with other values, so each leaf counts as an argument of its own.
    """

    owner: str
    function: Function
    checked: set[str] = field(default_factory=set)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The Function's parameters."""
        known = self.function.parameters
        return {} if known is None else known.parameters

    def bind(self, *args: Any, **kwargs: Any) -> Bound:
        """Return the leaves of a call's arguments.

        Raises:
            TypeError: the Function does not take them.
        """
        # Once for each way of calling: compilers do not like to read it.
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
        """Do nothing: a default is the Function's own affair."""


def check_function(layer: str, function: Any) -> None:
    """Refuse what is no Function, with what to write.

    Raises:
        RuleTypeError: it is none.
    """
    if isinstance(function, Function):
        return
    given = getattr(function, "__name__", None) or type(function).__name__
    if isinstance(function, type):
        advice = f"for a torch.autograd.Function class write xg.from_autograd_function({given})"
    elif callable(function):
        advice = (
            f"write xg.custom_gradient({given}) where it returns (outputs, grad), xg.function({given}, backward) where "
            f"its gradient is another function, xg.from_custom_vjp({given}) or xg.from_tf_custom_gradient({given}) where "
            f"jax or TensorFlow made it. A rule goes to multigrad.keras.Activation"
        )
    else:
        advice = "make one by xg.custom_gradient, xg.function, or xg.load of a file"
    raise RuleTypeError(
        f"layer {layer!r} takes a Function, got {type(function).__name__} {function!r:.60}; {advice}"
    )


def check_backend(function: Function, name: str | None) -> None:
    """Check that a backend is there, and has the ops of what was captured until now.

    Raises:
        BackendNotFound, UnsupportedOp: it is not, or has not.
    """
    backend = HOST if name is None else load_backend(name)
    for variant in tuple(function.variants.values()):
        find_lacking(
            f"function {function.name!r}", backend, variant.pair.forward, variant.pair.backward
        )


def list_leaves(given: Any) -> list[Any]:
    """Return what nested arguments hold; plain Python, which compilers read, as they do not read Keras's own."""
    if isinstance(given, dict):
        given = list(given.values())
    if not isinstance(given, tuple | list):
        return [given]
    leaves = []
    for each in given:
        leaves += list_leaves(each)
    return leaves


def find_tensor(given: Any) -> Tensor:
    """Return the first tensor among arguments."""
    for leaf in list_leaves(given):
        if keras.ops.is_tensor(leaf):
            return leaf
    return None


def hand_on_mask(given: Any, output: Any) -> None:
    """Give an output the mask of the one argument that has one, where their shapes are the same."""
    masked = [leaf for leaf in list_leaves(given) if get_keras_mask(leaf) is not None]
    if len(masked) != 1:
        return
    is_single = keras.ops.is_tensor(output) or isinstance(output, keras.KerasTensor)
    if is_single and shape_of(masked[0]) == shape_of(output):
        set_keras_mask(output, get_keras_mask(masked[0]))


def shape_of(x: Tensor) -> tuple[int | None, ...] | None:
    """Return what is known of a shape; TensorFlow may not know how many lengths it has."""
    return None if getattr(x.shape, "rank", 0) is None else tuple(x.shape)


def run_elsewhere(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], guest: str
) -> Any:
    """Return a Function's outputs, run in another framework."""
    from .. import bridging

    return bridging.call_function(function, args, kwargs, guest)


call_elsewhere = run_elsewhere if HOST.opaque is None else HOST.opaque(run_elsewhere)
