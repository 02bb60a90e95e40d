"""Functions in series: `compose(f, g)` is x -> g(f(x)), each with its own gradient."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.backend.values import owner_of
from ...core.functions.recipe import Options, Recipe, Recorded
from ...core.lowering.forwards import Forward
from ...core.rules.registry import resolve
from ...core.rules.rule import Rule
from ...core.support.params import Fused, agreed, is_address, read_params
from ...core.support.pickles import pickled
from ...core.support.trees import optree
from ...errors import RuleTypeError, suggest
from ..support.parts import find_part
from ..trace.code_trace import CodeTrace
from .calls.arguments import unwrap
from .calls.parameters import BoundFunction, unknown_argument
from .function import Function
from .object_function import ObjectFunction

REQUIRED = inspect.Parameter.empty
TAKES_ANY = "params"  # in signatures: addresses such as "noise.sigma" are no identifiers


@dataclass(frozen=True, slots=True, eq=False)
class ChainPart:
    """One of the functions in series; a chain among them is its parts.

    Attributes:
        call: a Function, one with values for some of its arguments (`bound`), or an activation.
        function: the Function, None for an activation.
        parameters: what it takes besides its first argument and these; None: unknown.
    """

    call: Callable[..., Any]
    name: str
    function: Function | None
    bound: Mapping[str, Any]
    parameters: Mapping[str, inspect.Parameter] | None

    def takes(self, name: str) -> bool:
        if self.parameters is None:
            return True
        kinds = [p.kind for p in self.parameters.values()]
        return name in self.parameters or inspect.Parameter.VAR_KEYWORD in kinds

    def required(self) -> list[str]:
        """Return the names of the arguments that a call has to give."""
        # A document knows no defaults.
        if self.function is None or self.function.document is not None:
            return []
        parameters = (self.parameters or {}).values()
        return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.default is REQUIRED]

    def with_bound(self, values: Mapping[str, Any]) -> ChainPart:
        """Return this part with values for some of its arguments."""
        if not values or self.function is None:
            return self
        bound, parameters = {**self.bound, **values}, self.parameters
        if parameters is not None:
            parameters = {name: p for name, p in parameters.items() if name not in bound}
        call = self.function.bind(bound)
        return replace(self, call=call, bound=bound, parameters=parameters)


def chain(parts: tuple[Any, ...]) -> Any:
    """Return Functions in series; None if none of the parts is a Function.

    Raises:
        RuleTypeError: some are.
    """
    functions = [part for part in parts if _is_function(part)]
    if functions and len(functions) < len(parts):
        raise _mixed(functions[0], next(part for part in parts if part not in functions))
    return Chain(parts) if functions else None


def _mixed(function: Any, rule: Any) -> RuleTypeError:
    name = getattr(function, "name", None) or function.forward.name
    if isinstance(rule, str | Rule):
        word = resolve(rule).name
        return RuleTypeError(
            f"compose takes rules or Functions: {word!r} is a rule, {name!r} a Function. Put the "
            f"rule under an activation, which makes it a Function: xg.get({word!r}).under('Linear')"
        )
    word = getattr(rule, "__name__", type(rule).__name__)
    return RuleTypeError(
        f"compose takes rules or Functions: {name!r} is a Function, and {word!r} is none; write "
        f"xg.function({word}) for its true derivative, or xg.function({word}, backward)"
    )


def _is_function(part: Any) -> bool:
    if isinstance(part, Function | BoundFunction):
        return True
    return isinstance(getattr(part, "forward", None), Forward)


def words_of(part: Any) -> str:
    """Return a Function, a bound Function or an activation in words, with what is bound."""
    function, params = opened(part)
    if isinstance(function, Chain):
        return f"({function._words})"
    bound = ", ".join(f"{name}={value!r}" for name, value in params.items())
    return f"{name_of(part)}({bound})" if bound else name_of(part)


def opened(part: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return a bound Function's Function and its values; of any other part itself, and none."""
    return (part.function, part.params) if isinstance(part, BoundFunction) else (part, {})


