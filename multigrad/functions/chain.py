"""Functions in series: `compose(f, g)` is x -> g(f(x)), each with its own gradient."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RuleTypeError, suggest
from ..graph.support.params import Fused, agreed, find_part, is_address, read_params
from ..graph.support.pickles import pickled
from ..graph.support.trees import optree
from ..trace.trace import Trace
from .calls.arguments import owner_of, unwrap
from .calls.parameters import BoundFunction, unknown_argument
from .calls.recipe import Options, Recipe, Recorded
from .documents.functions import SavedFunction
from .function import Function
from .object_function import ObjectFunction

Tensor = Any
REQUIRED = inspect.Parameter.empty
TAKES_ANY = "params"  # in signatures: addresses such as "noise.sigma" are no identifiers


@dataclass(frozen=True, slots=True, eq=False)
class ChainPart:
    """One of the functions in series.

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
        # A document knows no defaults, and a chain inside this one checks its own parts.
        function = self.function
        is_saved = function is not None and isinstance(function.recipe.origin, SavedFunction)
        if is_saved or isinstance(function, Chain):
            return []
        parameters = (self.parameters or {}).values()
        return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.default is REQUIRED]

    def run(self, x: Tensor, values: Mapping[str, Any]) -> Any:
        if values and self.function is not None:
            return self.function(x, **{**self.bound, **values})
        return self.call(x)

    def __str__(self) -> str:
        if isinstance(self.function, Chain):
            return f"({self.function._words})"
        bound = ", ".join(f"{name}={value!r}" for name, value in self.bound.items())
        return f"{self.name}({bound})" if bound else self.name


def part_of(part: Any) -> ChainPart:
    """Return a Function, a bound Function or an activation as a part of a series."""
    bound: Mapping[str, Any] = part.params if isinstance(part, BoundFunction) else {}
    function: Any = part.function if isinstance(part, BoundFunction) else part
    tensors = list_tensors(part)
    if tensors:  # which a capture around it would take for constants
        name = getattr(part, "name", None) or function.forward.name
        raise RuleTypeError(
            f"compose holds no tensors, and {name!r} is bound to one, {tensors[0]}: give it to the "
            f"whole, compose(...).bind({{'{name}.{tensors[0]}': ...}}), or at the call"
        )
    if not isinstance(function, Function):  # an activation: it takes its tensor alone
        return ChainPart(part, function.forward.name, None, {}, {})
    if isinstance(function, ObjectFunction):
        raise RuleTypeError(
            f"function {function.name!r} reads the tensors of an object, which compose does not "
            f"follow; write lambda x: g({function.name}(x)), or make a Function that takes them as "
            "arguments"
        )
    signature = function.parameters
    if signature is None:
        return ChainPart(part, function.name, function, bound, None)
    by_name = [p for p in list(signature.parameters.values())[1:] if p.kind is not p.VAR_POSITIONAL]
    parameters = {p.name: p for p in by_name if p.name not in bound}
    return ChainPart(part, function.name, function, bound, parameters)


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


def recipe_of_chain(parts: tuple[ChainPart, ...], name: str) -> Recipe:
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
            x = part.run(x, values)
        return Recorded(x, None)

    def record(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
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
    holders = [part.function or getattr(part.call, "rule", None) for part in parts]
    options = Options(
        residuals=agreed(getattr(each, "residuals", "auto") for each in holders),
        fused=agreed(getattr(each, "fused", "auto") for each in holders),
    )
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
    path, part, name = find(chain, parts, address)
    if is_bound(parts, path, name):
        raise RuleTypeError(f"function {chain!r}: {address!r} is bound, so it can no longer be set")
    if not part.takes(name):
        names = list(part.parameters or {})
        raise unknown_argument(f"function {part.name!r}", name, names)
    first, *inner = path
    if not inner:
        shares[first][name] = value  # over what reaches all
        return
    # A chain gets the rest of the address, in its own labels.
    nested = inner_chain(parts[first])
    shares[first][f"{nested.label_of(tuple(inner))}.{name}"] = value


def find(
    chain: str, parts: Sequence[ChainPart], address: str
) -> tuple[tuple[int, ...], ChainPart, str]:
    """Return the path to the part that an address names, the part, and the argument's own name."""
    walked = list(walk(parts))
    position, name = find_part(f"function {chain!r}", address, [part.name for _, part in walked])
    return *walked[position], name


def is_bound(parts: Sequence[ChainPart], path: Sequence[int], name: str) -> bool:
    """Return whether an argument of the part at a path is bound, there or around it."""
    first, *inner = path
    part = parts[first]
    if name in part.bound:
        return True
    if not inner:
        return False
    nested = inner_chain(part)
    targets = (find(nested.name, nested.parts, each) for each in part.bound if is_address(each))
    addressed = ((place, argument) for place, _, argument in targets)
    return (tuple(inner), name) in addressed or is_bound(nested.parts, inner, name)


def walk(
    parts: Sequence[ChainPart], path: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], ChainPart]]:
    """Yield the parts, and the parts inside them, with their paths."""
    for i, part in enumerate(parts):
        yield (*path, i), part
        if isinstance(part.function, Chain):
            yield from walk(part.function.parts, (*path, i))


def inner_chain(part: ChainPart) -> Chain:
    assert isinstance(part.function, Chain)
    return part.function


class Chain(Function):
    def __init__(self, parts: Sequence[Any]) -> None:
        rows = tuple(map(part_of, parts))
        self.given = tuple(parts)
        self.parts = rows
        super().__init__(recipe_of_chain(rows, f"compose({', '.join(part.name for part in rows)})"))
        self.__doc__ = f"{self._words}, each with its own gradient."

    @property
    def _words(self) -> str:
        return " → ".join(map(str, self.parts))

    def __repr__(self) -> str:
        return f"<Function {self._words}>"

    def label_of(self, path: tuple[int, ...]) -> str:
        labels = [(part.name, place) for place, part in walk(self.parts)]
        # Parts of one name are told apart by their numbers: "noise[1]".
        name = next(label for label, place in labels if place == path)
        places = [place for label, place in labels if label == name]
        return name if len(places) == 1 else f"{name}[{places.index(path)}]"

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
