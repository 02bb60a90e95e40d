"""What selectors select: layers and operations of a model, each with its rule.

A framework lists its layers (`Layer`) and finds the operation that a selector means; what is the
same in every framework is here. `choose` reads `{selector: rule}`, in which a selector may be

    "features.*"        a pattern for layers' names
    torch.nn.GELU       a type of layers
    "relu"              an operation, which gives an `OperationChoice`; all others give `Choice`s

and `choose_by_kind` asks a composite for the rule of each layer, by the layer's kind and name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NoReturn, TypeAlias, TypeVar

from ..engine.functions.calls.arguments import positional_names
from ..engine.functions.calls.parameters import signature_of
from ..errors import ActsNowhereWarning, RuleTypeError, RuleValueError, suggest
from .attribution.composites import COMPOSITES, Composite, entry_of, refuse_uncalled
from .attribution.kinds import KINDS, has_meaning, is_layer_rule
from .attribution.relevance import RULES
from .gradient_replacement import named

Rules: TypeAlias = Mapping[Any, Any] | Composite
WILDCARDS = frozenset("*?[")
GAP = "(plain gradient)"  # instead of a rule, of an operation that has none in a composite
# Operations that only move elements, or choose among them: by any framework's names. Each element
# of a result is one of an input, or a constant, so that the plain gradient keeps relevance.
MOVES = """
    get getitem get_item setitem set set_item slice slice_update dynamic_slice dynamic_update_slice
    narrow select select_n where masked_select masked_fill index_select index_fill index_copy
    index_put gather scatter scatter_update take take_along_dim take_along_axis chunk split
    split_with_sizes tensor_split hsplit vsplit dsplit array_split unbind unstack cat concatenate
    append stack hstack vstack dstack column_stack block_diag pad constant_pad_nd unfold reshape
    reshape_as view view_as ravel flatten unflatten squeeze unsqueeze expand_dims expand expand_as
    broadcast_to broadcast_in_dim broadcast_tensors atleast_1d atleast_2d atleast_3d meshgrid
    as_strided repeat repeat_interleave tile roll flip fliplr flipud rev rot90 transpose permute
    movedim moveaxis swapaxes t adjoint diagonal diag diag_embed tril triu sort msort topk top_k
    kthvalue median cummax cummin max min amax amin maximum minimum fmax fmin reduce_max reduce_min
    reduce_window_max pixel_shuffle pixel_unshuffle channel_shuffle channel_dropout dropout
    alpha_dropout dropout1d dropout2d dropout3d feature_dropout feature_alpha_dropout copy clone
    contiguous to type type_as cast float double half bfloat16 cpu cuda convert_element_type
    convert_to_tensor device_put optimization_barrier reduce_precision sharding_constraint name
    pvary stop_gradient identity nan_to_num zeros_like ones_like full_like relu retain_grad
    requires_grad positive conj pad_sequence pack_padded_sequence pad_packed_sequence unsafe_chunk
    unsafe_split rearrange all_gather