def name_of(part: Any) -> str:
    """Return the name of a Function, a bound Function or, of an activation, its forward's."""
    return part.name if isinstance(part, Function | BoundFunction) else part.forward.name


def parts_of(part: Any) -> Iterator[ChainPart]:
    """Yield the parts that a Function, a bound Function or an activation is of a series."""
    function, bound = opened(part)
    name, tensors = name_of(part), list_tensors(part)
    if tensors:  # which a capture around it would take for constants
        raise RuleTypeError(
            f"compose holds no tensors, and {name!r} is bound to one, {tensors[0]}: give it to the "
            f"whole, compose(...).bind({{'{name}.{tensors[0]}': ...}}), or at the call"
        )
    if not isinstance(function, Function):  # an activation: it takes its tensor alone
        yield ChainPart(part, name, None, {}, {})
        return
    # A key counts the calls of one Function: with a key of its own a chain is one part.
    if isinstance(function, Chain) and not function.is_keyed:
        shares = share(function.name, function.parts, bound, is_all=False)
        for inner, values in zip(function.parts, shares, strict=True):
            yield inner.with_bound(values)
        return
    if isinstance(function, ObjectFunction):
        raise RuleTypeError(
            f"function {name!r} reads the tensors of an object, which compose does not follow; "
            f"write lambda x: g({name}(x)), or make a Function that takes them as arguments"
        )
    parameters = None
    if function.parameters is not None:
        after_first = list(function.parameters.parameters.values())[1:]
        parameters = {p.name: p for p in after_first if p.kind is not p.VAR_POSITIONAL}
    yield ChainPart(function, name, function, {}, parameters).with_bound(bound)


def list_tensors(part: Any) -> list[str]:
    """Return the names of the tensors that a Function or an activation is bound to."""
    params = {} if isinstance(part, Function) else dict(part.params)
    if isinstance(part, Function) and part.parameters is not None:
        names = list(part.parameters.parameters)[1:]
        params = dict(zip(names, part.defaults, strict=False))

    def holds_tensor(value: Any) -> bool:
        owners = map(owner_of, map(unwrap, optree.tree_leaves(value, none_is_leaf=True)))
        return any(owner is not None and owner.name != "numpy" for owner in owners)

    return [name for name, value in params.items() if holds_tensor(value)]


