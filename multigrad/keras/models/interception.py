"""Calls of a Keras model's layers and operations, intercepted while rules are on them.

`keras.ops`, `keras.activations` and Keras's layers all call their backend's functions as attributes
of its modules. These are replaced while any model has rules on operations, and act only where a
layer of such a model is called on the same thread. Backend functions that call each other count as
one operation, the outermost. A layer gets an instance attribute `call`, which takes precedence over
its class's; Keras looks it up in every way of calling, and it is part of no config, file or pickle.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import keras

# Keras (3.15) has no public names for these, among them the functions that its operations call.
from keras.src import backend as keras_backend
from keras.src.activations import activations as keras_activations
from keras.src.backend import get_keras_mask, set_keras_mask

from ...errors import GradientError, RuleTypeError, RuleValueError
from ...graph.support.class_bases import dataclass
from ...graph.support.threads import make_lock
from ...models.interpose import Over, RuleOver, named, over, put_over, unmet
from ..base import list_leaves
from ..compiled_steps import HOST, in_symbolic_scope, keeping_weights

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


def children_of(layer: Any) -> list[Any]:
    """Return the layers that a layer holds and calls, except InputLayers, which compute nothing."""
    # Keras (3.15) has no public name for either attribute.
    held = [*getattr(layer, "_layers", ()), *getattr(layer, "_operations", ())]
    once = {id(each): each for each in held if not isinstance(each, keras.layers.InputLayer)}
    return list(once.values())


# --- layers under rules ---------------------------------------------------------------------------
# Keras (3.15) has no public names for these.


METHODS = ("call", "quantized_call")
# Keras keeps the inputs of these with the outputs, for losses.
WITH_LOGITS = frozenset({"sigmoid", "softmax"})


@dataclass(eq=False, slots=True)
class LayerRules:
    """The rules that one handle puts on a model.

    Attributes:
        model: the model.
        operations: a rule by an operation's name.
        within: by the identity of a layer, the rules by operation for its calls.
        misses: returns the names of selected layers made since; None if none can be made.
        called: the operations that were called.
        is_seen: whether a call of the model has reached all selected operations.
        superseded: whether it was detached, so that traces made with it are stale.
    """

    model: Any
    operations: dict[str, Any]
    misses: Callable[[], list[str]] | None = None
    within: dict[int, dict[str, Any]] = field(default_factory=dict)
    called: CalledOperations = field(default_factory=CalledOperations)
    is_seen: bool = False
    superseded: bool = False

    def __hash__(self) -> int:
        return id(self)

    def rules_in(self, layer: Any) -> dict[str, Any]:
        """Return the handle's rules for operations that a layer calls."""
        return {**self.operations, **self.within.get(id(layer), {})}


class Changes:
    """The rules that act on a layer now.

    Attributes:
        run: the layer's forward under a rule, `(call, args, kwargs)`, or None.
        owner: the handle of that rule, or of a composite that leaves the layer without one.
        handles: the handles of the models that the layer is a part of.
        own: the methods that were attributes of the instance before.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.run: Call | None = None
        self.owner: LayerRules | None = None
        self.handles: list[LayerRules] = []
        self.scope: LayerScope | None = None
        self.own: dict[str, Any] = {}

    def call(self, original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # a symbolic call only finds shapes: no rule acts, and nothing may go stale
        symbolic = in_symbolic_scope()
        if HOST.compiler.on_depend is not None and not symbolic:
            for handle in self.handles:
                HOST.compiler.on_depend(handle)
        if HOST.compiler.recall is None or symbolic:
            outputs = run_in(self.scope, None if symbolic else self.run, original, args, kwargs)
        else:
            outputs = self.call_in_regions(original, args, kwargs)
        if symbolic:
            return outputs
        if self.scope is not None and WITH_LOGITS & self.scope.rules.keys():
            forget_logits(outputs)
        for handle in self.handles:
            if handle.model is self.layer and not handle.is_seen:
                check_seen(handle)
        return outputs

    def call_in_regions(self, original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the layer's outputs; where it runs again, under the rules of its first run."""
        acts = self.run, self.scope, tuple(self.handles)
        recall, on_call = HOST.compiler.recall, HOST.compiler.on_call
        assert recall is not None and on_call is not None  # set together with `recall`
        run, scope, handles = recall((id(self), "acts"), acts)
        if any(each.superseded for each in handles) and children_of(self.layer):
            raise GradientError(
                f"layer {self.layer.name!r} is computed again in backward (RematScope), and the "
                "rules within it were detached since its forward: take the gradient first, and "
                "detach then"
            )
        with on_call():
            return run_in(scope, run, original, args, kwargs)

    def renew(self) -> None:
        """Replace the layer's methods for the rules that act now, or restore them."""
        held = vars(self.layer)
        # A composite names this layer to have no rule.
        keeps = None if self.run is not None else self.owner
        acts = [(each, each.rules_in(self.layer)) for each in self.handles if each is not keeps]
        ruled = [each for each, rules in acts if rules]
        self.scope = None
        if ruled:
            rules = {name: rule for _, each in acts for name, rule in each.items()}
            acting = {
                name: None if rule is None else RuleOver(rule) for name, rule in rules.items()
            }
            self.scope = LayerScope(acting, tuple(each.called for each in ruled))
        for name in METHODS:
            if not hasattr(type(self.layer), name):
                continue
            if self.handles:
                held[name] = make_call(self, self.original(name))
            elif name in self.own:
                held[name] = self.own[name]
            else:
                held.pop(name, None)

    def original(self, name: str) -> Call:
        if name in self.own:
            return self.own[name]
        return getattr(type(self.layer), name).__get__(self.layer)


