"""Registry of gradient rules: `register`, `get`, `rules`, `unregister` and `compose`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ...errors import RuleError, RuleTypeError, RuleValueError, suggest
from ..support.lazy_modules import of_engine, provided
from ..support.params import Range, agreed, read_ranges
from ..support.tracebacks import door
from . import rule_names
from .capture import Capture, capture_options
from .resolution import resolve
from .rule import Rule
from .rule_names import (
    LIBRARY,
    PROTECTED,
    RULES,
    epoch,
    is_being_imported,
    load_library,
    lock,
    may_be_replaced,
    renaming,
    unknown_rule_error,
)
from .signature import called_method

if TYPE_CHECKING:
    from ...engine.functions.calls.parameters import BoundFunction
    from ...engine.functions.chain import Chain
    from ...engine.functions.function import Function

__all__ = ["RuleError", "compose", "epoch", "get", "register", "resolve", "rules", "unregister"]

_AnyFunction = TypeVar("_AnyFunction", bound=Callable[..., Any])


def register(
    name: str,
    *,
    override: bool = False,
    first_order: bool = False,
    ranges: Mapping[str, str | Range] | None = None,
    capture: Capture | None = None,
    native: bool | None = None,
    dialect: str | None = None,
    prove: bool = True,
) -> Callable[[Callable[..., Any]], Rule]:
    """Register a gradient rule `fn(ctx, grad_out, tin, **params) -> grad_in` under a name.

    Examples:
        >>> @xg.register("window", ranges={"a": "<= b", "slope": "> 0 and finite"})
        ... def window(ctx, grad_out, tin, a=-1.0, b=1.0, slope=1.0):
        ...     return grad_out * slope * ((tin >= a) & (tin <= b))
        >>> with xg.use("window", {"slope": 0.5}):
        ...     y, pull = xg.vjp(xg.activation("Heaviside"), np.array([-2.0, 0.3]))
        >>> pull(np.ones(2))[0]
        array([0. , 0.5])
        >>> with xg.use("window", {"slope": -1.0}):
        ...     pass
        Traceback (most recent call last):
            ...
        multigrad.errors.RuleValueError: rule 'window': param 'slope' is > 0 and finite, got -1.0

    Params may have ranges, which are checked wherever a number is given for one.

    Args:
        name: the name, any non-empty string.
        override: replace a rule of that name; compiled code that used the old one is invalid. A
            rule of the library that version 0.1.0 did not have is replaced without it.
        first_order: a promise that nobody differentiates the rule itself (`create_graph=True`):
            numbers that forward can compute from tin, such as its norm, may then be kept in the
            place of tin. Where that would lose a derivative, taking one raises GradientError.
        ranges: the values that params take, by name: conditions joined by " and ", each a
            comparison (>, >=, <, <=, !=) with a number or with another param, or "finite". Infinity
            is compared as any number; NaN is in no range. A number out of its range is an error
            where it is given (`use`, `with_params`, a call, a layer); tensors are not read.
        capture: how it becomes a graph; None: the defaults of `xg.Capture()`.
        native: this option of `Capture`, given directly.
        dialect: likewise.
        prove: likewise.

    Returns:
        A decorator that returns the `Rule`, which is still callable.

    Raises:
        RuleError: the name is taken, or is not a string.
        RuleTypeError: the function's signature is not (ctx, grad_out, tin, **params), or a range is
            for no param of it.
        RuleValueError: a range cannot be read, or a default is out of it.
    """
    if not isinstance(name, str) or not name:
        raise RuleTypeError(
            f"a rule's name is a non-empty string, got {name!r}; write @xg.register('my_rule')"
        )
    options = capture_options(capture, native, dialect, prove)

    @door
    def decorate(function: Any) -> Rule:
        # The library has to be loaded to see a clash: protected names, and dotted names, which
        # belong to packages. Any other rule of the library gives way to a user's.
        if name in PROTECTED or "." in name:
            load_library(name)
        rule = _with_ranges(_as_rule(name, function, bool(first_order), options), ranges)
        if _contains_name(rule, name):
            raise RuleError(
                f"rule {name!r} would be made of itself; compose the rule that has the name now: "
                f"compose(xg.get({name!r}), ...)"
            )
        _add(name, rule, override)
        return rule

    return decorate


def _as_rule(name: str, function: Any, first_order: bool, options: Capture) -> Rule:
    """Return the rule of a function, or a Rule that exists, under a name and with these options."""
    native, library, prove = options.native, options.library, options.prove
    if not isinstance(function, Rule):
        return Rule(
            name=name,
            function=called_method(function),
            native=native,
            first_order=first_order,
            library=library,
            prove=prove,
        )
    return function.copy(
        name=name,
        native=function.native if native is None else native,
        first_order=function.first_order or first_order,
        library=library or function.library,
        prove=function.prove and prove,
    )


def _add(name: str, rule: Rule, override: bool) -> None:
    """Add a rule under a name; one of the library leaves a user's of that name in place."""
    with lock:
        if is_being_imported(rule):
            # An import that was interrupted begins again, with some of its rules there.
            previous, LIBRARY[name] = LIBRARY.get(name), rule
            if RULES.get(name) not in (None, previous):  # a user's
                return
        elif name in RULES and not override and not may_be_replaced(name):
            raise RuleError(
                f"a rule named {name!r} is registered already; pass override=True to replace it, "
                "or choose another name"
            )
        with renaming(name):
            RULES[name] = rule


