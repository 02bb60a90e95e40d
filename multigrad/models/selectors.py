"""Which layers and operations of a model are meant by `{selector: rule}`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ..errors import RuleTypeError, RuleValueError, suggest
from ..graph.support.data import dataclass
from .attribution.kinds import is_layer_rule
from .handle import named

WILDCARDS = frozenset("*?[")
MOST_NAMES = 12


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
class Function:
    """A function that a layer holds as an attribute, as an activation is one.

    Attributes:
        layer: the framework's object that holds it.
        attribute: its name there.
        function: what stands there.
    """

    layer: Any
    attribute: str
    function: Any


@dataclass(frozen=True, slots=True)
class Choice:
    """A layer with the rule for it, and the selector that said so."""

    layer: Layer
    rule: Any
    selector: Any


@dataclass(frozen=True, slots=True)
class OperationChoice:
    """An operation, as its framework identifies it, with the rule for it."""

    operation: Any
    rule: Any
    selector: Any


# What a framework knows of its operations: the one that a selector means, or None; and their names.
FindOperation = Callable[[Any], Any]


def choose(
    rules: Mapping[Any, Any],
    layers: Sequence[Layer],
    find_operation: FindOperation,
    operation_names: Iterable[str],
    functions: Sequence[Layer] = (),
) -> tuple[list[Choice], list[OperationChoice]]:
    """Return what each selector means.

    A string is an operation where the framework has one of that name, else a pattern for layers'
    names, in which `*` stands for any characters, dots among them. A pattern with wildcards chooses
    layers that hold no others, where it fits any of them. A type chooses its instances; a function
    of the framework is an operation; any other function is a predicate, of the layer or of its name
    and the layer. A layer itself is that one. A tuple is all that its parts are.

    Args:
        functions: what layers hold as attributes, each a `Layer` of a `Function`: a name that ends
            in the attribute's means it, where no layer has that name.

    Raises:
        RuleValueError: a selector matches nothing, or a layer is meant twice, by itself or with the
            one that holds it.
        RuleTypeError: it is none of these, a rule is None, or `rules` is no mapping.
    """
    if not isinstance(rules, Mapping) or not rules:
        raise RuleTypeError(
            f"expected {{selector: rule}} with at least one of them, got {rules!r:.60}"
        )
    choices: list[Choice] = []
    operations: list[OperationChoice] = []
    for selector, rule in rules.items():
        check_row(selector, rule)
        for part in selector if isinstance(selector, tuple) else (selector,):
            operation = None if isinstance(part, type) else find_operation(part)
            if operation is not None:
                operations.append(OperationChoice(operation, rule, part))
                continue
            found = match(part, layers) or match_functions(part, functions)
            if not found:
                raise RuleValueError(_nothing(part, [*layers, *functions], operation_names))
            choices += [Choice(layer, rule, part) for layer in found]
    return _once(choices), _once_each(operations)


def check_row(selector: Any, rule: Any) -> None:
    """Check that a selector has parts, and a rule.

    Raises:
        RuleValueError: it has no parts.
        RuleTypeError: there is no rule.
    """
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


def match_functions(selector: Any, functions: Sequence[Layer]) -> list[Layer]:
    """Return the functions that layers hold which a selector means: one by its own name."""
    if not isinstance(selector, str):
        return []
    last = selector.rpartition(".")[2]
    return [
        each
        for each in functions
        if each.layer.attribute == last and any(fnmatchcase(n, selector) for n in each.names)
    ]


def match(selector: Any, layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers that a selector means; none where none fits.

    Raises:
        RuleTypeError: it is no selector.
    """
    if isinstance(selector, str):
        found = [each for each in layers if any(fnmatchcase(n, selector) for n in each.names)]
        leaves = [each for each in found if each.is_leaf]
        return leaves if leaves and WILDCARDS & set(selector) else found
    if isinstance(selector, type):
        return [each for each in layers if isinstance(each.layer, selector)]
    own = [each for each in layers if each.layer is selector]
    if own:
        return own
    if _is_like(selector, layers):
        raise RuleValueError(
            f"selector {type(selector).__name__} is a layer, and none of this model's: select "
            "those by a name, a type, a predicate, or one of them itself"
        )
    if callable(selector):
        takes_name = _takes_two(selector)
        return [
            each
            for each in layers
            if (
                any(selector(name, each.layer) for name in each.names)
                if takes_name
                else selector(each.layer)
            )
        ]
    raise RuleTypeError(
        f"{selector!r:.60} selects nothing: expected a name or pattern, a type, a predicate or an "
        "operation"
    )