def run_in(
    scope: LayerScope | None, run: Call | None, original: Call, args: tuple[Any, ...], kwargs: Any
) -> Any:
    """Return a layer's outputs, under its rule if it has one, and with rules on operations."""
    before = CURRENT.scope
    CURRENT.scope = scope
    try:
        return original(*args, **kwargs) if run is None else run(original, args, kwargs)
    finally:
        CURRENT.scope = before


def make_call(changes: Changes, original: Call) -> Call:
    @functools.wraps(original)
    @keeping_weights
    def call(*args: Any, **kwargs: Any) -> Any:
        return changes.call(original, args, kwargs)

    vars(call)[CHANGES] = changes
    return call


CHANGES = "_multigrad_changes"


def changes_of(layer: Any) -> Changes:
    """Return the changes that act on a layer, or new ones."""
    known = getattr(vars(layer).get("call"), CHANGES, None)
    if known is not None:
        return known
    changes = Changes(layer)
    changes.own = {name: vars(layer)[name] for name in METHODS if name in vars(layer)}
    return changes


def forget_logits(outputs: Any) -> None:
    """Drop the logits kept with outputs, by which losses would bypass a rule."""
    for leaf in list_leaves(outputs):
        if hasattr(leaf, "_keras_logits"):
            del leaf._keras_logits


def check_seen(handle: LayerRules) -> None:
    """Raise if a model's call reached not all operations, or made selected layers."""
    missing = [name for name in handle.operations if name not in vars(handle.called)]
    if missing:
        called = vars(handle.called).keys() & {*NAMES.values()}
        advice = (
            f". What a layer computes by functions of {keras.config.backend()} itself is not seen: "
            "select that layer"
        )
        subject = f"a call of model {handle.model.name!r}"
        raise RuleValueError(unmet(subject, missing[0], called, advice))
    late = [] if handle.misses is None else handle.misses()
    if late:
        raise RuleValueError(
            f"model {handle.model.name!r} made layer {late[0]!r} only when it was called, after "
            "the rules were attached: build it, or call it once, before"
        )
    handle.is_seen = True


# --- a rule over a layer's whole forward ----------------------------------------------------------
def make_run(layer: Any, rule: Any) -> Call:
    """Return a layer's forward under a plain rule, for `Changes.run`."""
    shown = f"layer {layer.name!r} ({type(layer).__name__})"
    acting = RuleOver(rule)

    def run(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = find_input(shown, args, kwargs)

        def hold(leaf: Any) -> Any:
            return held if leaf is x else leaf

        held = keras.ops.stop_gradient(x)
        keep_mask(x, held)
        if args and args[0] is x:
            out = original(held, *args[1:], **kwargs)
        else:
            given: Any = keras.tree.map_structure(hold, (args, kwargs), none_is_leaf=True)
            out = original(*given[0], **given[1])
        if not keras.ops.is_tensor(out):
            raise RuleTypeError(
                f"{shown} gives {type(out).__name__}, and a rule has the gradient of one tensor: "
                "select the layers within it, or an operation"
            )
        y = put_over(look_up(acting), named(rule), shown, x, out)
        keep_mask(out, y)
        return y

    return run


def find_input(shown: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the one tensor of floats that a layer's rule acts on."""
    if len(args) == 1 and not kwargs and is_float(args[0]):
        return args[0]
    tensors = [leaf for leaf in list_leaves((args, kwargs)) if is_float(leaf)]
    if len(tensors) == 1:
        return tensors[0]
    if tensors:
        raise RuleTypeError(
            f"{shown} takes {len(tensors)} tensors, and a rule gives the gradient of one: select "
            "the layers before it, those within it, or an operation"
        )
    raise RuleTypeError(
        f"{shown} takes no tensor of floating point, so nothing has a gradient for a rule: select "
        "the layers after it"
    )


def keep_mask(given: Any, made: Any) -> None:
    """Copy the mask of a tensor to the one that replaces it."""
    mask = get_keras_mask(given)
    if mask is not None:
        set_keras_mask(made, mask)