def _with_ranges(rule: Rule, ranges: Any) -> Rule:
    new_ranges = read_ranges(ranges, f"rule {rule.name!r}")
    if not new_ranges:
        return rule
    if rule.parts:
        raise RuleTypeError(
            f"rule {rule.name!r} is made of others, which have the ranges; register its parts with "
            "them"
        )
    signature = rule.signature
    for name, limits in new_ranges.items():
        for word in (name, *limits.others):
            if not isinstance(word, str) or not signature.takes(word):
                raise RuleTypeError(
                    f"rule {rule.name!r}: ranges[{name!r}] names {word!r}, which is no param of it"
                    f"{suggest(str(word), list(signature.params))}"
                )
    rule = rule.copy(ranges={**rule.own_ranges, **new_ranges})
    # Bound values and defaults must be within the new ranges too.
    rule._check_ranges(rule.bound, with_defaults=True)
    return rule


@overload
def get(rule: str | Rule) -> Rule: ...
@overload
def get(rule: _AnyFunction) -> _AnyFunction: ...
def get(rule: str | Rule | _AnyFunction) -> Rule | _AnyFunction:
    """Return a rule by name; a Rule or a callable is returned as it is.

    Args:
        rule: a name that `xg.rules()` lists, or a Rule or function, which is returned.

    Examples:
        >>> triangular = xg.get("triangular")
        >>> triangular
        <Rule triangular(width=1.0)>
        >>> triangular(None, np.ones(3), np.array([-2.0, 0.0, 0.5]), width=2.0)
        array([0.  , 1.  , 0.75])
        >>> xg.get("triangluar")
        Traceback (most recent call last):
            ...
        multigrad.errors.RuleError: no rule named 'triangluar'; did you mean 'triangular'? (...

    Raises:
        RuleError: no rule has that name.
    """
    return rule_names.get(rule)


def unregister(name: str) -> None:
    """Remove a rule; a library rule that it had replaced is restored.

    Examples:
        >>> @xg.register("halved")
        ... def halved(ctx, grad_out, tin):
        ...     return 0.5 * grad_out
        >>> xg.unregister("halved")
        >>> "halved" in xg.rules()
        False

    Raises:
        RuleError: there is no rule of that name.
    """
    load_library(name)
    with lock:
        if name not in RULES:
            raise unknown_rule_error(name)
        with renaming(name):
            rule = RULES.pop(name)
            # A user's rule has hidden the library's, which is back now.
            if name in LIBRARY and LIBRARY[name] is not rule:
                RULES[name] = LIBRARY[name]