"""
MOVING = frozenset(MOVES.split())
# The same, by how their names begin.
MOVING_ALL = ("max_pool", "adaptive_max_pool", "fractional_max_pool", "upsample_nearest")
NORMALIZATIONS = frozenset(("batch_norm", "batch_normalization"))
SHIFTS = ("add", "sub", "subtract")  # of one activation: a bias, which gets no relevance
NOT_CALLED = " (not called)"  # after the rule of a layer that no call has reached
MOST_NAMES, MOST_CALLED = 12, 24  # in one message


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was changed.

    Examples:
        >>> import torch
        >>> handle = xg.attach(torch.nn.Sequential(torch.nn.ReLU()), {"relu": "guided"})
        >>> handle.rows[0]
        Row(name='relu', kind='operation', rule='guided', selector='relu')

    Attributes:
        name: a layer's name, or an operation's.
        kind: the layer's class, or "operation".
        rule: the rule that acts there now.
        selector: what chose it.
    """

    name: str
    kind: str
    rule: str
    selector: str


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a model, under all of its names: one that is shared or repeated has several.

    Attributes:
        names: dotted names from the model down; that of the model itself is "".
        layer: the framework's object.
        is_leaf: whether it holds no layers itself.
    """

    names: tuple[str, ...]
    layer: Any
    is_leaf: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class HeldFunction:
    """A function that a layer holds as an attribute, such as an activation."""

    layer: Any
    attribute: str
    function: Any


def hold(layer: Layer, attribute: str, function: Any) -> Layer:
    names = tuple(f"{name}.{attribute}" if name else attribute for name in layer.names)
    return Layer(names, HeldFunction(layer.layer, attribute, function))


@dataclass(frozen=True, slots=True)
class Choice:
    """A layer with its rule, and what chose it.

    Attributes:
        rule: None: a composite lets it keep its own gradient.
        selector: as it was given; of a composite, the layer's kind.
        kind: the layer's kind, in a composite; None if that has no name.
        is_named: whether a composite has an entry for the layer's name.
        by_order: its rules if it is the first of several layers that the model calls, and if not.
    """

    layer: Layer
    rule: Any
    selector: Any
    kind: str | None = None
    is_named: bool = False
    by_order: tuple[Any, Any] | None = None

    @property
    def key(self) -> Any:
        return id(self.layer.layer)

    @property
    def said(self) -> str:
        return f"layer {self.layer.names[0]!r}"

    def row(self, words: str = "") -> Row:
        """Return its row of the table; `words` say more of the rule than its name."""
        layer = self.layer.layer
        kind = "function" if isinstance(layer, HeldFunction) else type(layer).__name__
        name = self.layer.names[0] or "(model)"
        return Row(name, kind, words or named(self.rule), shown(self.selector))


@dataclass(frozen=True, slots=True)
class OperationChoice:
    """An operation, as its framework identifies it, with its rule."""

    operation: Any
    rule: Any
    selector: Any

    @property
    def key(self) -> Any:
        return self.operation

    @property
    def said(self) -> str:
        return f"operation {self.operation!r}"

    def row(self) -> Row:
        return Row(self.operation, "operation", named(self.rule), shown(self.selector))


AnyChoice = TypeVar("AnyChoice", Choice, OperationChoice)
# Returns the framework's operation that a selector means, or None.
FindOperation = Callable[[Any], Any]


def choose(
    rules: Mapping[Any, Any],
    layers: Sequence[Layer],
    find_operation: FindOperation,
    operation_names: Iterable[str],
    functions: Sequence[Layer] = (),
) -> tuple[list[Choice], list[OperationChoice]]:
    """Return the layers and operations that the selectors select, each with its rule.

    A string is an operation if the framework has one of that name, else a pattern for layers'
    names, in which `*` stands for any characters, dots among them. A pattern with wildcards selects
    layers without sublayers if it matches any. A type selects its instances; a function of the
    framework selects an operation; any other function is a predicate on the layer, or on its name
    and the layer. A layer selects itself, and a tuple selects whatever its parts select.

    Args:
        functions: functions that layers hold as attributes, each a `Layer` of a `HeldFunction`: a
            name that ends in the attribute's name selects it, unless a layer has that name.

    Raises:
        RuleValueError: a selector matches nothing, or a layer is selected twice, by itself or with
            its parent.
        RuleTypeError: it is none of these, a rule is None, or `rules` is not a mapping.
    """
    if not isinstance(rules, Mapping) or not rules:
        raise RuleTypeError(wrong_rules_message(rules))
    choices: list[Choice] = []
    operations: list[OperationChoice] = []
    for selector, rule in rules.items():
        check_row(selector, rule)
        for part in selector if isinstance(selector, tuple) else (selector,):
            # A type selects layers, also where it could be called as an operation.
            operation = None if isinstance(part, type) else find_operation(part)
            if operation is not None:
                operations.append(OperationChoice(operation, rule, part))
                continue
            matches = match(part, layers) or match_functions(part, functions)
            if not matches:
                raise RuleValueError(
                    _no_match_message(part, [*layers, *functions], operation_names)
                )
            choices += [Choice(layer, rule, part) for layer in matches]
    return _refuse_nested(_without_repeats(choices)), _without_repeats(operations)


def choose_by_kind(
    composite: Composite, layers: Sequence[Layer], kind_of: Callable[[Any], str | None]
) -> list[Choice]:
    """Return each layer with its rule in a composite, None where it keeps its own gradient."""
    kinds = [kind_of(each.layer) for each in layers]
    names = [each.names[0] for each in layers]
    rules, choices = composite.choose(zip(names, kinds, strict=True)), list[Choice]()
    for layer, kind, rule in zip(layers, kinds, rules, strict=True):
        is_named = any(fnmatchcase(layer.names[0], pattern) for pattern in composite.names)
        by_order = None
        if not is_named and entry_of(composite.first, kind) is not None:
            by_order = composite.rule(kind, is_first=True), composite.rule(kind)
        choice = Choice(layer, rule, kind or "by name", kind=kind, is_named=is_named)
        choices.append(replace(choice, by_order=by_order))
    # The order of the listed layers need not be that of calls, which decides between several.
    if sum(each.by_order is not None for each in choices) < 2:
        return [replace(each, by_order=None) for each in choices]
    return choices


def may_merge(choice: Choice, composite: Composite) -> bool:
    """Return whether a layer is a batch normalization that calls may merge."""
    if not composite.canonize or choice.kind != "batch_normalization":
        return False
    # A name says more than a kind, but a pattern of names may be meant for the layers before.
    is_apart = choice.is_named and not is_layer_rule(choice.rule)
    return shares_relevance(composite) and not is_apart


def check_row(selector: Any, rule: Any) -> None:
    if isinstance(selector, tuple) and not selector:
        raise RuleValueError(
            f"selector () means nothing, so rule {rule!r:.60} would act nowhere: leave it out, or "
            "give the tuple names, types or operations"
        )
    if rule is None:
        raise RuleTypeError(
            f"selector {selector!r:.60} has None instead of a rule: leave it out, which keeps "
            "the gradient as it is, or give a name, a Rule or a function"
        )
    refuse_uncalled(f"selector {shown(selector)!r}", rule)
    if not isinstance(rule, str) and name_of_maker(rule) in COMPOSITES:
        raise RuleTypeError(wrong_rules_message(rule))


def name_of_maker(value: Any) -> str:
    """Return the name of a composite as a user may give it: a word, or what makes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, Composite):
        return value.name
    return next((name for name, make in COMPOSITES.items() if make is value), "")


