"""The table of Keras functions that have a meaning in ops, on whatever backend Keras runs.

`keras.ops`, `keras.activations` and `keras.random` have no dispatch protocol, so a rule gets
stand-ins for them. Where Keras's backends disagree (`sign` of NaN), the meaning is NumPy's.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, MethodType
from typing import Any

import keras
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.variables import AutocastScope, get_autocast_scope

from multigrad.core.ir.op import FLOATS, FLOATS_OF_16_BITS, INT32, WHOLE, T, is_float
from multigrad.core.support.trees import optree
from multigrad.core.trace.trace import Value, cast, dtype_name
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.copies.substitute import substitute
from multigrad.engine.capture.dialect import (
    Calls,
    Dialect,
    Gradients,
    Habits,
    Handler,
    Names,
    OwnTrace,
    State,
    Tensors,
    register_dialect,
)
from multigrad.engine.capture.dialects import numpy
from multigrad.engine.capture.foreign_calls import Interception, symbols_in
from multigrad.engine.capture.meanings import composites, control_flow, creation, parts
from multigrad.engine.capture.name_tables import Library
from multigrad.engine.capture.user_code.libraries import is_library_file
from multigrad.engine.trace.code_trace import CodeTrace

from . import arrays
from .backend import TYPES, compute_at_once, find_traced

Tensor = Any


class BackendTensor:
    """A placeholder for the tensors of Keras's backend, which are no `keras.KerasTensor`."""


def convert_to_tensor(x: Any, dtype: Any = None) -> Tensor:
    if isinstance(x, float) and dtype_name(dtype) in WHOLE:
        raise TypeError("a number that is rounded to an integer: cast to a float first")
    tensor = xp.stack(x, 0) if isinstance(x, list | tuple) else x
    return tensor if dtype is None else cast(tensor, dtype)


def is_tensor(x: Tensor) -> bool:
    return True


def is_keras_tensor(x: Tensor) -> bool:
    return False


def dtype_of(x: Tensor) -> Any:
    return x.dtype


def standardize_dtype(dtype: Any) -> Any:
    name = dtype_name(dtype)
    # the open dtype has no name
    return dtype if name == T else name


def is_float_dtype(dtype: Any) -> bool:
    return dtype_name(dtype) in (T, *FLOATS)


def is_int_dtype(dtype: Any) -> bool:
    return dtype_name(dtype) == INT32


# --- random numbers, from the key of the rule's application ---------------------------------------
def dropout(inputs: Tensor, rate: float, seed: Any = None) -> Tensor:
    mask = xp.greater_equal(composites.uniform(inputs, generator=seed), rate)
    return xp.where(mask, xp.divide(inputs, 1.0 - rate), 0.0)


def by_its_code(function: Handler) -> Handler:
    """Return the handler of a Keras function written in `keras.ops`, which captures its code."""
    # A new function: the original would be replaced by this handler.
    names, cells = function.__globals__, function.__closure__
    code = FunctionType(function.__code__, names, argdefs=function.__defaults__, closure=cells)
    return OwnTrace(call_code, code)


def call_code(code: Handler, /, *args: Any, **kwargs: Any) -> Any:
    trace = next(symbols_in((args, kwargs))).trace
    return substitute(code, trace)(*args, **kwargs)


def typed_by_keras(function: Handler) -> Handler:
    """Return the handler of a function whose result's dtype only Keras knows."""
    record = by_its_code(function)

    # A plain function, no `OwnTrace`: so the capture asks Keras for the result's dtype
    # (`foreign_calls.py`).
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return record(*args, **kwargs)

    return call


TENSORS: dict[str, Handler] = {
    **{f.__name__: f for f in (is_tensor, numpy.shape)},
    **{f.__name__: f for f in (xp.cast, xp.ones_like, xp.size, xp.zeros_like)},
    "dtype": dtype_of,
    "ndim": parts.rank,
    "empty_like": xp.zeros_like,
    "full_like": arrays.full_like,
}


