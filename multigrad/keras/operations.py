"""Rules on Keras's operations: which operations there are, and what a call of one does.

`keras.ops`, `keras.activations` and Keras's layers all call their backend's functions as attributes
of its modules. These are replaced while any model has rules on operations (`replace_functions`),
and act only where a layer of such a model is called on the same thread: `run_layer`
(`interception.py`) sets `CURRENT.operations` around the call. Backend functions that call each
other count as one operation, the outermost.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

# Keras (3.15) has no public names for these, among them the functions that its operations call.
from keras.src import backend as keras_backend
from keras.src.activations import activations as keras_activations

from ..errors import RuleValueError
from ..models.gradient_replacement import (
    CurrentReplacement,
    Replacement,
    named,
    replace_gradient,
    replacement_for,
)
from ..models.selectors import multiplies
from .base import list_leaves
from .compiled_steps import HOST, in_symbolic_scope

Call = Callable[..., Any]

# --- which operations there are -------------------------------------------------------------------
ELEMENTWISE = """
    absolute arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil clip cos cosh erf erfc erfinv
    exp exp2 expm1 floor log log10 log1p log2 nan_to_num negative reciprocal round rsqrt sign sin
    sinc sinh sqrt square tan trunc
"""
# keras.ops and keras.activations call these by another name.
ALIASES = {"abs": "absolute", "exponential": "exp", "swish": "silu", "hard_swish": "hard_silu"}
# Of `keras.src.backend`, which hold the functions.
BACKEND_MODULES = ("nn", "numpy", "math", "image")
# These classes compute an operation by others, which count unless it is selected itself.
COMPOSED = {"relu": keras_activations.ReLU, "mish": keras_activations.Mish}
# Operations that compute another one in their kernel, where a rule on it cannot act.
COMPUTED_INSIDE = {"dot_product_attention": "softmax"}
RECURRENT_KERNELS = ("lstm", "gru")


# The operation that a function of `keras.ops` or `keras.activations` is.
OPERATION_OF_FUNCTION: dict[Call, str] = {
    function: ALIASES.get(function.__name__, function.__name__)
    for module in (keras.ops, keras.ops.image, keras.activations)
    for function in vars(module).values()
    if inspect.isfunction(function)
}
NOT_ACTIVATIONS = ("deserialize", "get", "linear", "serialize")
# The operation that a word selects: those on which a rule may go.
OPERATION_OF_NAME: dict[str, str] = {
    name: ALIASES.get(name, name)
    for name in (*vars(keras.activations), *ELEMENTWISE.split(), *ALIASES)
    if name not in NOT_ACTIVATIONS and ALIASES.get(name, name) in OPERATION_OF_FUNCTION.values()
}
FRAMEWORKS = ("jax", "tensorflow", "torch")


def find_operation(selector: Any) -> str | None:
    """Return the operation that a selector is: a name, or a function of Keras."""
    if isinstance(selector, str):
        return OPERATION_OF_NAME.get(selector)
    if not callable(selector):
        return None
    if inspect.isfunction(selector) and selector in OPERATION_OF_FUNCTION:
        operation = OPERATION_OF_FUNCTION[selector]
        if operation in OPERATION_OF_NAME.values():
            return operation
        raise RuleValueError(
            f"no rule goes on keras.ops.{selector.__name__}: it is not computed element by element "
            "of one tensor. Select the layer that computes it, by its name, its type or a predicate"
        )
    module = (getattr(selector, "__module__", None) or "").split(".")[0]
    name = getattr(selector, "__name__", "")
    if module in FRAMEWORKS or getattr(sys.modules.get("torch"), name or " ", None) is selector:
        operation = f"keras.ops.{name}" if name in OPERATION_OF_NAME else "keras.ops.relu"
        raise RuleValueError(
            f"{module or 'torch'}'s own {name!r} is called by nothing that Keras can see: write "
            f"{operation}, or its name, for what Keras and its layers call; where a layer's `call` "
            f"calls {module or 'torch'} itself, select that layer"
        )
    return None


# --- an operation that is called ------------------------------------------------------------------
# not a dict: Dynamo (torch 2.13) reads no signatures after a dict has changed in its trace
class CalledOperations:
    """The operations that were called while a handle was attached, as attributes that are True."""


@dataclass(eq=False, slots=True)
class OperationRules:
    """The rules on operations while a layer is called.

    Attributes:
        rules: by an operation's name, its rule; None: a composite leaves it without one.
        called: for each handle that has such rules, where `note_call` notes operations.
        gap: what the notes of operations that multiply relevance begin with; "": the layer has a
            rule for what it computes, so they are not noted.
    """

    rules: dict[str, CurrentReplacement | None]
    called: tuple[CalledOperations, ...]
    gap: str


class Current(threading.local):
    """The rules on operations that act on this thread: those of the layer whose call runs, set by
    `run_layer`; None outside such layers, and within an operation.
    """

    def __init__(self) -> None:
        # not a ContextVar, which torch.compile cannot follow; a call ends before another task runs
        self.operations: OperationRules | None = None


CURRENT = Current()


def run_operation(name: str, original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rules = CURRENT.operations
    if rules is None:
        return original(*args, **kwargs)
    rule = note_call(rules, name)
    CURRENT.operations = None  # functions that it calls are part of it
    try:
        if rule is None or not args or in_symbolic_scope():
            out = original(*args, **kwargs)
            is_moving = kwargs.get("interpolation") == "nearest"  # of an image's elements
            if rules.gap and rule is None and not is_moving and is_gap(name, args, out):
                for called in rules.called:
                    setattr(called, f"{rules.gap}{name}", True)
            return out
        x = args[0].value if isinstance(args[0], keras.Variable) else args[0]
        if not is_float(x):
            return original(*args, **kwargs)
        out = original(keras.ops.stop_gradient(x), *args[1:], **kwargs)
        subject = f"operation {original.__name__!r}"
        return replace_gradient(look_up(rule), named(rule.rule), subject, x, out)
    finally:
        CURRENT.operations = rules


def is_gap(name: str, args: tuple[Any, ...], out: Any) -> bool:
    """Return whether the gradient of a call may multiply relevance: not of a bias that is added."""
    activations = [each for each in list_leaves(args) if is_float(each)]
    negates = name == "subtract" and not is_float(args[0])
    is_result = any(map(is_float, list_leaves(out)))
    return is_result and multiplies(name, len(activations), negates)


def run_free(function: Call, x: Any, note: str) -> Any:
    """Run the activation of a layer, whose own rule is not for what the activation computes."""
    rules = CURRENT.operations
    if rules is not None:
        CURRENT.operations = OperationRules(rules.rules, rules.called, note)
    try:
        return function(x)
    finally:
        CURRENT.operations = rules


def run_composed(name: str, original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation made of others, which count unless it has a rule itself."""
    rules = CURRENT.operations
    if rules is None or name in rules.rules:
        return run_operation(name, original, args, kwargs)
    note_call(rules, name)
    return original(*args, **kwargs)