def recipe_of_chain(parts: tuple[ChainPart, ...], name: str, options: Options) -> Recipe:
    """Return the recipe of functions in series, each run on the result of the one before."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        shares = share(name, parts, kwargs)
        if len(args) != 1:
            raise RuleTypeError(
                f"function {name!r} takes one argument by position, got {len(args)}: give "
                "those of its parts by name"
            )
        (x,) = args
        for part, values in zip(parts, shares, strict=True):
            x = part.call(x, **values)
        return Recorded(x, None)

    def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return run(args, kwargs)

    def library(called: str | None) -> str:
        names = (part.function.recipe.dialect(called) for part in parts if part.function)
        return next((each for each in names if each), "")

    first = inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY)
    by_name: dict[str, inspect.Parameter] = {}
    for part in parts:
        for word, p in (part.parameters or {}).items():
            if p.kind is p.VAR_KEYWORD or word == TAKES_ANY:
                continue
            # Required where one of the parts that take it requires it.
            if word not in by_name or p.default is REQUIRED:
                by_name[word] = p.replace(kind=p.KEYWORD_ONLY, annotation=REQUIRED)
    ordered = sorted(by_name.values(), key=lambda p: p.default is not REQUIRED)
    # An address is no identifier, so any keyword is taken; `share` checks it.
    any_keyword = inspect.Parameter(TAKES_ANY, inspect.Parameter.VAR_KEYWORD)
    signature = inspect.Signature([first, *ordered, any_keyword])
    return Recipe(
        name,
        run,
        record,
        written_in=library,
        signature=signature,
        is_derived=True,
        options=options,
    )


def share(
    chain: str, parts: Sequence[ChainPart], named: Mapping[str, Any], is_all: bool = True
) -> list[dict[str, Any]]:
    """Return the named arguments of a chain as one dict for each part.

    A plain name reaches every part that declares it, an address such as "noise.sigma" one part.
    `is_all` refuses what lacks an argument of a part.
    """
    shares: list[dict[str, Any]] = [{} for _ in parts]
    for name, value in named.items():
        if is_address(name):
            _give(chain, parts, name, value, shares)
            continue
        takers = [i for i, part in enumerate(parts) if part.takes(name)]
        if not takers:
            items = (item for part in parts for item in (part.parameters or {}).items())
            names = list(dict.fromkeys(each for each, p in items if p.kind is not p.VAR_KEYWORD))
            raise RuleTypeError(
                f"function {chain!r}: no part takes {name!r}{suggest(name, names)} "
                f"(arguments: {', '.join(names) or 'none besides the first'})"
            )
        for i in takers:
            # A value given by address wins over one given by plain name, in any order.
            shares[i].setdefault(name, value)
    for part, values in zip(parts, shares, strict=True) if is_all else ():
        missing = [name for name in part.required() if name not in values]
        if missing:
            raise RuleTypeError(
                f"function {chain!r}: part {part.name!r} needs {missing[0]!r}: give "
                f"{missing[0]}=..., by name"
            )
    return shares


def _give(
    chain: str, parts: Sequence[ChainPart], address: str, value: Any, shares: list[dict[str, Any]]
) -> None:
    position, name = find_part(f"function {chain!r}", address, [part.name for part in parts])
    part = parts[position]
    if name in part.bound:
        raise RuleTypeError(f"function {chain!r}: {address!r} is bound, so it can no longer be set")
    if not part.takes(name):
        raise unknown_argument(f"function {part.name!r}", name, list(part.parameters or {}))
    shares[position][name] = value  # over what reaches all


class Chain(Function):
    def __init__(self, parts: Sequence[Any]) -> None:
        self.given = tuple(parts)
        self.parts = tuple(inner for part in parts for inner in parts_of(part))
        functions = [opened(part)[0] for part in parts]
        holders = [each if isinstance(each, Function) else each.rule for each in functions]
        options = Options(
            residuals=agreed(getattr(each, "residuals", "auto") for each in holders),
            fused=agreed(getattr(each, "fused", "auto") for each in holders),
        )
        name = f"compose({', '.join(map(name_of, parts))})"
        super().__init__(recipe_of_chain(self.parts, name, options))
        self.__doc__ = f"{self._words}, each with its own gradient."

    @property
    def _words(self) -> str:
        return " → ".join(map(words_of, self.given))

    def __repr__(self) -> str:
        return f"<Function {self._words}>"

    def bind(
        self, params: Mapping[str, Any] | None = None, key: Any = None, **others: Any
    ) -> BoundFunction:
        """Return this Function with values for arguments of its parts; see `Function.bind`.

        Args:
            params: a value reaches every part that declares its name; "noise.sigma" is that of one
                part alone, "noise[1].sigma" where several have the name.

        Raises:
            RuleTypeError: there is no such part, or it has no such argument.
        """
        share(self.name, self.parts, read_params(params), is_all=False)
        return super().bind(params, key, **others)

    def __reduce__(self) -> Any:
        # Each part as it pickles by itself: by its import name, where it has one.
        return pickled(_rebuild, self.given, self.draws.key, self.residuals, self.fused)


def _rebuild(
    parts: tuple[Any, ...], key: Any, residuals: str | None = None, fused: Fused | None = None
) -> Chain:
    chain = Chain(parts).keeping(residuals, fused=fused)
    return chain if key is None else chain.keyed(key)