LOOPS: dict[str, Handler] = {
    **{
        f.__name__: f
        for f in (control_flow.associative_scan, control_flow.cond, control_flow.fori_loop)
    },
    "map": control_flow.map_rows,
}

TREES = """
    assert_same_paths assert_same_structure flatten flatten_with_path is_nested lists_to_tuples
    map_structure map_structure_up_to pack_sequence_as traverse
"""
# Losses of targets and predictions.
LOSSES = {
    name: loss
    for name, loss in vars(keras.losses).items()
    if isinstance(loss, FunctionType) and "y_true" in inspect.signature(loss).parameters
}
# By module of Keras.
NAMES: dict[str, Mapping[str, Handler]] = {
    "ops": {
        **arrays.OPS,
        **TENSORS,
        **LOOPS,
    },
    "losses": {name: by_its_code(loss) for name, loss in LOSSES.items()},
    "utils": {"normalize": arrays.normalize},
    "activations": arrays.ACTIVATIONS,
    "quantizers": {
        name: typed_by_keras(getattr(keras.quantizers, name))
        for name in ("fake_quant_with_min_max_vars",)
        if hasattr(keras.quantizers, name)
    },
    "backend": {
        "is_float_dtype": is_float_dtype,
        "is_int_dtype": is_int_dtype,
        "is_keras_tensor": is_keras_tensor,
        "standardize_dtype": standardize_dtype,
    },
}

# Functions that make tensors; a rule's calls of them are replaced without symbolic arguments, too.
MAKING = ("arange", "empty", "full", "ones", "zeros")
ALWAYS_REPLACED: dict[str, Mapping[str, Handler]] = {
    "ops": creation.creators_of(keras.ops, MAKING, compute_at_once())
}
BRANCHES = "which branches on a tensor. Use keras.ops.where(condition, x, y)"
LOOPED = "which runs a function in a loop. Write it with keras.ops.scan, or for whole tensors"
INDICES = "whose indices are not captured. Use a mask: xp.argmax_mask(x, axis), xp.top_k_mask(x, k)"
DERIVES = "but a rule is the backward pass. Write the derivative out"
DRAWS = (
    "which is not captured. Draw with keras.random.normal(keras.ops.shape(grad_out)) or uniform, "
    "and give the key to xg.use(..., key=...)"
)
LOOPING = "vectorize vectorized_map while_loop"
INDEXING = "argpartition nanargmax nanargmin nonzero"
DRAWING = "beta binomial categorical gamma randint shuffle truncated_normal"
REFUSED: dict[str, dict[str, str]] = {
    "ops": {
        "switch": BRANCHES,
        **dict.fromkeys(LOOPING.split(), LOOPED),
        **dict.fromkeys(INDEXING.split(), INDICES),
        **dict.fromkeys(("custom_gradient", "jvp"), DERIVES),
        "convert_to_numpy": "but a symbolic tensor holds no numbers. Use keras.ops on it",
    },
    "random": dict.fromkeys(DRAWING.split(), DRAWS),
}


def by_function(names: Mapping[str, Mapping[str, Any]]) -> dict[Any, Any]:
    return {
        getattr(getattr(keras, module), name): handler
        for module, rows in names.items()
        for name, handler in rows.items()
        if hasattr(getattr(keras, module), name)
    }


# Attributes in which Keras keeps records of a layer; a call does not compute with them.
BOOKKEEPING = """
    _called _inbound_nodes _lock _losses _loss_ids _losses_override _metrics
    _non_trainable_variables _outbound_nodes _seed_generators _trainable_variables _tracker
"""
CALL: Any = vars(keras.layers.Layer)["__call__"]