def note_call(acting: OperationRules, name: str) -> CurrentReplacement | None:
    """Note that an operation is called; return its rule, if any."""
    for called in acting.called:
        setattr(called, name, True)
    inner = COMPUTED_INSIDE.get(name)
    if inner in acting.rules:
        raise RuleValueError(
            f"keras.ops.{name} computes {inner!r} in one kernel, in which no rule acts: select the "
            f"layer that calls it, or let it be computed apart (in a MultiHeadAttention by "
            "return_attention_scores=True)"
        )
    return acting.rules.get(name)


def look_up(rule: CurrentReplacement) -> Replacement:
    """Return the replacement for a rule; a trace notes the rule's name, without a guard."""
    return rule.now() if HOST.compiler.on_depend is None else replacement_for(rule.rule)


def is_float(x: Any) -> bool:
    return keras.ops.is_tensor(x) and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(x.dtype)
    )


def refuse_kernel(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a recurrent layer's fused kernel; refuse if a rule is on an operation inside it."""
    rules = CURRENT.operations
    if rules is not None and {"sigmoid", "tanh"} & rules.rules.keys():
        raise NotImplementedError
    return original(*args, **kwargs)


# --- the functions of Keras that are replaced -----------------------------------------------------
# What is replaced now, all or nothing: (module or class, name, value). Changes hold
# `models.attach.CHANGING`.
ORIGINALS: list[tuple[Any, str, Any]] = []
HANDLES: set[Any] = set()  # those that have rules on operations


def replace_functions(handle: Any) -> None:
    """Replace Keras's backend functions, until `restore_functions` of the last such handle."""
    HANDLES.add(handle)
    if not ORIGINALS:
        for owner, name, replacement in [*list_replacements()]:
            ORIGINALS.append((owner, name, vars(owner)[name]))
            setattr(owner, name, replacement)


def restore_functions(handle: Any) -> None:
    """Restore Keras's backend functions once no handle needs ours."""
    HANDLES.discard(handle)
    while ORIGINALS and not HANDLES:
        # restored before it is removed: an interrupt in between is harmless
        setattr(*ORIGINALS[-1])
        ORIGINALS.pop()


def list_replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield the places where Keras looks up its operations, with our functions for them."""
    for name in sorted({*OPERATION_OF_FUNCTION.values()}):
        for module in BACKEND_MODULES:
            owner = getattr(keras_backend, module)
            original = vars(owner).get(name)
            if inspect.isroutine(original):
                run = functools.partial(run_operation, name)
                yield owner, name, wrapped(original, run)
    for name, kind in COMPOSED.items():
        original = kind.static_call
        run = functools.partial(run_composed, name)
        yield kind, "static_call", staticmethod(wrapped(original, run))
    for name in RECURRENT_KERNELS:
        original = vars(keras_backend)[name]
        yield keras_backend, name, wrapped(original, refuse_kernel)


def wrapped(original: Call, run: Call) -> Call:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(original, args, kwargs)

    return call
