"""The rule over one call, of a layer's forward or of an operation: of one of three kinds.

`OwnGradient` is no rule. A `PlainRule` reads no weights and acts on the one tensor that a gradient
passes: our activations do both passes by their own Function, any other forward runs unchanged on
detached inputs. A `WeightRule` gets the call's tensors as a layer of a known kind.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from multigrad.core.rules.activation import Activation
from multigrad.core.rules.registry import resolve
from multigrad.core.support.threads import SERIALS
from multigrad.errors import RuleTypeError, RuleValueError
from multigrad.models.attribution.kinds import LayerRule, check_bounds, has_meaning, is_layer_rule
from multigrad.models.gradient_replacement import CurrentReplacement, check_fit, named
from multigrad.models.selectors import kind_hint, shared_message

from ..core import dynamo
from ..core.dynamo import Namespace
from ..core.state import transforms_active
from ..core.versions import is_exporting, top_hooks
from .layer_kinds import ACTIVATIONS, OPERATIONS, WITH_WEIGHTS, CallOfLayer
from .regions import is_first_without_gradients

Tensor: TypeAlias = torch.Tensor
Call = Callable[..., Any]
refuse_shape = dynamo.disable(check_fit)
# Attribute of a tensor with what a batch normalization needs from the layer that made it, a `Mark`.
MERGES = "_multigrad_merges"

MOVES = (
    "multigrad: xg.attach put a rule with a schedule on a layer that is no activation, and the "
    "number is read in eager code, which fullgraph=True refuses. Instead of nn.Identity, use "
    "xg.Activation('Linear', rule=...)"
)


class OwnGradient:
    """No rule: a call keeps its own gradient, whatever rules the model around it has."""

    name = "own"

    def call(
        self, name: str, func: Call, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return func(*args, **kwargs)


CallRule: TypeAlias = "PlainRule | WeightRule | OwnGradient"
OWN = OwnGradient()


def rule_of_calls(rule: Any, merges: bool = False) -> CallRule:
    """Return an object that applies a rule to calls of an operation; None means no rule."""
    if rule is None:
        return OWN
    return WeightRule(rule, merges) if is_layer_rule(rule) else PlainRule(rule)


def rule_of_operation(operation: str, rule: Any) -> CallRule:
    row = OPERATIONS.get(operation)
    if is_layer_rule(rule) and (row is None or row.read is None):
        operations = ", ".join(name for name, row in OPERATIONS.items() if row.read is not None)
        raise RuleTypeError(
            f"rule {named(rule)!r} reads what layers hold and has no meaning for operation "
            f"{operation!r} (operations: {operations}){kind_hint(operation)}"
        )
    return WeightRule(rule) if is_layer_rule(rule) else PlainRule(rule, (operation,))


def rules_inside(rule: Any, merges: bool = False) -> Mapping[str, CallRule]:
    """Return a rule for calls within a layer; where it has no meaning, their own gradients."""
    call_rule = rule_of_calls(rule, merges)
    reads = is_layer_rule(rule)
    return {
        name: call_rule if reads and row.read is not None and has_meaning(rule, row.kind) else OWN
        for name, row in OPERATIONS.items()
    }


# --- rules without weights ------------------------------------------------------------------------
class PlainRule:
    """A rule that acts on the one tensor from which a call computes its output."""

    def __init__(self, rule: Any, operations: Collection[str] = OPERATIONS) -> None:
        self.rule = resolve(rule)
        self.name = named(rule)
        self.over = CurrentReplacement(rule)  # raises the errors of a wrong rule or param
        self.moves = self.rule.bound_rule().moves
        self.activations = {n: Activation(n, rule) for n in ACTIVATIONS if n in operations}
        self.in_place = {name: InPlace(act) for name, act in self.activations.items()}

    def activation(
        self, operation: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Activation | None:
        """Return our activation for a call of an operation, None if it is another function."""
        settings = ACTIVATIONS.get(operation)
        if settings is None:
            return None
        for position, (name, value) in enumerate(settings.items(), start=1):
            number = args[position] if len(args) > position else kwargs.get(name, value)
            if number != value:
                return None
        return self.activations.get(operation)

    def apply(self, x: Tensor, forward: Call, where: Callable[[], str]) -> Tensor:
        """Return the output of forward on x alone, with the rule's gradient.

        `where` returns the call's name, for messages.
        """
        if not may_have_gradient(x):
            self.draw_along(x)
            out = forward(x)
            self.check_shape(x, out, where)
            return out
        checks_writes = not is_compiling() and not transforms_active()
        version = x._version if checks_writes else 0
        out = forward(x.detach())
        if not isinstance(out, torch.Tensor):
            raise RuleValueError(
                f"{where()} returns a {type(out).__name__}, and rule {self.name!r} acts on the "
                "gradient of one tensor: select the layers inside it, or an operation that it "
                "calls"
            )
        if checks_writes and x._version != version:
            raise RuleValueError(
                f"{where()} writes into its input, so rule {self.name!r} would act on another "
                "one: select the layer or operation inside it that does"
            )
        self.check_shape(x, out, where)
        if self.moves and is_compiling():
            torch._dynamo.graph_break(msg=MOVES)
        # A Function that returns its input returns a view, which may not be written: a clone.
        rule = self.over.now() if is_compiling() else self.over.here()
        return rule(x, out).clone()

    def call(
        self, name: str, func: Call, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call an operation under the rule, which acts on its only activation."""
        if kwargs.get("out") is not None:
            return func(*args, **kwargs)  # torch differentiates no call with out=
        x = args[0] if args else kwargs.get("input")
        refuse_symbols(name, x)
        act = self.activation(name, args, kwargs) if isinstance(x, torch.Tensor) else None
        if act is not None:
            if not may_have_gradient(x):
                self.draw_along(x)
                return func(*args, **kwargs)
            return self.in_place[name](x) if in_place else act(x)
        return self._call_general(name, func, in_place, args, kwargs)

    def _call_general(
        self, name: str, func: Call, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call an operation that is none of our activations, under the rule."""
        floats = find_activations(name, args, kwargs)
        active = [each for each in floats if may_have_gradient(each[1])]
        where = lambda: f"operation {name!r}"
        if not active:
            if name == "embedding":
                raise RuleValueError(
                    f"operation {name!r} takes integers: rule {self.name!r} has no gradient there"
                )
            self.draw_along(args[0] if args else kwargs.get("input"))
            out = func(*args, **kwargs)
            if len(floats) == 1:
                self.check_shape(floats[0][1], out, where)
            return out
        position, x, is_in_list = active[0]
        if len(active) > 1 or is_in_list:
            raise RuleValueError(
                f"operation {name!r} is called with {len(active)} tensors that a gradient passes, "
                f"and rule {self.name!r} is for one: select layers, or write the operation with "
                "xg.custom_gradient"
            )

        def forward(tensor: Tensor) -> Any:
            if isinstance(position, int):
                return func(*args[:position], tensor, *args[position + 1 :], **kwargs)
            return func(*args, **{**kwargs, position: tensor})

        if not in_place:
            return self.apply(x, forward, where)

        return x.copy_(self.apply(x.clone(), lambda tensor: forward(tensor.clone()), where))

    def draw_along(self, x: Any) -> None:
        """Draw as the rule would, in the first run of a reentrant region."""
        if is_compiling() or not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return
        # No tensor has a gradient there yet. The second run draws the same, the next step anew.
        if is_first_without_gradients():
            with torch.no_grad():
                self.over.here()(x, x)

    def check_shape(self, x: Tensor, out: Any, where: Callable[[], str]) -> None:
        """Check that a forward keeps the shape, as the rule does."""
        if isinstance(out, torch.Tensor) and out.shape != x.shape:
            refuse_shape(self.name, where(), x.shape, out.shape)


def find_activations(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[tuple[int | str, Tensor, bool]]:
    """Return the float tensors among the arguments of a call, without weights: each with its
    argument's position or name before it, and whether that is a list after it.
    """
    arguments: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    operands = []  # no generator, which not every Dynamo traces
    for position, value in arguments[:1] if name in WITH_WEIGHTS else arguments:
        is_list = isinstance(value, tuple | list)
        for x in value if is_list else (value,):
            is_float = isinstance(x, torch.Tensor) and x.is_floating_point()
            if is_float and not isinstance(x, torch.nn.Parameter):
                operands.append((position, x, is_list))
    return operands


class InPlace:
    """An activation that stores its result in the tensor that it is given."""

    def __init__(self, activation: Activation) -> None:
        self.activation = activation
        # Node classes of autograd met so far; weak, as code that runs as written has one each call.
        self._kinds: weakref.WeakSet[type] = weakref.WeakSet()
        self._clones: bool | None = None  # whether backward of one reads the input; None: unknown

    def __call__(self, x: Tensor) -> Tensor:
        """Replace the values of x by their activation, with the rule's gradient, and return x."""
        if getattr(x, MERGES, None) is not None:
            setattr(x, MERGES, None)
        if is_compiling() or transforms_active() or top_hooks(True) is not None:
            return x.copy_(self.activation(x.clone()))
        is_leaf = x.is_leaf and x.requires_grad
        if is_leaf or x._is_view() or x._backward_hooks or x.retains_grad:
            return x.copy_(self.activation(x.clone()))  # raises torch's own errors
        # What backward keeps is known only after a call. The first is on a clone, as a random rule
        # that is called again draws again.
        operand = x if self._clones is False else x.clone()
        y = self.activation(operand)
        kind = type(y.grad_fn)
        if kind not in self._kinds:
            self._kinds.add(kind)
            is_read = reads(y.grad_fn, operand)
            if is_read and operand is x:  # unlike those before
                y = self.activation(x.clone())
            self._clones = is_read or bool(self._clones)
        # Detached first, or backward would add zeros as a gradient for x's old values.
        return x.detach_().copy_(y)


def reads(node: Any, x: Tensor) -> bool:
    """Return whether backward of an autograd node reads the memory of x; True if unknown."""
    tensors = getattr(node, "saved_tensors", None)
    if tensors is None:  # not a Function's node: unknown
        return True
    address = x.untyped_storage().data_ptr()
    return any(y is not None and y.untyped_storage().data_ptr() == address for y in tensors)


# --- rules that read weights ----------------------------------------------------------------------
class WeightRule:
    """A rule that reads weights; `merges`: a batch normalization may be merged with the layer."""

    def __init__(self, rule: LayerRule, merges: bool = False) -> None:
        self.rule = rule
        self.name = named(rule)
        self.merges = merges
        self.key = key_of(self)

    def call(
        self, name: str, func: Call, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call an operation under the rule; with its own gradient where the rule has no meaning."""
        read = OPERATIONS[name].read
        refuse_symbols(name, args[0] if args else kwargs.get("input"))
        options = {key: value for key, value in kwargs.items() if key != "out"}
        layer = read(*args, **options) if read is not None and len(options) == len(kwargs) else None
        if layer is None or not any(map(may_have_gradient, layer.inputs)):
            return func(*args, **kwargs)
        first, *other_inputs = layer.inputs

        def forward(*inputs: Tensor) -> Tensor:
            pairs = zip(("input", "other"), inputs, strict=False)
            named_inputs = {name: x for name, x in pairs if name in kwargs}
            positional = inputs[: len(inputs) - len(named_inputs)]
            return func(*positional, *args[len(positional) :], **{**kwargs, **named_inputs})

        if not in_place:
            return self.over(layer, forward(*(each.detach() for each in layer.inputs)))
        # The operation overwrites x, but the rule needs its value.
        x_before = first.clone()
        call_on_copy = replace(layer, inputs=(x_before, *other_inputs))
        out = forward(x_before.detach().clone(), *(each.detach() for each in other_inputs))
        setattr(first, MERGES, None)
        return first.copy_(self.over(call_on_copy, out))

    def over(self, taken: CallOfLayer, out: Tensor) -> Tensor:
        """Return a layer's output with the rule's gradient for its inputs."""
        inputs, output, shape = taken.inputs, out, out.shape
        if taken.is_single:
            inputs, output = tuple(each[None] for each in inputs), out[None]
        elif taken.shape is not None:
            output = out.reshape(taken.shape)
        if is_compiling():
            name = make_function(self.key, taken.kind, tuple(taken.attributes.items()))
            function = getattr(FUNCTIONS, name)
        else:
            check_bounds(self.rule, inputs[0])
            function = self.rule.over(taken.kind, **taken.attributes)
        result = function(*inputs, *taken.params, output)
        if self.merges and taken.params:
            readers = traced_readers() if is_compiling() else Readers()
            # A Function that returns its input returns a view, which may not be written: a clone.
            result = Watched.apply(result, readers).clone().reshape(shape)
            setattr(result, MERGES, (self, taken, out, version_of(result), readers))
            return result
        return result.clone().reshape(shape)


FUNCTIONS = Namespace()


@dynamo.assume_constant_result
def make_function(key: str, kind: str, attributes: tuple[tuple[str, Any], ...]) -> str:
    """Make a rule's Function, which Dynamo cannot trace; return its name in FUNCTIONS."""
    function = KEYED[key].rule.over(kind, **dict(attributes))
    name = f"function_{function.identifier}"
    setattr(FUNCTIONS, name, function)
    return name


class Readers:
    """The names of a layer and of the batch normalization that is merged with it, as far as known;
    traced code has a name in FUNCTIONS for it.
    """

    def __init__(self) -> None:
        self.names: list[str] = []


@dynamo.assume_constant_result
def traced_readers() -> str:
    readers = Readers()
    name = f"readers_{id(readers)}"
    setattr(FUNCTIONS, name, readers)
    return name


class Watched(torch.autograd.Function):
    """The output of a layer, unchanged. What is merged with the layer takes no gradient from it, so
    backward raises for a gradient of what else reads it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, readers: Readers | str) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.readers = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:
        names = readers_of(ctx.readers).names
        if len(names) > 1:
            raise RuleValueError(shared_message(*names))
        return *grad_outputs, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return tangents[0].view_as(tangents[0])


dynamo.allow_in_graph(Watched)


def readers_of(readers: Readers | str) -> Readers:
    return getattr(FUNCTIONS, readers) if isinstance(readers, str) else readers


# A layer's rule, its call, its output, that tensor's version, and who reads it.
Mark: TypeAlias = tuple[WeightRule, CallOfLayer, Tensor, int, Readers | str]


def find_mark(module: Any, x: Any) -> Mark | None:
    """Return the mark of a layer that a batch normalization of x can be merged with, or None."""
    mark: Mark | None = getattr(x, MERGES, None)
    if mark is None:
        return None
    _, layer, _, version, _ = mark
    # A write into the output of that layer since then.
    if version != version_of(x):
        return None
    if module.training or module.running_mean is None:
        raise RuleValueError(
            "a batch normalization can be merged where it uses its running statistics: call "
            "model.eval() first, or make the composite with canonize=False"
        )
    if layer.kind == "convolution_transpose" and layer.attributes["groups"] != 1:
        return None
    return mark


def call_merged(mark: Mark, module: Any, method: Call) -> Tensor:
    """Return the output of a batch normalization merged with the layer before it."""
    rule, layer, out, *_ = mark
    statistics = module.running_mean, module.running_var, module.weight, module.bias
    merged_call = layer.merged(*statistics, epsilon=module.eps)
    with torch._C.DisableTorchFunction():
        return rule.over(merged_call, method(module, out))


def name_layer(y: Any, name: str) -> None:
    """Note in the mark of y, if it has one, the name of the layer that made it."""
    mark: Mark | None = getattr(y, MERGES, None)
    if mark is not None:
        note_layer(mark[-1], name)


@dynamo.assume_constant_result
def note_layer(readers: Readers | str, name: str) -> None:
    readers_of(readers).names = [name]


@dynamo.assume_constant_result
def note_reader(readers: Readers | str, kind: str, norm: str) -> str:
    """Return the name of the layer with which a normalization is merged, by default its kind; raise
    if another one is merged with it.
    """
    names = readers_of(readers).names
    layer, *others = names or [kind]
    # code may be traced again
    if others and not (others == [norm] and isinstance(readers, str)):
        raise RuleValueError(shared_message(layer, norm))
    names[:] = layer, norm
    return layer


# --- rules on models, alike in eager code and in code that Dynamo traces --------------------------
# Traced code cannot raise errors, so what raises runs eagerly after a graph break; and it holds
# constants only, so it names a rule, or a mode of rules, by a key.
stack_length = torch._C._len_torch_function_stack
is_compiling = torch.compiler.is_compiling


@dynamo.disable
def raise_now(message: str) -> None:
    raise RuleValueError(message)


def refuse(message: str) -> None:
    """Raise an error, also from traced code."""
    if is_compiling():
        torch._dynamo.graph_break(msg=message)
    raise_now(message)


def may_have_gradient(x: Tensor) -> bool:
    """Return whether a derivative with respect to x may be taken."""
    if transforms_active() or (x.requires_grad and torch.is_grad_enabled()):
        return True
    if is_compiling():
        return is_exporting()  # an exported program may be differentiated later
    return torch.autograd.forward_ad._current_level >= 0


def refuse_symbols(operation: str, x: Any) -> None:
    """Raise an error for the symbols with which torch.fx traces."""
    if isinstance(x, torch.fx.Proxy):
        raise RuleValueError(
            f"torch.fx traces operation {operation!r}, and its graph would hold no rule: trace the "
            "model first, and attach to the GraphModule"
        )


def version_of(x: Tensor) -> int:
    """Return how often a tensor was written to; 0 in compiled code, which cannot tell."""
    return 0 if is_compiling() else x._version


# Rules and modes by their keys.
KEYED: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def key_of(acting: Any) -> str:
    """Return a new key of a rule or a mode, by which traced code finds it."""
    key = f"acting_{next(SERIALS)}"
    KEYED[key] = acting
    return key