def _is_like(selector: Any, layers: Sequence[Layer]) -> bool:
    """Return whether a selector is of a class that all layers have in common."""
    kinds = [set(type(each.layer).__mro__) for each in layers]
    common = set.intersection(*kinds) - {object} if kinds else set()
    return isinstance(selector, tuple(common))


def _takes_two(predicate: Callable[..., Any]) -> bool:
    try:
        rows = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        row
        for row in rows
        if row.kind in (row.POSITIONAL_ONLY, row.POSITIONAL_OR_KEYWORD) and row.default is row.empty
    ]
    return len(needed) == 2


def _once(choices: Sequence[Choice]) -> list[Choice]:
    """Return each layer once.

    Raises:
        RuleValueError: one is meant by two rules, or one holds another.
        RuleTypeError: a rule that reads weights is for a function.
    """
    by_layer: dict[int, Choice] = {}
    for choice in choices:
        if isinstance(choice.layer.layer, Function) and is_layer_rule(choice.rule):
            raise RuleTypeError(
                f"rule {named(choice.rule)!r} reads what layers hold, and "
                f"{choice.layer.names[0]!r} is a function: select the layer that holds it"
            )
        known = by_layer.setdefault(id(choice.layer.layer), choice)
        if known.rule is not choice.rule and known.rule != choice.rule:
            raise RuleValueError(
                f"layer {choice.layer.names[0]!r} is selected twice: {known.selector!r} gives it "
                f"{known.rule!r}, {choice.selector!r} gives it {choice.rule!r}"
            )
    found = list(by_layer.values())
    outer = {name: choice for choice in found for name in choice.layer.names if name}
    for choice in found:
        for name in choice.layer.names:
            parts = name.split(".")
            for n in range(1, len(parts)):
                holder = outer.get(".".join(parts[:n]))
                if holder is not None:
                    raise RuleValueError(
                        f"layer {name!r} ({choice.selector!r}) lies inside layer "
                        f"{'.'.join(parts[:n])!r} ({holder.selector!r}), whose rule takes the "
                        "place of all gradients within; select one of them"
                    )
    return found


def _once_each(choices: Sequence[OperationChoice]) -> list[OperationChoice]:
    """Return each operation once.

    Raises:
        RuleValueError: one is meant by two rules.
    """
    found: dict[Any, OperationChoice] = {}
    for choice in choices:
        known = found.setdefault(choice.operation, choice)
        if known.rule is not choice.rule and known.rule != choice.rule:
            raise RuleValueError(
                f"operation {choice.operation!r} is selected twice: {shown(known.selector)!r} "
                f"gives it {named(known.rule)!r}, {shown(choice.selector)!r} gives it "
                f"{named(choice.rule)!r}"
            )
    return list(found.values())


def shown(selector: Any) -> str:
    """Return a selector as tables and messages show it."""
    return getattr(selector, "__name__", None) or str(selector)


def _nothing(selector: Any, layers: Sequence[Layer], operation_names: Iterable[str]) -> str:
    names = [name for each in layers for name in each.names if name]
    kinds = sorted({type(each.layer).__name__ for each in layers})
    if isinstance(selector, str):
        near = suggest(selector, [*operation_names, *names])
        shown = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
        holder, _, attribute = selector.rpartition(".")
        held = [each for each in layers if holder and holder in each.names]
        if held:
            kind = type(held[0].layer).__name__
            words = (
                f": layer {holder!r} ({kind}) has no {attribute!r} that is a layer or a function"
            )
            near = words + near
        return (
            f"selector {selector!r} matches no layer and no operation{near} "
            f"(layers: {shown or 'none'})"
        )
    said = selector.__name__ if isinstance(selector, type) else repr(selector)
    near = suggest(said, kinds)
    return f"selector {said} matches no layer{near} (kinds of layers: {', '.join(kinds)})"
