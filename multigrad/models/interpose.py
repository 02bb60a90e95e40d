"""Rules on what a framework finds: the plan, the handle, a rule over any forward, what was met.

A framework finds calls and layers, intercepts them, and takes that back; its table says of which
kind a layer is. What a selector means, what acts for a rule's name now, the handle, and the
messages about a selector that met nothing are here, once for all frameworks.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from ..errors import GradientError, RuleTypeError, RuleValueError, suggest
from ..functions.calls.arguments import BoundFunction
from ..functions.custom_gradient import custom_gradient
from ..functions.function import Function as AnyFunction
from ..graph.support.class_bases import InNotebooks
from ..lowering.input_checks import shapes_agree
from ..rules.model.lookup import resolve
from ..rules.model.rule import Rule
from ..rules.model.rule_names import epoch
from ..trace.moving_numbers import is_of_then
from .attribution.composites import Composite
from .attribution.kinds import is_layer_rule

if TYPE_CHECKING:
    from typing_extensions import Self


# --- the handle that `attach` returns: what was changed, and the way back -------------------------
HEADER = ("name", "kind", "rule", "selector")


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


class Attachment(InNotebooks):
    """Rules on a model. As a context manager it removes them at the end; it prints as a table.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> handle = xg.attach(model, {torch.nn.ReLU: "guided"})
        >>> [(row.name, row.rule) for row in handle.rows]
        [('1', 'guided')]
        >>> handle.detach()
        >>> handle.is_attached
        False

    Attributes:
        rows: what was changed, in the model's order.
        is_attached: whether the rules act.
    """

    def __init__(
        self, rows: Sequence[Row], put: Callable[[], None], undo: Callable[[], None]
    ) -> None:
        self.rows = tuple(rows)
        self._undo: Callable[[], None] | None = undo
        self._is_entered = False
        try:
            put()
        except BaseException:
            # All or none: it takes off as many as are there.
            undo()
            raise

    @property
    def is_attached(self) -> bool:
        """Whether the rules act.

        Examples:
            >>> import torch
            >>> with xg.attach(torch.nn.Sequential(torch.nn.ReLU()), {"relu": "guided"}) as handle:
            ...     print(handle.is_attached)
            True
            >>> handle.is_attached
            False
        """
        return self._undo is not None

    def detach(self) -> None:
        """Remove the rules, so that the model is as before. A second call changes nothing.

        Examples:
            >>> import torch
            >>> model = torch.nn.Sequential(torch.nn.ReLU())
            >>> handle = xg.attach(model, {torch.nn.ReLU: "guided"})
            >>> handle.detach()
            >>> [row.name for row in handle.rows]  # what it had changed
            ['0']
        """
        if self._undo is not None:
            self._undo()
            self._undo = None  # last: after a failure another call takes off the rest

    def __enter__(self) -> Self:
        if self._is_entered or self._undo is None:
            was = "is entered already" if self._undo else "was detached: its rules act no more"
            raise RuleValueError(
                f"this handle {was}. Call attach again, `with xg.attach(model, rules):`, for each "
                "block"
            )
        self._is_entered = True
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return table([HEADER, *map(astuple, self.rows)]) + ("" if self._undo else "\n(detached)")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text in columns, the first as their heads."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]])


def named(rule: Any) -> str:
    """Return a rule's name for a table, with its bound numbers."""
    if isinstance(rule, str):
        return rule
    if isinstance(rule, Rule):
        return rule._words
    name = getattr(rule, "name", None)
    said = repr(rule)  # the repr of a layer's rule has its numbers
    return said if name is None or said.startswith(f"{name}(") else name


# --- which layers and operations are meant --------------------------------------------------------
WILDCARDS = frozenset("*?[")
MOST_NAMES, MOST_CALLED = 12, 24


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
    """A function that a layer holds as an attribute, such as an activation.

    Attributes:
        layer: the framework's object that holds it.
        attribute: its name there.
        function: the value of the attribute.
    """

    layer: Any
    attribute: str
    function: Any


def hold(layer: Layer, attribute: str, function: Any) -> Layer:
    """Return a function that a layer holds, under the layer's names and its own."""
    names = tuple(f"{name}.{attribute}" if name else attribute for name in layer.names)
    return Layer(names, HeldFunction(layer.layer, attribute, function))


