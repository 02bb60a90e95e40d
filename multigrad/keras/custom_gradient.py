"""Functions in Keras models: the layer `multigrad.keras.CustomGradient`, and the operation that a
call on symbolic tensors becomes.

The layer passes the native tensors of Keras's backend to the Function, or to a bridge. It adds what
Keras needs: shapes of symbolic calls, masks, a config in which the Function is data, a state for
random draws where the framework has no generator, and compiled steps that follow when the Function
or the backend is assigned (`base.py`).

What both need first is in the first section: symbolic outputs for symbolic tensors.

    infer_outputs      by Keras's trace of the call, if it can run on Keras's backend
    probe_outputs      by a run on zeros, if another framework alone can run it
    imitate_outputs    zeros of these shapes, within a trace of jax whose lengths are symbolic
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np

# Keras (3.15) has no public names for these.
from keras.src.backend import compute_output_spec, get_keras_mask, set_keras_mask

from ..core.backend.contract import Backend
from ..core.backend.values import owner_of
from ..core.functions.arguments import flatten
from ..core.functions.facts import shape_key
from ..core.functions.recipe import NotCaptured
from ..core.ir.op import dtype_name
from ..core.lowering.checks import find_lacking
from ..core.ops.numerics import as_numpy_dtype
from ..core.support.trees import Tensor, optree
from ..engine.backend.guest import Kind, kind_of
from ..engine.functions.calls.arguments import replace_at, unwrap
from ..engine.functions.calls.parameters import BoundFunction, bind_call
from ..engine.functions.custom_gradient import function as make_function
from ..engine.functions.function import Function, take_placeholders
from ..engine.functions.known_forms import capture_example
from ..engine.rules.guest_function import infer_kinds
from ..engine.rules.opaque import call_function
from ..errors import RuleError, RuleTypeError, TraceError, UnsupportedOp
from .base import HoldingLayer, explaining, list_leaves, naming_options
from .compiled_steps import BACKEND, opaque, refuse_xla
from .config import describe_function, read_function

# --- the outputs of a Function for symbolic tensors -----------------------------------------------


class CallOnTensors:
    """A call as a function of its tensors alone, which returns tensors alone.

    `run_tensors` notes how the call nests its outputs; after it, `nest` puts other tensors in their
    place.

    Args:
        run: what is called.
        leaves, tree: its arguments, the tensors among them at `places`.
    """

    def __init__(
        self, run: Callable[..., Any], leaves: Sequence[Any], tree: Any, places: Sequence[int]
    ) -> None:
        self.run, self.leaves, self.tree, self.places = run, leaves, tree, places
        self.outputs: tuple[Sequence[Any], Any] = (), None  # the leaves, and how they are nested

    def run_tensors(self, *tensors: Tensor) -> list[Tensor]:
        leaves = replace_at(self.leaves, self.places, tensors)
        args, kwargs = optree.tree_unflatten(self.tree, leaves)
        self.outputs = optree.tree_flatten(self.run(*args, **kwargs), none_is_leaf=True)
        return [leaf for leaf in self.outputs[0] if owner_of(leaf) is not None]

    def nest(self, tensors: Iterable[Any]) -> Any:
        remaining, (leaves, nesting) = iter(tensors), self.outputs
        outputs = [leaf if owner_of(leaf) is None else next(remaining) for leaf in leaves]
        return optree.tree_unflatten(nesting, outputs)


def infer_outputs(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return symbolic outputs by Keras's trace of a call; numbers and words stay."""
    leaves, tree = flatten(args, kwargs)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, keras.KerasTensor)]
    call = CallOnTensors(run, leaves, tree, places)
    outputs: Any = compute_output_spec(call.run_tensors, *[leaves[i] for i in places])
    return call.nest(outputs)


