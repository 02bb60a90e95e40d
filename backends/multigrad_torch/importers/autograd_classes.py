"""What a `torch.autograd.Function` class defines: its functions, its signature, its mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.autograd.function import once_differentiable

from multigrad.capture.user_code.inspection import nested_codes
from multigrad.functions.calls.parameters import signature_of
from multigrad.graph.support.class_bases import dataclass
from multigrad.trace.assertions import AUTOCAST
from multigrad.trace.trace import Trace

BASE = torch.autograd.Function
FunctionClass: TypeAlias = type[torch.autograd.Function]


@dataclass(frozen=True, slots=True, eq=False)
class ClassCode:
    """A class, and what is known of its code.

    Attributes:
        signature: of `apply`; None: it is not known.
        copies: whether it may write into its arguments, which are copies.
    """

    function_class: FunctionClass
    signature: inspect.Signature | None
    copies: bool

    @property
    def name(self) -> str:
        return self.function_class.__name__

    @property
    def has_setup(self) -> bool:
        return has_setup(self.function_class)

    @property
    def gives_tangents(self) -> bool:
        return self.function_class.jvp is not BASE.jvp

    @property
    def backward(self) -> Callable[..., Any]:
        # torch knows it by two names.
        cls = self.function_class
        return cls.vjp if cls.backward is BASE.backward else cls.backward

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The author's functions, the forward first."""
        cls = self.function_class
        setup = (cls.setup_context,) if self.has_setup else ()
        return (cls.forward, *setup, unwrap_once(self.backward)[0])

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original, which takes no keywords."""
        return self.function_class.apply(*self.bind(args, kwargs))

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return a call's arguments by position; with `setup_context` torch adds defaults, too."""
        # The common case first: each call of a class that runs unchanged comes here.
        if not (kwargs or self.has_setup):
            return args
        signature = self.signature
        if signature is None:
            return args
        bound = signature.bind(*args, **kwargs)
        if self.has_setup:
            bound.apply_defaults()
        if bound.kwargs:
            raise TypeError(
                f"{self.name}: forward's arguments {sorted(bound.kwargs)} are keyword-only"
            )
        return bound.args


def has_setup(cls: FunctionClass) -> bool:
    """Return whether forward gets no ctx, because `setup_context` does."""
    return cls.setup_context is not BASE.setup_context


def signature_of_apply(cls: FunctionClass) -> inspect.Signature | None:
    """Return the signature of forward without ctx; None if it is not known."""
    signature = signature_of(cls.forward)
    if signature is None or has_setup(cls):
        return signature
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def find_problem(cls: FunctionClass) -> str:
    """Return what is wrong with the definition of a class, "" if nothing is."""
    if cls.forward is BASE.forward:
        return "has no forward; define it as a static method"
    has_backward, has_vjp = cls.backward is not BASE.backward, cls.vjp is not BASE.vjp
    if not (has_backward or has_vjp):
        return "has no backward; define it as a static method"
    return "has both a backward and a vjp; keep one of them" if has_backward and has_vjp else ""


# --- torch's wrappers of forward and backward -----------------------------------------------------
# Wrappers of torch are recognized by their code objects, as they leave no other mark.
ONCE = frozenset(nested_codes(once_differentiable.__code__))
AMP_BACKWARD = frozenset(nested_codes(torch.amp.custom_bwd.__code__))
AMP = AMP_BACKWARD.union(nested_codes(torch.amp.custom_fwd.__code__))


def unwrap_once(backward: Any) -> tuple[Any, bool]:
    """Return a backward without `once_differentiable`, and whether it had that."""
    if getattr(backward, "__code__", None) in ONCE:
        return backward.__wrapped__, True
    return backward, False


def unwrap_amp(function: Any, trace: Trace | None) -> Any:
    """Return a forward or backward without `custom_fwd` or `custom_bwd`, in a capture."""
    is_plain = inspect.isfunction(function) and function.__code__ in AMP
    if trace is None or not is_plain:
        return function
    # Without autocast these do nothing; under it backward uses the autocast of forward.
    casts = inspect.getclosurevars(function).nonlocals.get("cast_inputs")
    if casts or function.__code__ in AMP_BACKWARD:
        trace.omit(AUTOCAST)
    return function.__wrapped__
