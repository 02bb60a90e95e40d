"""Operations of Keras by name, intercepted while a model with rules on them is called.

`keras.ops`, `keras.activations` and Keras's layers all call their backend's functions as attributes
of its modules. These are replaced while any model has rules on operations, and act only where a
layer of such a model is called on the same thread. Backend functions that call each other count as
one operation, the outermost.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras

# Keras (3.15) has no public names for the functions that its operations call.
from keras.src import backend as keras_backend
from keras.src.activations import activations as keras_activations

from ...errors import RuleValueError
from ...graph.support.threads import make_lock
from ...models.interpose import Over, RuleOver, named, over, put_over
from ..compiled_steps import HOST, in_symbolic_scope

Tensor = Any
Call = Callable[..., Any]

# --- the operations -------------------------------------------------------------------------------
ELEMENTWISE = """
    absolute arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil clip cos cosh erf erfc erfinv
    exp exp2 expm1 floor log log10 log1p log2 nan_to_num negative reciprocal round rsqrt sign sin
    sinc sinh sqrt square tan trunc
"""
# keras.ops and keras.activations call these by another name.
SAME = {"abs": "absolute", "exponential": "exp", "swish": "silu", "hard_swish": "hard_silu"}
MODULES = ("nn", "numpy", "math")
# These classes compute an operation by others, which count unless it is selected itself.
COMPOSED = {"relu": keras_activations.ReLU, "mish": keras_activations.Mish}
# Operations that compute another one in their kernel, where a rule on it cannot act.
KERNELS = {"dot_product_attention": "softmax"}
RECURRENT_KERNELS = ("lstm", "gru")


def canonical(function: Call) -> str:
    return SAME.get(function.__name__, function.__name__)


FUNCTIONS: dict[Call, str] = {
    function: canonical(function)
    for module in (keras.ops, keras.activations)
    for function in vars(module).values()
    if inspect.isfunction(function)
}
NOT_ACTIVATIONS = ("deserialize", "get", "linear", "serialize")
# The names that select an operation, with its name here.
NAMES: dict[str, str] = {
    name: SAME.get(name, name)
    for name in (*vars(keras.activations), *ELEMENTWISE.split(), *SAME)
    if name not in NOT_ACTIVATIONS and SAME.get(name, name) in FUNCTIONS.values()
}
OTHERS = ("jax", "tensorflow", "torch")


def find_operation(selector: Any) -> str | None:
    """Return the operation that a selector is: a name, or a function of Keras."""
    if isinstance(selector, str):
        return NAMES.get(selector)
    if not callable(selector):
        return None
    if inspect.isfunction(selector) and selector in FUNCTIONS:
        known = FUNCTIONS[selector]
        if known in NAMES.values():
            return known
        raise RuleValueError(
            f"no rule goes on keras.ops.{selector.__name__}: it is not computed element by element "
            "of one tensor. Select the layer that computes it, by its name, its type or a predicate"
        )
    home = (getattr(selector, "__module__", None) or "").split(".")[0]
    name = getattr(selector, "__name__", "")
    if home in OTHERS or getattr(sys.modules.get("torch"), name or " ", None) is selector:
        known = f"keras.ops.{name}" if name in NAMES else "keras.ops.relu"
        raise RuleValueError(
            f"{home or 'torch'}'s own {name!r} is called by nothing that Keras can see: write "
            f"{known}, or its name, for what Keras and its layers call; where a layer's `call` "
            f"calls {home or 'torch'} itself, select that layer"
        )
    return None


# --- a call of a layer ----------------------------------------------------------------------------
# not a dict: Dynamo (torch 2.13) reads no signatures after a dict has changed in its trace
class CalledOperations:
    """The operations that were called, as attributes."""


class LayerScope:
    """The operations that have rules while a layer is called.

    Attributes:
        rules: a rule by an operation's name.
        called: for each handle, the operations that were called.
    """

    __slots__ = ("called", "rules")

    def __init__(self, rules: dict[str, Any], called: tuple[CalledOperations, ...]) -> None:
        self.rules = rules
        self.called = called


class Current(threading.local):
    """The scope on this thread."""

    def __init__(self) -> None:
        # not a ContextVar, which torch.compile cannot follow; a call ends before another task runs
        self.scope: LayerScope | None = None


CURRENT = Current()


def run_operation(name: str, original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an operation's outputs, under its rule if it has one."""
    scope = CURRENT.scope
    if scope is None:
        return original(*args, **kwargs)
    rule = note(scope, name)
    CURRENT.scope = None  # functions that it calls are part of it
    try:
        return run_under(rule, original, args, kwargs)
    finally:
        CURRENT.scope = scope


