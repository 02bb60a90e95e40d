"""`HoldingLayer`, the base of `Activation` and `CustomGradient`: a layer that holds one object (an
activation, a Function) and calls it on Keras's backend or, as its guest, on another one.

    _set_held(object, backend)    once in `__init__`; later only within `_renewing_steps`
    call(...) -> _run(...)        chooses one of the four ways to call, which subclasses write
    layer.backend = "torch"       within `_renewing_steps`: the old `HeldObject` is marked as
                                  superseded, and models whose steps were compiled with it (noted
                                  in `_traced_models` by `_run`) compile them again
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any, Self

import keras

from ..core.backend.contract import Backend
from ..core.backend.discovery import load_backend
from ..engine.functions.calls.parameters import unknown_argument
from .compiled_steps import (
    BACKEND,
    HOST,
    NOTES_MODELS,
    in_symbolic_scope,
    is_exporting,
    keeping_weights,
    note_models,
    refuse_scan,
    refuse_xla,
    renew_steps,
)
from .config import read_backend

Tensor = Any
VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@contextmanager
def naming_options(
    options: Mapping[str, Any], explain: Callable[[Mapping[str, Any]], Exception]
) -> Iterator[None]:
    """Explain options that Keras does not know by a better error than Keras's own."""
    try:
        yield
    except ValueError as error:
        unknown = {name: options[name] for name in options if repr(name) in str(error)}
        if not unknown:
            raise
        raise explain(unknown) from None


def explaining(*kinds: type) -> Callable[[Mapping[str, Any]], Exception]:
    """Return a function of unknown options that makes the error, which suggests known ones."""

    def explain(unknown: Mapping[str, Any]) -> Exception:
        inits = [signature(each.__init__).parameters for each in (*kinds, keras.layers.Layer)]
        names = [p.name for each in inits for p in each.values() if p.kind not in VARIADIC]
        known = [name for name in dict.fromkeys(names) if name != "self"]
        return unknown_argument(kinds[0].__name__, next(iter(unknown)), known)

    return explain


class HeldObject:
    """What a layer calls, and on which backend. Assigning either makes a new one.

    Attributes:
        object: an activation of the core, or a Function.
        backend: the backend that was asked for; None is Keras's own.
        guest: the framework to run in, if it is not Keras's own.
        superseded: whether a newer one replaced it, so that traces made with it are stale.
    """

    __slots__ = ("backend", "guest", "object", "superseded")

    def __init__(self, held: Any, backend: str | None) -> None:
        self.object = held
        self.backend = backend
        self.guest = None if backend in (None, BACKEND) else backend
        self.superseded = False


class HoldingLayer(keras.layers.Layer):
    """A layer that calls the object it holds; a subclass writes the methods of the next section."""

    _held: HeldObject

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.supports_masking = True
        self._traced_models: weakref.WeakSet[Any] = weakref.WeakSet()
        # jax has no generator to draw from, so the model's state holds one, as for Dropout.
        self.seed_generator = keras.random.SeedGenerator() if BACKEND == "jax" else None

    # --- what a subclass writes -------------------------------------------------------------------

    def _check_ops(self, held: Any, backend: Backend) -> None:
        """Raise UnsupportedOp if a backend is known to lack an op of an object to hold."""
        raise NotImplementedError

    def _call_symbolically(self, *args: Any, **kwargs: Any) -> Any:
        """Return outputs of the right shapes and dtypes, without a gradient."""
        raise NotImplementedError

    def _call_here(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, computed by Keras's own backend."""
        raise NotImplementedError

    def _call_elsewhere(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, computed by the guest."""
        raise NotImplementedError

    def _call_exported(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs in a file, which must run where the guest is not installed."""
        return self._call_here(*args, **kwargs)

    def _describe_held(self) -> dict[str, Any]:
        """Return the held object as data, by the names of arguments of `__init__`."""
        raise NotImplementedError

    @classmethod
    def _read_held(cls, layer: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that `_describe_held` wrote into a config; errors name the layer."""
        raise NotImplementedError

    def _set_held(self, held: Any, backend: str | None) -> None:
        self._check_ops(held, HOST if backend is None else load_backend(backend))
        self._held = HeldObject(held, backend)
        # Whether XLA may compile the layer: `jit_compile="auto"` asks.
        self.supports_jit = BACKEND != "tensorflow" or self._held.guest is None

    @contextmanager
    def _renewing_steps(self) -> Iterator[None]:
        """Renew compiled steps after the body, which calls `_set_held`; an error in either, as of
        an op that the backend lacks, restores the old object.
        """
        previous, supports_jit = self._held, self.supports_jit
        try:
            yield
            previous.superseded = True
            renew_steps(self._traced_models)
        except BaseException:
            self._held, self.supports_jit = previous, supports_jit
            previous.superseded = False
            raise

    @property
    def backend(self) -> str | None:
        """The framework that runs this layer; None is Keras's own. Assign to change it."""
        return self._held.backend

    @backend.setter
    def backend(self, backend: str | None) -> None:
        if backend != self.backend:
            with self._renewing_steps():
                self._set_held(self._held.object, backend)

    @keeping_weights
    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of a call of the layer, in the way that fits what calls it."""
        held_object = self._held
        if in_symbolic_scope():
            if held_object.guest is not None:
                refuse_xla(self)
            return self._call_symbolically(*args, **kwargs)
        if NOTES_MODELS:
            # the compiled steps of these models are renewed when the object changes
            note_models(self._traced_models, find_tensor((args, kwargs)))
        if HOST.compiler.on_depend is not None:
            HOST.compiler.on_depend(held_object)
        if held_object.guest is None:
            return self._call_here(*args, **kwargs)
        # a file must run where no other framework is installed
        if is_exporting(find_tensor((args, kwargs))):
            return self._call_exported(*args, **kwargs)
        return self._call_elsewhere(*args, **kwargs)

    def _draw_words(self, subject: str) -> Tensor:
        """Return a new key, two uint32, from the layer's generator, which only jax needs."""
        assert self.seed_generator is not None
        refuse_scan(subject)
        # Keras makes this part of the state of a compiled step
        return self.seed_generator.next().astype("uint32")

    def get_config(self) -> dict[str, Any]:
        """Return the layer as data.

        Raises:
            MultigradError: what it holds cannot be saved.
        """
        return {**super().get_config(), **self._describe_held(), "backend": self.backend}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the layer that a config describes; a backend that is not installed here is left
        out, with a warning.

        Raises:
            RuleError: a rule was saved by name, and no rule of that name is registered here.
            FormatError: the config is malformed.
        """
        arguments = cls._read_held(f"layer {config.get('name')!r}", config)
        backend = read_backend(str(config.get("name")), config.get("backend"))
        return cls(**{**config, **arguments, "backend": backend})


def list_leaves(nested: Any) -> list[Any]:
    """Return the leaves of nested arguments; compilers can read this code, unlike Keras's own."""
    if isinstance(nested, dict):
        nested = list(nested.values())
    if not isinstance(nested, tuple | list):
        return [nested]
    leaves = []
    for each in nested:
        leaves += list_leaves(each)
    return leaves


def find_tensor(nested: Any) -> Tensor:
    """Return the first tensor among nested arguments; None if there is none."""
    for leaf in list_leaves(nested):
        if keras.ops.is_tensor(leaf):
            return leaf
    return None
