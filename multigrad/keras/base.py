"""The base of layers that hold an object and call it on Keras's backend or on another one.

The object may be exchanged at any time; then the steps compiled with it are compiled again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import keras

from ..backend.contract import Backend
from ..backend.discovery import load_backend
from ..rules.model.lookup import unknown_keyword_error
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

if TYPE_CHECKING:
    from typing_extensions import Self

Tensor = Any


class Held:
    """The object that a layer calls, and its backend. Assigning either makes a new one.

    Attributes:
        guest: the framework to run in, if it is not Keras's own.
        superseded: whether a newer one replaced it, so that traces made with it are stale.
    """

    __slots__ = ("backend", "guest", "superseded", "what")

    def __init__(self, what: Any, backend: str | None) -> None:
        self.what = what
        self.backend = backend
        self.guest = None if backend in (None, BACKEND) else backend
        self.superseded = False


class HoldingLayer(keras.layers.Layer):
    """A layer that calls the object it holds, on some backend; subclasses say how."""

    _held: Held
    # Raises UnsupportedOp if a backend is known to lack an op of the object.
    _check: Callable[[Any, Backend], None]
    # Outputs of the right shapes and dtypes, without a gradient.
    _call_symbolically: Callable[..., Any]
    # The outputs on Keras's own backend, and those of another framework.
    _call_here: Callable[..., Any]
    _call_elsewhere: Callable[..., Any]
    # The object as data, by the names of arguments, and back.
    _describe: Callable[[], dict[str, Any]]
    _read: ClassVar[Callable[[str, Mapping[str, Any]], dict[str, Any]]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.supports_masking = True
        self._traced_for: weakref.WeakSet[Any] = weakref.WeakSet()
        # jax has no generator to draw from, so the model's state holds one, as for Dropout.
        self.seed_generator = keras.random.SeedGenerator() if BACKEND == "jax" else None

    # --- what it holds ----------------------------------------------------------------------------

    def _hold(self, what: Any, backend: str | None) -> None:
        self._check(what, HOST if backend is None else load_backend(backend))
        self._held = Held(what, backend)
        # Whether XLA may compile the layer: `jit_compile="auto"` asks.
        self.supports_jit = BACKEND != "tensorflow" or self._held.guest is None

    @contextmanager
    def _changing(self) -> Iterator[None]:
        # an error, as of an op that the backend lacks, restores the old object
        before, supports_jit = self._held, self.supports_jit
        try:
            yield
            before.superseded = True
            renew_steps(self._traced_for)
        except BaseException:
            self._held, self.supports_jit = before, supports_jit
            before.superseded = False
            raise

    @property
    def backend(self) -> str | None:
        """The framework that runs this layer; None is Keras's own. Assign to change it."""
        return self._held.backend

    @backend.setter
    def backend(self, backend: str | None) -> None:
        if backend != self.backend:
            with self._changing():
                self._hold(self._held.what, backend)

    def _draw_words(self, subject: str) -> Tensor:
        assert self.seed_generator is not None
        refuse_scan(subject)
        # Keras makes this part of the state of a compiled step
        return self.seed_generator.next().astype("uint32")

    # --- calls ------------------------------------------------------------------------------------

    @keeping_weights
    def _run(self, *args: Any, **kwargs: Any) -> Any:
        held = self._held
        if in_symbolic_scope():
            if held.guest is not None:
                refuse_xla(self)
            return self._call_symbolically(*args, **kwargs)
        if NOTES_MODELS:
            # the compiled steps of these models are renewed when the object changes
            note_models(self._traced_for, find_tensor((args, kwargs)))
        if HOST.compiler.on_depend is not None:
            HOST.compiler.on_depend(held)
        if held.guest is None:
            return self._call_here(*args, **kwargs)
        # a file must run where no other framework is installed
        if is_exporting(find_tensor((args, kwargs))):
            return self._call_exported(*args, **kwargs)
        return self._call_elsewhere(*args, **kwargs)

    def _call_exported(self, *args: Any, **kwargs: Any) -> Any:
        return self._call_here(*args, **kwargs)

    # --- saving -----------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Return the layer as data.

        Raises:
            MultigradError: what it holds cannot be saved.
        """
        return {**super().get_config(), **self._describe(), "backend": self.backend}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the layer that a config describes; a backend that is not installed here is left
        out, with a warning.

        Raises:
            RuleError: a rule was saved by name, and no rule of that name is registered here.
            FormatError: the config is malformed.
        """
        own = cls._read(f"layer {config.get('name')!r}", config)
        backend = read_backend(str(config.get("name")), config.get("backend"))
        return cls(**{**config, **own, "backend": backend})


@contextmanager
def naming_params(kind: type, rule: Any, options: Mapping[str, Any]) -> Iterator[None]:
    """Raise a better error if an unknown Keras option is a param of the rule."""
    try:
        yield
    except ValueError as error:
        unknown = {name: options[name] for name in options if repr(name) in str(error)}
        if not unknown:
            raise
        raise unknown_keyword_error(kind, kind.__name__, rule, unknown) from None


def list_leaves(given: Any) -> list[Any]:
    """Return the leaves of nested arguments; compilers can read this code, unlike Keras's own."""
    if isinstance(given, dict):
        given = list(given.values())
    if not isinstance(given, tuple | list):
        return [given]
    leaves = []
    for each in given:
        leaves += list_leaves(each)
    return leaves


def find_tensor(given: Any) -> Tensor:
    """Return the first tensor among arguments."""
    for leaf in list_leaves(given):
        if keras.ops.is_tensor(leaf):
            return leaf
    return None
