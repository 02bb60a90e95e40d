"""The rules in force: one immutable frame in a ContextVar, which `use` sets and forward reads.

It stands below the registry and the rules, because what a capture reads of it is part of what it is remembered by.
"""

from __future__ import annotations

import contextvars
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .family import Spec


@dataclass(frozen=True, slots=True, eq=False)
class Application:
    """A rule in force: the spec, and where its random draws come from."""

    spec: Spec
    key: Any = None  # two uint32, or a backend's own key object
    counter: Any = None  # a Counter, where there is a key


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The rules now in force, by scope.

    Attributes:
        token: equal for equal meaning.
        hooks_params: whether a `use` named the scope "params", so that hooks on parameters attach by themselves.
        names_params: whether the rule for parameters is that of such a `use`.
    """

    activations: Application | None = None
    params: Application | None = None
    token: str = ""
    hooks_params: bool = False
    names_params: bool = False

    def word(self, scope: str) -> str:
        """Return what the token says about one scope, "activations" or "params"."""
        if self.activations is None is self.params:
            return self.token
        application = self.params if scope == "params" else self.activations
        return "" if application is None else application.spec.token + key_token(application)


EMPTY = Frame()
CURRENT: contextvars.ContextVar[Frame] = contextvars.ContextVar("multigrad_frame", default=EMPTY)


def key_token(application: Application | None) -> str:
    """Return text that is equal for equal keys."""
    if application is None or application.key is None:
        return ""
    key = application.key
    if isinstance(key, tuple) and all(isinstance(word, int) for word in key):
        return f"@{key[0]:x}.{key[1]:x}"
    # Not the address of the application: the next one may lie there, and jax keeps what it traced.
    return f"@traced {getattr(application.counter, 'serial', id(application))}"