def wrong_rules_message(rules: Any) -> str:
    """Return the error message for what is not `{selector: rule}`, with what is."""
    name = name_of_maker(rules)
    example = f"{name}(...)" if name in COMPOSITES else "epsilon_plus()"
    words = f"composite {name!r}" if isinstance(rules, Composite) else f"{rules!r:.60}"
    if rules is COMPOSITES.get(name):
        words = f"the function {name}, which is to be called"
    return (
        "expected {selector: rule} with at least one of them, as in "
        "xg.attach(model, {'relu': 'guided'}), or a composite, as in xg.attach(model, "
        f"xg.composites.{example}); got {words}"
    )


def match_functions(selector: Any, functions: Sequence[Layer]) -> list[Layer]:
    """Return the functions of layers that a selector means, which ends in an attribute's name."""
    if not isinstance(selector, str):
        return []
    attribute = selector.rpartition(".")[2]
    return [
        each
        for each in functions
        if each.layer.attribute == attribute and any(fnmatchcase(n, selector) for n in each.names)
    ]


def match(selector: Any, layers: Sequence[Layer]) -> list[Layer]:
    if isinstance(selector, str):
        matches = [each for each in layers if any(fnmatchcase(n, selector) for n in each.names)]
        leaves = [each for each in matches if each.is_leaf]
        # A wildcard means leaves if it matches any, and not what contains them.
        return leaves if leaves and WILDCARDS & set(selector) else matches
    if isinstance(selector, type):
        return [each for each in layers if isinstance(each.layer, selector)]
    itself = [each for each in layers if each.layer is selector]
    if itself:
        return itself
    # An instance of a class that all layers have in common is a layer, of another model.
    kinds = [set(type(each.layer).__mro__) for each in layers]
    if isinstance(selector, tuple(set.intersection(*kinds) - {object} if kinds else ())):
        raise RuleValueError(
            f"selector {type(selector).__name__} is a layer, and none of this model's: select "
            "those by a name, a type, a predicate, or one of them itself"
        )
    if callable(selector):
        if not _takes_two(selector):
            return [each for each in layers if selector(each.layer)]
        return [e for e in layers if any(selector(name, e.layer) for name in e.names)]
    raise RuleTypeError(
        f"{selector!r:.60} selects nothing: expected a name or pattern, a type, a predicate or an "
        "operation"
    )


