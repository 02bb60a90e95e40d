"""A custom gradient of somebody else, as it was found: on which framework it runs, how it is called
there, and the Function that is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend.contract import Backend
from ..backend.finding.discovery import in_use, load_backend
from ..capture.code.signature import name_of
from ..errors import MultigradError, RuleTypeError
from ..functions.calls.arguments import signature_of
from ..functions.function import Function
from ..functions.importers import import_from, owner_of_custom
from ..functions.plain import PairRecipe
from ..functions.proof.run import homes


@dataclass(frozen=True, slots=True)
class Original:
    """A custom gradient, or a function that applies one.

    Attributes:
        call: runs it as it is, on tensors of a home.
        homes: the frameworks that it may run on, the likeliest first.
        function: what multigrad makes of it.
        is_custom: whether it is a custom gradient itself.
    """

    name: str
    call: Callable[..., Any]
    homes: tuple[Backend, ...]
    function: Function
    is_custom: bool


def find_original(obj: Any, copies: bool = False) -> Original:
    """Return what an object is: a framework's own custom gradient, else a function of tensors.

    A class that is no custom gradient stands for what it makes without arguments.

    Args:
        copies: see `xg.Capture`.

    Raises:
        RuleTypeError: it is neither.
        MultigradError: a class cannot be made without arguments.
    """
    backend = owner_of_custom(obj)
    if backend is not None:
        function = import_from(backend.name, obj, copies=copies)
        call = getattr(function.recipe, "apply", obj)
        return Original(function.name, call, (backend,), function, is_custom=True)
    if isinstance(obj, type):
        obj = _make(obj)
    if not callable(obj):
        raise RuleTypeError(
            f"expected a custom gradient or a function of tensors, got a {type(obj).__name__}"
        )
    name = name_of(obj)
    recipe = PairRecipe(obj, None, None, name, copies=copies)
    function = Function(recipe, obj)
    found = tuple(_homes(obj, recipe.dialect()))
    return Original(name, obj, found, function, is_custom=False)


def arguments_of(original: Original) -> Sequence[Any] | None:
    """Return the parameters that a call must fill; None where nobody knows them."""
    signature = original.function.parameters or signature_of(original.call)
    if signature is None:
        return None
    given = (p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD)
    return [p for p in given if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]


def _make(cls: type) -> Any:
    try:
        return cls()
    except Exception as error:
        raise MultigradError(
            f"{cls.__name__} is a class that cannot be made without arguments ({error}); name an "
            "object of it"
        ) from error


def _homes(obj: Any, dialect: str) -> Iterator[Backend]:
    """Yield the frameworks that a function may run on: that of its tensors alone, where it holds
    some; that of its class, of its code, any.
    """
    if home := getattr(obj, "home_of_tensors", ""):
        yield load_backend(home)
        return
    roots = [base.__module__.partition(".")[0] for base in type(obj).__mro__]
    likely = [backend for backend in in_use() if backend.name in roots]
    yield from likely
    for backend in homes(dialect):
        if backend not in likely and backend.autodiff.vjp is not None:
            yield backend
