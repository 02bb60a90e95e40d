"""Other ways to run a kind of rule, the same everywhere: each gives a function of a tensor."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import multigrad as xg
from multigrad.engine import random
from multigrad.engine.rules.opaque import call_activation, call_function

from .kinds import LAYER, WEIGHT, Kind, NotApplicable, X, bare, keyed, tensor_for, weight_for

Tensor = Any
Function = Callable[[Tensor], Tensor]
KEYED = "random, with a key"


def rule_of(kind: Kind) -> Any:
    """Return the rule of a kind, with its numbers.

    Raises:
        NotApplicable: it is none, or its key belongs to a call.
    """
    if kind.rule is None:
        raise NotApplicable("it is no rule, or has a key, which a call is given")
    return kind.rule()


def through(pulled: Callable[[Function], Any], way: Callable[..., Function], *args: Any) -> Any:
    """Return a transform: what a backend pulls through a way."""

    def transform(kind: Kind) -> Any:
        return pulled(way(kind, *args))

    return transform


def in_thread(pulled: Callable[[Function], Any]) -> Any:
    """Return a transform: what a backend pulls in another thread."""

    def transform(kind: Kind) -> Any:
        function = kind.make()
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(pulled, function).result()

    return transform


def overriding(kind: Kind, relu: Any, linear: Any) -> Function:
    """Return a function that calls an operation, with the rule on it."""
    found = rule_of(kind)
    if kind.name != LAYER:
        return xg.override(lambda x: relu(x), {"relu": found})
    return xg.override(lambda x: linear(x, weight_for(x)), {"linear": found})


def saved(kind: Kind) -> Function:
    """Return what a document holds of a kind, read back."""
    if kind.name == LAYER:
        again = saved_layer()
        return lambda x: again(x, weight_for(x), None)
    if kind.rule is not None:
        return xg.activation(forward_of(kind), xg.from_dict(rule_of(kind).to_dict()))
    function = kind.make()
    if kind.name == KEYED:
        function = function.function.with_defaults((0.5,))
    return xg.from_dict(function.to_dict())


def saved_layer() -> Any:
    return xg.from_dict(called_layer().to_dict())


def called_layer() -> Any:
    """Return a layer with its rule, captured for a call without a bias."""
    layer = xg.attribution.epsilon(0.25).over("linear", layout="in_out")
    layer.captures.variants.clear()  # other tests may have called it otherwise
    layer.entries.known.clear()
    layer(X, WEIGHT, None)
    return layer


def forward_of(kind: Kind) -> str:
    made = kind.make()
    return made.forward.name if hasattr(made, "forward") else "Linear"


def ejected(kind: Kind, backend: str) -> Function:
    """Return the function in the file that is ejected of a kind."""
    if kind.meaning is None:
        raise NotApplicable("what is ejected takes its key as an argument")
    if kind.name == LAYER:
        text = xg.source(called_layer(), backend, standalone=True)
    elif kind.rule is not None:
        found = rule_of(kind)
        text = xg.source(found, backend, forward=forward_of(kind), standalone=True)
    else:
        function = keyed().function if kind.name == KEYED else kind.make()
        if isinstance(function, xg.Function):
            function.captures.variants.clear()  # other tests may have called it otherwise
        text = xg.source(function, backend, standalone=True)
    own = run_file(text)
    taken = inspect.signature(own).parameters
    values = {"sigma": 0.5, "key": random.fold_in((0, 7), 0), "epsilon": 0.25}
    arrays = {"weight": WEIGHT, "out": X @ WEIGHT}

    def arguments(x: Tensor) -> tuple[Any, ...]:
        known = {**values, **{name: tensor_for(x, array) for name, array in arrays.items()}}
        return (x, *(known[name] for name in taken if name in known))

    return as_called(own, arguments)


def as_called(own: Any, arguments: Callable[[Tensor], tuple[Any, ...]]) -> Function:
    """Return an ejected function as one of a tensor; NumPy's has its pullback beside it."""

    def call(x: Tensor) -> Any:
        return own(*arguments(x))

    if hasattr(own, "vjp"):
        call.__dict__["vjp"] = lambda x: own.vjp(*arguments(x))
    return call


def run_file(text: str) -> Any:
    module = types.ModuleType("ejected_file")
    exec(compile(text, "ejected_file.py", "exec"), module.__dict__)  # noqa: S102
    (public,) = module.__all__
    return getattr(module, public)


def bridged(kind: Kind, guest: str) -> Function:
    """Return a kind that runs in another framework, forward and backward."""
    made = kind.make()
    if kind.name == LAYER:
        layer = xg.attribution.epsilon(0.25).over("linear", layout="in_out")
        return lambda x: call_function(layer, (x, weight_for(x), None), {}, guest)
    if isinstance(made, xg.Function):
        return lambda x: call_function(made, (x,), {}, guest)
    if kind.name == KEYED:
        return lambda x: call_function(made.function, (x, *made.params.values()), {}, guest)
    return lambda x: call_activation(made.forward, made.in_force(), x, guest)


def applied(kind: Kind, grad_out: Tensor) -> Any:
    """Return a bare gradient after the rule, as one of a parameter, and what it must be."""
    if kind.name == KEYED:
        found = xg.apply_to_gradients([grad_out], "noise", {"sigma": 0.5}, key=7)
    elif kind.name == LAYER:
        raise NotApplicable("it reads a layer, which a bare gradient has not")
    else:
        found = xg.apply_to_gradients([grad_out], rule_of(kind))
    return found[0], "drawn" if kind.meaning is None else bare