def run_composed(name: str, original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation made of others, which count unless it has a rule itself."""
    scope = CURRENT.scope
    if scope is None or name in scope.rules:
        return run_operation(name, original, args, kwargs)
    note(scope, name)
    return original(*args, **kwargs)


def note(scope: LayerScope, name: str) -> Any:
    """Note that an operation is called, and return its rule, if any."""
    for called in scope.called:
        setattr(called, name, True)
    inner = KERNELS.get(name)
    if inner in scope.rules:
        raise RuleValueError(
            f"keras.ops.{name} computes {inner!r} in one kernel, in which no rule acts: select the "
            f"layer that calls it, or let it be computed apart (in a MultiHeadAttention by "
            "return_attention_scores=True)"
        )
    return scope.rules.get(name)


def run_under(rule: Any, original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an operation's outputs, with a rule's gradient for its tensor."""
    if rule is None or not args or in_symbolic_scope():
        return original(*args, **kwargs)
    x = args[0].value if isinstance(args[0], keras.Variable) else args[0]
    if not is_float(x):
        return original(*args, **kwargs)
    out = original(keras.ops.stop_gradient(x), *args[1:], **kwargs)
    return put_over(look_up(rule), named(rule.rule), f"operation {original.__name__!r}", x, out)


def look_up(rule: RuleOver) -> Over:
    """Return a rule over a forward; a trace notes its name, without a guard."""
    return rule.now() if HOST.compiler.on_depend is None else over(rule.rule)


def is_float(x: Any) -> bool:
    return keras.ops.is_tensor(x) and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(x.dtype)
    )


def refuse_kernel(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a recurrent layer's fused kernel; refuse if a rule is on an operation inside it."""
    scope = CURRENT.scope
    if scope is not None and {"sigmoid", "tanh"} & scope.rules.keys():
        raise NotImplementedError
    return original(*args, **kwargs)


# --- Keras's modules ------------------------------------------------------------------------------
LOCK = make_lock()
ORIGINALS: list[tuple[Any, str, Any]] = []
HANDLES: set[Any] = set()


def watch(handle: Any) -> None:
    """Replace Keras's backend functions while any handle needs it."""
    with LOCK:
        HANDLES.add(handle)
        if not ORIGINALS:
            for owner, name, wrapped in [*find_places()]:
                ORIGINALS.append((owner, name, vars(owner)[name]))
                setattr(owner, name, wrapped)


def unwatch(handle: Any) -> None:
    """Restore Keras's backend functions once no handle needs ours."""
    with LOCK:
        HANDLES.discard(handle)
        while ORIGINALS and not HANDLES:
            # restored before it is removed: an interrupt in between is harmless
            setattr(*ORIGINALS[-1])
            ORIGINALS.pop()


def find_places() -> Iterator[tuple[Any, str, Any]]:
    """Yield the places where Keras looks up its operations, with our replacements."""
    for name in sorted({*FUNCTIONS.values()}):
        for module in MODULES:
            owner = getattr(keras_backend, module)
            original = vars(owner).get(name)
            if inspect.isroutine(original):
                yield owner, name, wrapped(original, functools.partial(run_operation, name))
    for name, kind in COMPOSED.items():
        original = kind.static_call
        run = functools.partial(run_composed, name)
        yield kind, "static_call", staticmethod(wrapped(original, run))
    for name in RECURRENT_KERNELS:
        original = vars(keras_backend)[name]
        yield keras_backend, name, wrapped(original, refuse_kernel)


def wrapped(original: Call, run: Call) -> Call:
    """Return a function that is run as `run(original, args, kwargs)`."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(original, args, kwargs)

    return call