def rules() -> list[str]:
    """Return the names of all rules, sorted.

    Examples:
        >>> [name for name in xg.rules() if name.startswith("clip")]
        ['clip_norm', 'clip_rms', 'clip_value', 'clipped_straight_through']
    """
    load_library()
    return sorted(RULES)


@overload
def compose(*parts: Function | BoundFunction) -> Chain: ...
@overload
def compose(*parts: str | Rule) -> Rule: ...
@overload
def compose(*parts: Any) -> Any: ...
def compose(*parts: Any) -> Any:
    """Return one rule for several, or one Function for several, applied in series, first to last.

    Of rules: each one's gradient goes into the next one.

    Of Functions: x -> g(f(x)), in which each keeps its own gradient.

    A param reaches every part that declares it; "noise.sigma" reaches one part only,
    "noise[1].sigma" if several parts have that name. Fix a param of one part with
    `rule.with_params(...)`, `function.bind({...})`. Compositions may be composed, saved and
    pickled. Options that parts got by `keeping` or `fused=` hold for the whole where they agree.

    Examples:
        >>> clip_then_halve = xg.compose("clip_norm", xg.get("scale").with_params(s=0.5))
        >>> clip_then_halve(None, np.array([3.0, 4.0]), None, max_norm=1.0)
        array([0.3, 0.4])
        >>> with xg.use(clip_then_halve, {"clip_norm.max_norm": 2.5}):
        ...     xg.apply_to_gradients({"weight": np.array([3.0, 4.0])})
        {'weight': array([0.75, 1.  ])}
        >>> quantized = xg.compose(xg.activation("Tanh"), xg.estimators.ste_round)  # Functions
        >>> quantized(np.array([-2.0, 0.1, 0.9]))
        array([-1.,  0.,  1.])

    Args:
        parts: names of rules, Rules and functions that are rules; or Functions, bound ones and
            activations.

    Raises:
        RuleError: a name is unknown.
        RuleValueError: nothing was given.
        RuleTypeError: rules and Functions are mixed.
    """
    if not parts:
        raise RuleValueError(
            "compose needs at least one rule, such as compose('clip_norm', 'noise')"
        )
    parts = tuple(getattr(part, "_activation", part) for part in parts)  # of modules and layers
    if not all(isinstance(part, str | Rule) for part in parts):
        functions = chain(parts)
        if functions is not None:
            return functions
    # Names stay names, so that a part that is registered anew acts in the composition.
    members = tuple(part if isinstance(part, str) else resolve(part) for part in parts)
    part_rules = list(map(resolve, members))
    names = [part if isinstance(part, str) else part.name for part in members]
    return Rule(
        name=f"compose({', '.join(names)})",
        parts=members,
        fused=agreed(part.fused for part in part_rules),
        residuals=agreed(part.residuals for part in part_rules),
    )


@provided
def chain(parts: tuple[Any, ...]) -> Any:
    """Return Functions in series; None if none of the parts is a Function."""
    return None


def _contains_name(rule: Rule, name: str) -> bool:
    return any(part == name or _contains_name(resolve(part), name) for part in rule.parts)


with_choices = of_engine(
    __name__, "with_choices", "a choice made beside a rule's name, as residuals=,"
)


@provided
def unknown_keyword_error(
    function: Callable[..., Any],
    name: str,
    rule: str | Rule | Callable[..., Any] | None,
    unknown: Mapping[str, Any],
) -> RuleTypeError:
    """Return the error for keywords that a function does not take.

    Args:
        function: whose own keywords are suggested.
        name: what people call it.
        rule: the rule whose params the keywords may be.
        unknown: the keywords with their values.
    """
    return RuleTypeError(
        f"{name} takes no {next(iter(unknown))!r}; params are given as params={{}}"
    )