@dataclass(frozen=True, slots=True)
class Choice:
    """A layer with its rule, and what chose it.

    Attributes:
        layer: the layer.
        rule: the rule; None: a composite lets it keep its own gradient.
        selector: as it was given; of a composite, the layer's kind.
        kind: the layer's kind, in a composite; None if that has no name.
        is_named: whether a composite has an entry for the layer's name.
    """

    layer: Layer
    rule: Any
    selector: Any
    kind: str | None = None
    is_named: bool = False

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
        raise RuleTypeError(
            f"expected {{selector: rule}} with at least one of them, got {rules!r:.60}"
        )
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
                raise RuleValueError(_nothing(part, [*layers, *functions], operation_names))
            choices += [Choice(layer, rule, part) for layer in matches]
    return _outermost(_once(choices)), _once(operations)


def choose_by_kind(
    composite: Composite, layers: Sequence[Layer], kind_of: Callable[[Any], str | None]
) -> list[Choice]:
    """Return each layer with its rule in a composite, None where it keeps its own gradient."""
    kinds = [kind_of(each.layer) for each in layers]
    names = [each.names[0] for each in layers]
    chosen = composite.choose(zip(names, kinds, strict=True))
    return [
        Choice(
            layer, rule, kind or "by name", kind, any(fnmatchcase(name, p) for p in composite.names)
        )
        for layer, kind, rule, name in zip(layers, kinds, chosen, names, strict=True)
    ]


def check_row(selector: Any, rule: Any) -> None:
    """Check that a selector is no empty tuple, and its rule is not None."""
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
    """Return the functions of layers that a selector means, which ends in an attribute's name."""
    if not isinstance(selector, str):
        return []
    last = selector.rpartition(".")[2]
    return [
        each
        for each in functions
        if each.layer.attribute == last and any(fnmatchcase(n, selector) for n in each.names)
    ]


def match(selector: Any, layers: Sequence[Layer]) -> list[Layer]:
    if isinstance(selector, str):
        matches = [each for each in layers if any(fnmatchcase(n, selector) for n in each.names)]
        leaves = [each for each in matches if each.is_leaf]
        # A wildcard means leaves if it matches any, and not what contains them.
        return leaves if leaves and WILDCARDS & set(selector) else matches
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
    # Of a class that all layers have in common it is a layer, of another model.
    kinds = [set(type(each.layer).__mro__) for each in layers]
    common = set.intersection(*kinds) - {object} if kinds else set()
    return isinstance(selector, tuple(common))


def _takes_two(predicate: Callable[..., Any]) -> bool:
    try:
        rows = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):
        # A builtin may have no signature: it takes the layer alone.
        return False
    needed = [
        row
        for row in rows
        if row.kind in (row.POSITIONAL_ONLY, row.POSITIONAL_OR_KEYWORD) and row.default is row.empty
    ]
    return len(needed) == 2


def _once(choices: Sequence[AnyChoice]) -> list[AnyChoice]:
    by_key: dict[Any, AnyChoice] = {}
    for choice in choices:
        known = by_key.setdefault(choice.key, choice)
        if known.rule is not choice.rule and known.rule != choice.rule:
            raise RuleValueError(
                f"{choice.said} is selected twice: {shown(known.selector)!r} gives it "
                f"{named(known.rule)!r}, {shown(choice.selector)!r} gives it {named(choice.rule)!r}"
            )
    return list(by_key.values())


def _outermost(choices: list[Choice]) -> list[Choice]:
    # A rule on a layer replaces all gradients inside it.
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


def refuse_second(subject: str, rule: str | None = None, where: str = "") -> NoReturn:
    """Raise for what has a rule already, by another handle."""
    said = "a rule" if rule is None else f"rule {rule!r}"
    raise RuleValueError(f"{subject} has {said} already{where}: detach that first")


def refuse_empty(composite: Composite) -> NoReturn:
    raise RuleValueError(f"composite {composite.name!r} has no rule for any layer of the model")


def unmet(subject: str, said: str, called: Iterable[str], advice: str = "") -> str:
    """Return the error message for a selector that means nothing that a function or model calls."""
    names = sorted(set(called))
    listed = ", ".join(names[:MOST_CALLED]) + (", ..." if len(names) > MOST_CALLED else "")
    return (
        f"{subject} calls no operation {said!r}{suggest(said, names)} "
        f"(it calls: {listed or 'none'}){advice}"
    )


