"""Layers and operations of a Keras model that are called under rules.

An instance attribute `call` takes precedence over its class's, and Keras looks it up in every way
of calling. It is part of no config, file or pickle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import field
from typing import Any

import keras

# Keras (3.15) has no public names for these.
from keras.src.backend import get_keras_mask, set_keras_mask

from ...errors import GradientError, RuleTypeError, RuleValueError
from ...graph.support.class_bases import dataclass
from ...models.interpose import RuleOver, named, put_over, unmet
from ..base import list_leaves
from ..compiled_steps import HOST, in_symbolic_scope, keeping_weights
from .layer_kinds import children_of
from .operations import CURRENT, NAMES, CalledOperations, LayerScope, is_float, look_up

Call = Callable[..., Any]
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