def run_captured(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a Function's outputs by its captured graphs, on the tensors' own framework."""
    if function.native is True:
        raise NotCaptured(TraceError(f"function {function.name!r} runs as written (native=True)"))
    capture_example(function, *args, **kwargs)
    return function(*args, **kwargs)


def probe_outputs(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], guest: str
) -> Any:
    """Return symbolic outputs by a run on zeros in another framework."""
    leaves, tree = flatten(args, kwargs)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, keras.KerasTensor)]
    dtypes = [as_numpy_dtype(leaves[i].dtype) for i in places]
    values = [keras.ops.convert_to_numpy(x) if keras.ops.is_tensor(x) else x for x in leaves]

    def run(*args: Any, **kwargs: Any) -> Any:
        return call_function(function, args, kwargs, guest)

    call = CallOnTensors(run, values, tree, places)

    def attempt(shapes: Sequence[Sequence[int]]) -> list[Kind]:
        return list(map(kind_of, call.run_tensors(*map(np.zeros, shapes, dtypes))))

    kinds = infer_kinds([tuple(leaves[i].shape) for i in places], attempt)
    return call.nest(keras.KerasTensor(shape, dtype=dtype) for shape, dtype in kinds)


def imitate_outputs(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], guest: str
) -> Any:
    """Return zeros like the outputs in jax's trace with symbolic lengths."""
    leaves, tree = flatten(args, kwargs)
    leaves = [unwrap(leaf) for leaf in leaves]
    shapes = [tuple(leaf.shape) for leaf in leaves if owner_of(leaf) is not None]
    # every open length of the outputs gets the first symbolic one
    symbolic_length = next(n for shape in shapes for n in shape if not isinstance(n, int))
    args, kwargs = optree.tree_unflatten(tree, [_with_open_lengths(leaf) for leaf in leaves])

    def make(y: Any) -> Any:
        if not isinstance(y, keras.KerasTensor):
            return y
        return keras.ops.zeros([symbolic_length if n is None else n for n in y.shape], y.dtype)

    return optree.tree_map(make, probe_outputs(function, args, kwargs, guest), none_is_leaf=True)


def _with_open_lengths(leaf: Any) -> Any:
    """Return a tensor as a symbolic one of Keras, in which symbolic lengths are None."""
    if owner_of(leaf) is None:
        return leaf
    shape = [n if isinstance(n, int) else None for n in leaf.shape]
    return keras.KerasTensor(shape, dtype=dtype_name(leaf.dtype))


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
        can_draw = function.is_keyed or BACKEND != "jax"
        self._run = function if can_draw else drawing(function, self._refuse_draw)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
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
        """Return the operation that a config describes."""
        name = config.get("name")
        return cls(read_function(f"operation {name!r}", config.get("function")), name=name)


def call_symbolic(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return FunctionOperation(function)(*args, **kwargs)


take_placeholders(keras.KerasTensor, call_symbolic)


# --- the layer ------------------------------------------------------------------------------------
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
            like make; of one with bound numbers (`bind`) the layer takes the rest.
        backend: the framework that runs forward and backward: "torch", "jax", "tensorflow" or
            "numpy"; None is Keras's own. Another one is reached as `Activation` does. One that the
            Function alone is written for will do, even where it cannot be captured.
        **options: Keras's own, such as `name` and `dtype`.

    Raises:
        RuleError: it is not a Function (also a TypeError).
        BackendNotFound: no such backend, or it is not installed.
        UnsupportedOp: the backend lacks an op of the Function.
    """

    def __init__(
        self, function: Function | BoundFunction, backend: str | None = None, **options: Any
    ) -> None:
        with naming_options(options, explaining(CustomGradient)):
            super().__init__(**options)
        self._allow_non_tensor_positional_args = True
        self._set_held(function, backend)

    @property
    def function(self) -> Function:
        """The Function that is called. Assign to change it."""
        return self._held.object

    @function.setter
    def function(self, function: Function | BoundFunction) -> None:
        if function is not self.function:
            with self._renewing_steps():
                self._set_held(function, self.backend)

    def _set_held(self, held: Function | BoundFunction, backend: str | None) -> None:
        """Hold a Function; `_drawing` is the same, with keys of the layer's generator on jax."""
        if isinstance(held, BoundFunction):
            held = make_function(held)  # of the arguments that are open
        super()._set_held(held, backend)
        self._drawing = held
        if self.seed_generator is not None and not held.is_keyed:
            self._drawing = drawing(held, self._draw_key)
        self._call_signature = CallSignature(f"layer {self.name!r}", held)  # Keras's, of `call`

    def _check_ops(self, held: Any, backend: Backend) -> None:
        check_function(self.name, held)
        for variant in tuple(held.captures.variants.values()):
            graphs = variant.graphs
            find_lacking(f"function {held.name!r}", backend, graphs.forward, graphs.backward)

    def _draw_key(self) -> Tensor:
        return self._draw_words(f"layer {self.name!r}")

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
            tensors = [unwrap(leaf) for leaf in flatten(args, kwargs)[0]]
            lengths = [n for x in tensors if owner_of(x) is not None for n in x.shape]
            if not all(n is None or isinstance(n, int) for n in lengths):
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

    def _describe_held(self) -> dict[str, Any]:
        return {"function": describe_function(f"layer {self.name!r}", self.function)}

    @classmethod
    def _read_held(cls, layer: str, config: Mapping[str, Any]) -> dict[str, Any]:
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
        signature = self.function.parameters
        return {} if signature is None else signature.parameters

    def bind(self, *args: Any, **kwargs: Any) -> Bound:
        """Return the leaves of a call's arguments."""
        # Once for each way of calling, as compilers cannot follow the check.
        form = f"{len(args)} {' '.join(kwargs)}"
        if form not in self.checked:
            self._check(args, kwargs)
            self.checked.add(form)
        return Bound({f"leaf {i}": leaf for i, leaf in enumerate(list_leaves((args, kwargs)))})

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        signature = self.function.parameters
        subject = f"{self.owner}, function {self.function.name!r}"
        if not args and not kwargs:
            raise RuleTypeError(f"{subject}: called without an argument")
        # A document has the names of parameters, not their defaults.
        if signature is None or self.function.document is not None:
            return
        try:
            bind_call(subject, signature, args, kwargs)
        except RuleTypeError as error:
            _, *rest = signature.parameters.values()
            missing = [parameter.name for parameter in rest if parameter.default is parameter.empty]
            if len(args) != 1 or kwargs or not missing:
                raise
            # A Sequential model calls with one tensor, and hides a TypeError by one of its own.
            numbers = ", ".join(f'"{name}": ...' for name in missing)
            raise RuleError(
                f"{error}. A Sequential model gives one tensor: fix the others, as "
                f"{self.function.name}.bind({{{numbers}}}) does with numbers, or call the layer "
                "with all"
            ) from None


@dataclass(frozen=True, slots=True)
class Bound:
    """The leaves of a call's arguments, as Keras reads `inspect.BoundArguments`."""

    arguments: dict[str, Any]

    def apply_defaults(self) -> None:
        """Do nothing: the Function fills in its defaults."""


def drawing(function: Function, draw_key: Callable[[], Any]) -> Function:
    """Return a Function that draws each call's two uint32, perhaps of a trace, by `draw_key`."""
    return function.replace(draws=replace(function.draws, generator=draw_key))


def check_function(layer: str, function: Any) -> None:
    if isinstance(function, Function):
        return
    name = getattr(function, "__name__", None) or type(function).__name__
    if isinstance(function, type):
        advice = f"for a torch.autograd.Function class write xg.from_autograd_function({name})"
    elif callable(function):
        advice = (
            f"write xg.custom_gradient({name}) where it returns (outputs, grad), "
            f"xg.function({name}, backward) where its gradient is another function, "
            f"xg.from_custom_vjp({name}) or xg.from_tf_custom_gradient({name}) where jax or "
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
    if is_single and shape_key(masked[0]) == shape_key(output):
        set_keras_mask(output, get_keras_mask(masked[0]))