def _takes_two(predicate: Callable[..., Any]) -> bool:
    signature = signature_of(predicate)
    if signature is None:
        return False  # a builtin, which takes the layer alone
    parameters = [signature.parameters[name] for name in positional_names(signature)]
    return sum(each.default is each.empty for each in parameters) == 2


def _without_repeats(choices: Sequence[AnyChoice]) -> list[AnyChoice]:
    """Return each choice once; raise if something gets two rules."""
    by_key: dict[Any, AnyChoice] = {}
    for choice in choices:
        first = by_key.setdefault(choice.key, choice)
        if first.rule is not choice.rule and first.rule != choice.rule:
            raise RuleValueError(
                f"{choice.said} is selected twice: {shown(first.selector)!r} gives it "
                f"{named(first.rule)!r}, {shown(choice.selector)!r} gives it {named(choice.rule)!r}"
            )
    return list(by_key.values())


def _refuse_nested(choices: list[Choice]) -> list[Choice]:
    """Raise for a layer inside another one: the outer rule replaces all gradients inside it."""
    outer = {name: choice for choice in choices for name in choice.layer.names if name}
    for choice in choices:
        if isinstance(choice.layer.layer, HeldFunction) and is_layer_rule(choice.rule):
            raise RuleTypeError(
                f"rule {named(choice.rule)!r} reads what layers hold, and "
                f"{choice.layer.names[0]!r} is a function: select the layer that holds it"
            )
        for name in choice.layer.names:
            parts = name.split(".")
            for n in range(1, len(parts)):
                holder = outer.get(".".join(parts[:n]))
                if holder is not None:
                    raise RuleValueError(
                        f"layer {name!r} ({shown(choice.selector)!r}) lies inside layer "
                        f"{'.'.join(parts[:n])!r} ({shown(holder.selector)!r}), whose rule takes "
                        "the place of all gradients within; select one of them"
                    )
    return choices


def refuse_second(subject: str, handle: Any, rule: str | None = None, where: str = "") -> NoReturn:
    """Raise for what has a rule already, by another handle."""
    description = "a rule" if rule is None else f"rule {rule!r}"
    error = RuleValueError(
        f"{subject} has {description} already{where}: detach that first, by handle.detach(). This "
        "error holds the handle: `except xg.RuleError as error: error.handle.detach()`"
    )
    error.handle = handle
    raise error


def unfit_message(layer: str, rule: Any, kind: str | None) -> str:
    """Return the error message for a rule that reads weights on a layer for which it has none."""
    makers: Any = [make for make in RULES if make.__name__ != "zbox"]  # whose params have defaults
    fitting = [
        f"xg.attribution.{make.__name__}()"
        for make in makers
        if kind is not None and has_meaning(make(), kind)
    ]
    kinds = [name for name, each in KINDS.items() if each.forward is not None]
    advice = "leave it out, or give one that reads no weights"
    if fitting:
        advice = f"what fits is {', '.join(fitting)}"
    return (
        f"{layer} calls no operation that rule {rule!r} has a meaning for (such rules are for "
        f"{', '.join(kinds)}): {advice}"
    )


def empty_message(composite: Composite, kinds: Iterable[str]) -> str:
    """Return the error message for a composite that acts nowhere in a model of such layers."""
    rules = {**composite.first, **composite.layers}
    given = ", ".join(kind for kind, rule in rules.items() if rule is not None)
    return (
        f"composite {composite.name!r} has no rule for any layer of the model: it is for "
        f"{given or 'none'}, and the model computes {', '.join(sorted(kinds)) or 'none of these'}"
    )


def not_called(row: Row) -> Row:
    return replace(row, rule=row.rule + NOT_CALLED)


def shared_message(layer: str, norm: str) -> str:
    """Return the error message for a batch normalization that is merged with a layer which
    something else reads, too.
    """
    return (
        f"the output of {layer!r} is read by {norm!r}, which is merged with it, and by something "
        "else, so the two are not one layer: keep the normalization apart, by its name, "
        f"dataclasses.replace(composite, names={{{norm!r}: 'pass'}})"
    )