def shown(selector: Any) -> str:
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


# --- a rule over an unchanged forward: a layer, a call of a library, anything ---------------------
Tensor = Any
Over: TypeAlias = AnyFunction | BoundFunction
# Weak: an entry goes when its rule is freed.
_over: weakref.WeakKeyDictionary[Rule, Over] = weakref.WeakKeyDictionary()


def over(rule: str | Rule | Callable[..., Any]) -> Over:
    """Return a Function `(tin, out) -> out` with a rule's gradient instead of the forward's own.

    `out` is what the forward computed of `tin` as a constant (detached, `stop_gradient`): so what
    else the forward reads, its weights among it, keeps its gradient, and `tin` gets the rule's.

    Raises:
        RuleError: the rule is unknown, or needs a param (also a TypeError).
        GradientError: at backward; the rule gives another shape than tin's, as it does where the
            forward changes the shape and the rule works element by element.
    """
    resolved = resolve(rule)
    known = _over.get(resolved)
    if known is None:
        bound_rule = resolved.bound_rule()  # raises for a missing param
        # Weak, because the Function is the value of an entry whose key is the rule.
        held = weakref.ref(resolved)
        names, values = bound_rule.specialization.runtime, bound_rule.values
        # Numbers that may change are given at each call: others are part of the graph.
        changes = any(type(value) is not float for value in values)

        def acting() -> Any:
            # The rule itself, or if it is gone, what its name means now.
            return held() or resolve(rule)

        def forward(tin: Tensor, out: Tensor, *numbers: Any) -> Any:
            def grad(upstream: Tensor) -> Any:
                return (
                    pull(acting(), names, numbers, upstream, tin),
                    upstream,
                    *(None,) * len(numbers),
                )

            return out, grad

        forward.__name__ = resolved.name
        params = ("tin", "out", *names) if changes else ("tin", "out")
        forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in params]
        )
        made: Any = custom_gradient(forward, native=resolved.native)
        if changes:
            made = made.bind(dict(zip(names, values, strict=True)))
        known = _over.setdefault(resolved, made)
    return known


def pull(
    rule: Rule, names: Sequence[str], numbers: Sequence[Any], grad_out: Tensor, tin: Tensor
) -> Tensor:
    """Return a rule's gradient, with these values of its run-time params, if they are given."""
    if not numbers:
        return rule(None, grad_out, tin)
    specialization = rule.bound_rule().specialization
    values = {**specialization.static, **dict(zip(names, numbers, strict=True))}
    opened: Any
    opened, params = specialization.fill_bound(values)
    return opened(None, grad_out, tin, **params)


def misfit(rule: str, where: str, tin: Any, out: Any) -> str:
    """Return the error message for a rule that does not fit, with what would."""
    return (
        f"{where} makes shape {out} of {tin}, and rule {rule!r} needs a gradient of its input's "
        "shape: it goes on layers and operations that keep the shape. What fits a layer with "
        "weights is xg.attribution.epsilon() and its like; this rule fits the activation after it"
    )


def check_fit(rule: str, where: str, tin: Any, out: Any) -> None:
    """Check that a rule fits a forward, by the shapes of its input and output where known."""
    if not shapes_agree(out, tin):
        raise GradientError(misfit(rule, where, tuple(tin), tuple(out)))


class RuleOver:
    """A rule over forwards, looked up again only when some name means another rule than before."""

    # Compilers that read code can follow a comparison of epochs, but no look-up of a name.
    __slots__ = ("_known", "rule")

    def __init__(self, rule: str | Rule | Callable[..., Any]) -> None:
        self.rule = rule
        self._known = epoch(), over(rule)

    def now(self) -> Over:
        """Return `over` of the rule as it is now."""
        looked_up, function = self._known
        if looked_up != epoch():
            self._known = epoch(), over(self.rule)
            function = self._known[1]
        return function

    def here(self) -> Over:
        """Return it for eager code, which may be a region that runs again."""
        return over(self.rule) if is_of_then() else self.now()


def put_over(rule: Over, name: str, where: str, tin: Tensor, out: Tensor) -> Tensor:
    """Return the output of a forward on a constant, with a rule's gradient for its input."""
    check_fit(name, where, tin.shape, out.shape)
    return rule(tin, out)
