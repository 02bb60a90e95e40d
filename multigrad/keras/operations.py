"""Rules on Keras's operations: which operations there are, and what a call of one does.

`keras.ops`, `keras.activations` and Keras's layers all call their backend's functions as attributes
of its modules. These are replaced while any model has rules on operations (`replace_functions`),
and act only where a layer of such a model is called on the same thread: `run_layer` sets
`CURRENT.operations` around the call. Backend functions that call each other count as one operation,
the outermost.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

# Keras (3.15) has no public names for these, among them the functions that its operations call.
from keras.src import backend as keras_backend
from keras.src.activations import activations as keras_activations
from keras.src.backend import get_keras_mask, set_keras_mask

from ..errors import GradientError, RuleTypeError, RuleValueError
from ..models.attribution.composites import Composite
from ..models.gradient_replacement import (
    CurrentReplacement,
    Replacement,
    named,
    replace_gradient,
    replacement_for,
)
from ..models.selectors import (
    GAP,
    NOT_CALLED,
    Rules,
    empty_message,
    multiplies,
    not_called_message,
    shares_relevance,
    warn_of_gaps,
)
from .base import list_leaves
from .compiled_steps import HOST, in_symbolic_scope, keeping_weights

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


# --- layers of a Keras model while rules are on them: their calls are intercepted -----------------
# A layer gets instance attributes `call` and `quantized_call`, which take precedence over its
# class's methods; Keras looks them up in every way of calling, and they are in no config, file or
# pickle.
#
#     layer(x) -> the attribute `call` -> RuledLayer.call -> run_layer
#                                         sets the rules on operations for this thread
#                                         runs the layer's own `call`, or its forward under a rule
#
# Each handle (`attachment.py`) is a `LayerRules`; each layer with handles on it has a `RuledLayer`.
METHODS = ("call", "quantized_call")
FIRST = "called first"  # the attribute of `LayerRules.called` with the identity of that layer
# Keras keeps the inputs of these with the outputs, for losses.
WITH_LOGITS = frozenset({"sigmoid", "softmax"})


@dataclass(eq=False, slots=True)
class LayerRules:
    """The rules that one `attach` puts on a model, which its layers and operations know it by.

    Attributes:
        operations: a rule by an operation's name.
        find_late_layers: returns the names of selected layers that were made after `attach`; None
            if none can be made.
        within: by the identity of a layer, the rules by operation for its calls.
        called: the operations that were called, and the layers.
        given: the rules as they were given: a mapping, or a composite.
        attachment: the handle that its user has.
        is_checked: whether `check_reached` has found a call of the model that reached all selected
            operations.
        superseded: whether it was detached, so that traces made with it are stale.
    """

    model: Any
    operations: dict[str, Any]
    find_late_layers: Callable[[], list[str]] | None = None
    within: dict[int, dict[str, Any]] = field(default_factory=dict)
    called: CalledOperations = field(default_factory=CalledOperations)
    given: Rules = field(default_factory=dict)
    attachment: Any = None
    is_checked: bool = False
    superseded: bool = False

    def __hash__(self) -> int:
        return id(self)

    @property
    def notes_calls(self) -> bool:
        """Whether calls of operations are noted that have no rule."""
        return isinstance(self.given, Composite) or shares_relevance(self.given)

    def rules_in(self, layer: Any) -> dict[str, Any]:
        return {**self.operations, **self.within.get(id(layer), {})}


class RuledLayer:
    """A layer that is under rules now: one for each layer, as long as handles are on it.

    `attach.put` and `attach.take` set the attributes, and then call `update_methods`.

    Attributes:
        handles: the handles of the models that the layer is a part of, those with rules for it.
        forward_handle: the handle that decides on the layer's whole forward; None if none does.
        run: the forward that it gives the layer, `(call, args, kwargs)`; None without such a
            handle, and where a composite names the layer to have no rule.
        operations: the rules on the operations that the layer calls, made of the handles'.
        instance_methods: the methods that were attributes of the instance before.
        note: what handles note of its calls begins with that, in `LayerRules.called`.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.note = f"layer {id(layer)} "
        self.handles: list[LayerRules] = []
        self.forward_handle: LayerRules | None = None
        self.run: Call | None = None
        self.operations: OperationRules | None = None
        self.instance_methods = {name: vars(layer)[name] for name in METHODS if name in vars(layer)}

    def update_methods(self) -> None:
        """Replace the layer's methods for the rules that act now, or restore them."""
        self.operations = self._merge_operations()
        attributes = vars(self.layer)
        for name in METHODS:
            if not hasattr(type(self.layer), name):
                continue
            if self.handles:
                attributes[name] = make_call(self, self._original(name))
            elif name in self.instance_methods:
                attributes[name] = self.instance_methods[name]
            else:
                attributes.pop(name, None)

    def _merge_operations(self) -> OperationRules | None:
        """Return the handles' rules on operations that the layer calls; None if there are none."""
        # A composite that names the layer to have no rule has none on its operations either.
        left_alone_by = self.forward_handle if self.run is None else None
        rules: dict[str, Any] = {}
        called_operations: list[CalledOperations] = []
        for handle in self.handles:
            has_rules = handle.notes_calls or handle.rules_in(self.layer)
            if handle is not left_alone_by and has_rules:
                rules.update(handle.rules_in(self.layer))
                called_operations.append(handle.called)
        if not called_operations:
            return None
        replacements = {
            name: None if rule is None else CurrentReplacement(rule) for name, rule in rules.items()
        }
        gap = "" if self.run is not None or left_alone_by is not None else self.note
        return OperationRules(replacements, tuple(called_operations), gap)

    def _original(self, name: str) -> Call:
        if name in self.instance_methods:
            return self.instance_methods[name]
        return getattr(type(self.layer), name).__get__(self.layer)

    def call(self, original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if in_symbolic_scope():
            # it only finds shapes: no rule acts, and nothing may go stale
            return run_layer(self.operations, None, original, args, kwargs)
        for handle in self.handles:
            if HOST.compiler.on_depend is not None:
                HOST.compiler.on_depend(handle)
            if handle.model is self.layer and not handle.is_checked:
                setattr(handle.called, FIRST, "")  # calls of a part alone may have been before
        if HOST.compiler.recall is None:
            outputs = run_layer(self.operations, self.run, original, args, kwargs)
        else:
            outputs = self._call_in_regions(original, args, kwargs)
        if self.operations is not None and WITH_LOGITS & self.operations.rules.keys():
            for leaf in list_leaves(outputs):  # by the logits losses would bypass a rule
                if hasattr(leaf, "_keras_logits"):
                    del leaf._keras_logits
        for handle in self.handles:
            setattr(handle.called, self.note, True)
            if handle.model is self.layer and not handle.is_checked:
                check_reached(handle)
        return outputs

    def _call_in_regions(
        self, original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the layer's outputs; where it runs again, under the rules of its first run."""
        present = self.run, self.operations, tuple(self.handles)
        recall, on_call = HOST.compiler.recall, HOST.compiler.on_call
        assert recall is not None and on_call is not None  # set together with `recall`
        run, operations, handles = recall((id(self), "acts"), present)
        if any(each.superseded for each in handles) and children_of(self.layer):
            raise GradientError(
                f"layer {self.layer.name!r} is computed again in backward (RematScope), and the "
                "rules within it were detached since its forward: take the gradient first, and "
                "detach then"
            )
        with on_call():
            return run_layer(operations, run, original, args, kwargs)


def run_layer(
    operations: OperationRules | None,
    run: Call | None,
    original: Call,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Return a layer's outputs, under its rule if it has one, and with rules on operations."""
    previous = CURRENT.operations
    CURRENT.operations = operations
    try:
        return original(*args, **kwargs) if run is None else run(original, args, kwargs)
    finally:
        CURRENT.operations = previous


def make_call(ruled: RuledLayer, original: Call) -> Call:
    @functools.wraps(original)
    @keeping_weights
    def call(*args: Any, **kwargs: Any) -> Any:
        return ruled.call(original, args, kwargs)

    vars(call)[RULED_LAYER] = ruled
    return call


RULED_LAYER = "_multigrad_ruled_layer"  # the attribute of a replaced `call` that holds it


def ruled_layer(layer: Any) -> RuledLayer:
    """Return the record of the rules on a layer, a new one if it has none."""
    ruled = getattr(vars(layer).get("call"), RULED_LAYER, None)
    return RuledLayer(layer) if ruled is None else ruled


def check_reached(handle: LayerRules) -> None:
    met = vars(handle.called).keys() & {*OPERATION_OF_NAME.values()}
    unmet = [name for name in handle.operations if name not in met]
    if isinstance(handle.given, Composite):
        if all(row.rule == GAP or row.rule.endswith(NOT_CALLED) for row in handle.attachment.rows):
            raise RuleValueError(empty_message(handle.given, met))
    elif unmet:
        advice = (
            f". What a layer computes by functions of {keras.config.backend()} itself is not seen: "
            "select that layer"
        )
        subject = f"a call of model {handle.model.name!r}"
        raise RuleValueError(not_called_message(subject, unmet[0], met, advice))
    if shares_relevance(handle.given):
        advice = "A product has a rule as a layer, such as Dense"
        warn_of_gaps(handle.given, handle.attachment.rows, advice, stacklevel=6)
    late = [] if handle.find_late_layers is None else handle.find_late_layers()
    if late:
        raise RuleValueError(
            f"model {handle.model.name!r} made layer {late[0]!r} only when it was called, after "
            "the rules were attached: build it, or call it once, before"
        )
    handle.is_checked = True


def children_of(layer: Any) -> list[Any]:
    """Return the layers that a layer holds and calls, except InputLayers, which compute nothing."""
    # Keras (3.15) has no public name for either attribute.
    children = [*getattr(layer, "_layers", ()), *getattr(layer, "_operations", ())]
    by_id = {id(each): each for each in children if not isinstance(each, keras.layers.InputLayer)}
    return list(by_id.values())


def make_run(layer: Any, rule: Any) -> Call:
    """Return a layer's forward under a plain rule, for `RuledLayer.run`."""
    subject = f"layer {layer.name!r} ({type(layer).__name__})"
    replacement = CurrentReplacement(rule)

    def run(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = find_input(subject, args, kwargs)
        constant = keras.ops.stop_gradient(x)
        keep_mask(x, constant)
        if args and args[0] is x:
            args = (constant, *args[1:])
        else:
            args, kwargs = replace_leaves((args, kwargs), [(x, constant)])
        out = original(*args, **kwargs)
        if not keras.ops.is_tensor(out):
            raise RuleTypeError(
                f"{subject} gives {type(out).__name__}, and a rule has the gradient of one tensor: "
                "select the layers within it, or an operation"
            )
        y = replace_gradient(look_up(replacement), named(rule), subject, x, out)
        keep_mask(out, y)
        return y

    return run


def replace_leaves(arguments: Any, pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Return nested arguments in which the second of each pair replaces the first."""

    def replace(leaf: Any) -> Any:
        for leaf_before, leaf_after in pairs:
            if leaf is leaf_before:
                return leaf_after
        return leaf

    return keras.tree.map_structure(replace, arguments)


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


def keep_mask(tensor: Any, replacement: Any) -> None:
    mask = get_keras_mask(tensor)
    if mask is not None:
        set_keras_mask(replacement, mask)