def shares_relevance(rules: Rules) -> bool:
    """Return whether a rule shares out relevance, which an operation without one may multiply."""
    if isinstance(rules, Composite):
        return any(map(shares_relevance, (rules.layers, rules.first, rules.names)))
    return any(map(is_layer_rule, rules.values()))


def multiplies(name: str, activations: int, negates: bool = False) -> bool:
    """Return whether the gradient of an operation without a rule need not keep relevance.

    Args:
        activations: how many of its operands get relevance.
        negates: whether it subtracts the one that does.
    """
    if not activations or name in MOVING or name.startswith(MOVING_ALL):
        return False
    return activations > 1 or name not in SHIFTS or negates


def warn_of_gaps(rules: Rules, rows: Iterable[Row], advice: str, stacklevel: int) -> None:
    """Warn of operations that may multiply relevance and have no rule."""
    gaps = {f"{row.name} ({row.selector})": row for row in rows if row.rule == GAP}
    if not gaps:
        return
    names = {part for row in gaps.values() for part in (row.name, *row.selector.split(", "))}
    is_composite = isinstance(rules, Composite)
    way = "canonize=True" if is_composite else "A Composite with canonize=True"
    if not (is_composite and rules.canonize):
        if names & NORMALIZATIONS:
            advice = f"{way} merges a batch normalization into the layer before. {advice}"
        if "add" in names and (not is_composite or rules.rule("addition") is not None):
            advice = f"{way} gives additions in code their rule. {advice}"
    subject = f"composite {rules.name!r}" if is_composite else "the mapping"
    warnings.warn(
        f"{subject} has no rule for {', '.join(gaps)}: the plain gradient "
        f"passes there, so relevance need not add up. {advice}",
        ActsNowhereWarning,
        stacklevel=stacklevel,
    )


def not_called_message(subject: str, said: str, called: Iterable[str], advice: str = "") -> str:
    """Return the error message for a selector that means nothing that a function or model calls."""
    names = sorted(set(called))
    names_text = ", ".join(names[:MOST_CALLED]) + (", ..." if len(names) > MOST_CALLED else "")
    return (
        f"{subject} calls no operation {said!r}{suggest(said, names)} "
        f"(it calls: {names_text or 'none'}){advice}"
    )


def kind_hint(selector: Any) -> str:
    """Return advice for a selector that is a kind, as tables of composites have it, or ""."""
    if selector not in KINDS:
        return ""
    mine = f"xg.composites.Composite('mine', {{{selector!r}: rule}}, canonize=True)"
    return f"; {selector!r} is a kind of layers: xg.attach(model, {mine})"


def shown(selector: Any) -> str:
    return getattr(selector, "__name__", None) or str(selector)


def _no_match_message(
    selector: Any, layers: Sequence[Layer], operation_names: Iterable[str]
) -> str:
    names = [name for each in layers for name in each.names if name]
    classes = {type(each.layer) for each in layers} - {HeldFunction}
    kinds = sorted({each.__name__ for each in classes})
    if isinstance(selector, str):
        operations = list(operation_names)
        own = [name for name in operations if name in map(str.lower, kinds)]  # "conv": conv2d
        hint = suggest(selector, [*own, *names]) or suggest(selector, operations)
        names_text = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
        holder, _, attribute = selector.rpartition(".")
        holders = [each for each in layers if holder and holder in each.names]
        if holders:
            kind = type(holders[0].layer).__name__
            words = (
                f": layer {holder!r} ({kind}) has no {attribute!r} that is a layer or a function"
            )
            hint = words + hint
        return (
            f"selector {selector!r} matches no layer and no operation{hint} "
            f"(layers: {names_text or 'none'}){kind_hint(selector)}{_class_hint(selector, classes)}"
        )
    text = selector.__name__ if isinstance(selector, type) else repr(selector)
    hint = _class_hint(text, classes) or suggest(text, kinds) or suggest(text, operation_names)
    return f"selector {text} matches no layer{hint} (kinds of layers: {', '.join(kinds)})"


def _class_hint(name: str, classes: Iterable[type]) -> str:
    """Return advice for the name of a layer's class, or of another library's class so named."""
    for each in classes:
        if each.__name__.lower() == name.lower():
            package = each.__module__.partition(".")[0]
            return f"; layers of class {each.__name__} are {package}'s: give that class itself"
    return ""