def call_layer(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a layer; on symbolic values only its own `call`, without Keras's work around it."""
    leaves = optree.tree_leaves((args, kwargs), none_is_leaf=True)
    trace = next((leaf.trace for leaf in leaves if isinstance(leaf, Value)), None)
    if trace is None:
        return CALL(self, *args, **kwargs)
    if "call" in vars(self):
        raise trace.error(
            f"calls {self.name!r}, where an attribute `call` replaces that of its class, as rules "
            "of xg.attach do, and a graph would leave it out: detach them first"
        )
    if kwargs.get("training"):
        raise trace.error(f"calls {self.name!r} in training, which is not captured")
    args, kwargs = optree.tree_map(
        functools.partial(as_input, self), (args, kwargs), none_is_leaf=True
    )
    with autocasting(self):
        return call_own(self, trace, args, kwargs)


# --- a policy's casts: as Keras (3.15) makes them around a layer's own `call` ---------------------
def as_input(layer: Any, x: Any) -> Any:
    """Return an argument in the dtype of a layer that computes in 16 bits, or meets such numbers.

    Other layers compute in the dtype of the call, as in float64, where Keras would round it.
    """
    if not (isinstance(x, Value) and is_float(x.node.type)):
        return x
    is_cast = layer.autocast and layer._convert_input_args
    has_16_bits = {x.node.type.dtype, layer.compute_dtype} & {*FLOATS_OF_16_BITS}
    return cast(x, layer.input_dtype) if is_cast and has_16_bits else x


def autocasting(layer: Any) -> AbstractContextManager[Any]:
    """Return the scope in which a layer's variables are read."""
    around = get_autocast_scope()
    if around is None and layer.compute_dtype == layer.variable_dtype:
        return nullcontext()
    casts = around is None or (layer.autocast and is_float_dtype(layer.compute_dtype))
    return AutocastScope(layer.compute_dtype if casts else None)


def as_read(layer: Any, name: str, value: Any, trace: CodeTrace) -> Any:
    """Return what a layer reads as an attribute: a variable in the scope's dtype, if it is cast."""
    scope = get_autocast_scope()
    if isinstance(value, list) and any(isinstance(each, Value) for each in value):
        return [as_read(layer, name, each, trace) for each in value]
    if scope is None or scope.dtype is None or not isinstance(value, Value):
        return value
    # A symbol does not know its variable, whose records the layer has.
    variables = [*layer._trainable_variables, *layer._non_trainable_variables]
    named = [each for each in variables if each.name == name.removeprefix("_")]
    flags = {each._autocast for each in named or variables}
    if len(flags) > 1:
        raise trace.error(
            f"reads {name!r} of {layer.name!r}, some of whose variables the policy "
            f"{layer.dtype_policy.name!r} does not cast: give the variable that name"
        )
    return cast(value, scope.dtype) if flags != {False} and is_float(value.node.type) else value


def call_own(self: Any, trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if hasattr(self, "_nodes_by_depth"):
        return call_graph(self, trace, *args)
    if isinstance(self, keras.Sequential):
        (x,) = args
        refuse_masks(self.layers, trace)
        for layer in self.layers:
            x = layer(x)
        return x
    attributes = {
        name: substitute(value, trace)
        if is_activation(value)
        else as_read(self, name, value, trace)
        for name, value in vars(self).items()
    }
    # A copy whose Keras functions, such as an activation, take symbols.
    stand_in = object.__new__(type(self))
    attributes.update(
        {
            name: substitute(MethodType(method, stand_in), trace)
            for name, method in methods_of(type(self)).items()
        }
    )
    vars(stand_in).update(attributes)
    result = substitute(MethodType(type(self).call, stand_in), trace)(*args, **kwargs)
    for name, value in vars(stand_in).items():
        # an attribute that changed is an effect, which a graph would not repeat
        if value is not attributes.get(name):
            raise trace.error(f"assigns to {name!r} of {self.name!r}, which a graph does not do")
    return result


def refuse_masks(operations: Sequence[Any], trace: CodeTrace) -> None:
    for each in operations[:-1]:
        # such layers pass a mask of steps to later layers, together with the result
        if isinstance(each, keras.layers.Masking) or getattr(each, "mask_zero", False):
            raise trace.error(f"calls {each.name!r}, which passes a mask, which is not captured")


def mask_of(x: Any) -> Any:
    """Return the mask that a tensor carries; a symbol has none."""
    return None if isinstance(x, Value) else get_keras_mask(x)


BEGINS_A_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def call_graph(self: Any, trace: CodeTrace, inputs: Any) -> Any:
    refuse_masks(self.operations, trace)

    def called(operation: Any) -> Callable[..., Any]:
        if isinstance(operation, keras.layers.Layer):
            return operation
        name = BEGINS_A_WORD.sub("_", type(operation).__name__).lower()
        function: Any = getattr(keras.ops, name, None)
        if function not in DIALECT.names.aliases and find_traced(function) is None:
            raise trace.error(f"calls {self.name!r}, whose {name!r} is not captured")
        parameters = inspect.signature(function).parameters
        options = {key: value for key, value in vars(operation).items() if key in parameters}
        return functools.partial(substitute(function, trace), **options)

    outputs = self._run_through_graph(inputs, operation_fn=called)
    # Keras unpacks a single output.
    is_one = isinstance(outputs, list | tuple) and len(outputs) == 1
    return outputs[0] if is_one else outputs


def methods_of(kind: type) -> dict[str, FunctionType]:
    methods: dict[str, FunctionType] = {}
    names = [*kind.call.__code__.co_names]  # type: ignore[attr-defined]
    while names:
        name = names.pop()
        method = getattr(kind, name, None)
        if (
            name not in methods
            and isinstance(method, FunctionType)
            and not hasattr(keras.layers.Layer, name)
        ):
            methods[name] = method
            names += method.__code__.co_names
    return methods


def is_activation(value: Any) -> bool:
    """Return whether a layer's attribute is a function of tensors, of Keras or of the user."""
    if not isinstance(value, FunctionType):
        return False
    is_kerass = value in DIALECT.names.aliases or find_traced(value) is not None
    return is_kerass or not is_library_file(value.__code__.co_filename)


def is_layer(value: Any) -> bool:
    return isinstance(value, keras.layers.Layer)


def holding(variable: Any, tensor: Any) -> Any:
    # A variable that is cast where it is read needs its library for that.
    if not variable._autocast:
        return tensor
    clone = object.__new__(type(variable))
    vars(clone).update(vars(variable), _value=tensor)
    return clone


def describe(value: Any) -> tuple[str, bool] | None:
    return (value.path, value.trainable) if isinstance(value, keras.Variable) else None


DIALECT = Dialect(
    names=Names(
        aliases={
            **by_function(NAMES),
            **arrays.NAMED,
            **arrays.KERAS.called(
                {
                    control_flow: "scan(unroll=)",
                    __name__: "convert_to_tensor: convert_to_tensor(sparse=, ragged=) array",
                }
            ),
            **Library(keras.random).called(
                {creation: "normal(dtype=); uniform(dtype=)", __name__: "dropout"}
            ),
        },
        hidden={**by_function(ALWAYS_REPLACED), get_keras_mask: mask_of},
        refused=by_function(REFUSED),
        shown="keras.ops",
        trees=frozenset(getattr(keras.tree, name) for name in TREES.split()),
    ),
    tensors=Tensors(
        tensor=BackendTensor,
        dtype=str,  # Keras's own names
        device="cpu",
        mutable=False,
    ),
    calls=Calls(
        protocol=False,
        at_once=compute_at_once,
        keeps=is_layer,
        finds=find_traced,
        other_way=find_traced,
    ),
    gradients=Gradients(
        interceptions=(Interception(keras.layers.Layer, "__call__", call_layer),),
    ),
    state=State(
        runs_on=keras.backend.backend,
        variables=(keras.Variable,),
        describe=describe,
        holding=holding,
        bookkeeping=frozenset(BOOKKEEPING.split()),
    ),
    types=TYPES,
    # keras.backend.result_type, and convert_to_tensor
    habits=Habits(promotes_to_float32=True, lists_are_tensors=True, unordered=frozenset({"topk"})),
)
register_dialect("keras", DIALECT)
