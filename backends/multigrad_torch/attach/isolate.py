"""Isolated runs for a proof: whatever mode, transform or hook is around them has no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from multigrad.capture.meanings import composites
from multigrad.graph.random import REPLAYED

from ..compile.checkpoint_regions import as_it_is, top_hooks
from ..dialect.table import ALIASES
from ..state import KINDS, is_memory, without_autocast, without_modes


def keep(x: torch.Tensor, whole: bool) -> Callable[[], str] | None:
    """Return a function that restores a tensor to its present state and describes any change, "" if
    there is none. None for a tensor of another kind, or without memory of its own.

    Args:
        whole: whether to copy the values; otherwise a write is only detected, not undone.
    """
    if type(x) not in KINDS or not is_memory(x) or x.is_meta:
        return None
    # `.data` shares the memory but not the version counter, so restoring is not counted as a write.
    with _plainly(x):
        memory, values = x.data, x.data.clone() if whole else None
    version = None if x.is_inference() else x._version
    asks, attributes = x.requires_grad, dict(vars(x))
    grad = x.grad if x.is_leaf else None
    gradient = None if grad is None else keep(grad, whole)

    def put_back() -> str:
        found = "" if gradient is None else gradient()
        with _plainly(x):
            if x.data_ptr() != memory.data_ptr() or x.shape != memory.shape:
                found = "gives other memory to a tensor"
                x.data = memory
            # NaN is unequal to itself, so unchanged NaN would look like a write.
            both_nan = None if values is None else memory.isnan() & values.isnan()
            if values is not None and not ((memory == values) | both_nan).all():
                found = "writes into a tensor"
                memory.copy_(values)
        if values is None and version not in (None, x._version):
            found = "writes into a tensor of too many elements to be put back,"
        is_as_before = vars(x).keys() == attributes.keys()
        if not (is_as_before and all(vars(x)[name] is attributes[name] for name in attributes)):
            found = "sets an attribute of a tensor"
            vars(x).clear()
            vars(x).update(attributes)
        if x.requires_grad != asks and x.is_leaf:
            found = "changes requires_grad of a tensor"
            x.requires_grad_(asks)
        if x.is_leaf and x.grad is not grad:
            found = "sets the grad of a tensor"
            x.grad = grad
        return found and f"{found} from outside of it"

    return put_back


@contextmanager
def _plainly(x: torch.Tensor) -> Iterator[None]:
    with without_modes(), torch.inference_mode(x.is_inference()), torch.no_grad():
        yield


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return the result of a function that runs eagerly under torch's defaults; restore torch."""
    # The run may draw, and must not shift the program's own draws.
    state = torch.get_rng_state()
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    with ExitStack() as stack:
        for clear in (without_modes, without_autocast, without_saved_tensor_hooks):
            stack.enter_context(clear())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if is_random:
            stack.enter_context(Replaying())
        try:
            return run()
        finally:
            torch.set_rng_state(state)
            torch.set_grad_enabled(grad)
            torch.set_default_dtype(dtype)


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Save tensors without hooks: checkpointed regions count what their hooks are given."""
    if top_hooks(True) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(as_it_is, as_it_is):
        yield


class Replaying(TorchFunctionMode):
    """Makes torch's own draws use the keys that a graph's draws use."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        draw = DRAWS.get(func)
        if draw is None or REPLAYED.get() is None:
            return func(*args, **kwargs)
        return draw(*args, **kwargs)


def _in_place(draw: Callable[..., Any]) -> Callable[..., Any]:
    def update(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x.copy_(draw(x, *args, **kwargs))

    return update


def _of_shape(draw: Callable[..., Any]) -> Callable[..., Any]:
    def create(*size: Any, dtype: Any = None, **options: Any) -> torch.Tensor:
        return draw(torch.empty(*size, dtype=dtype))

    return create


def _like(draw: Callable[..., Any]) -> Callable[..., Any]:
    def create(input: torch.Tensor, *, dtype: Any = None, **options: Any) -> torch.Tensor:
        return draw(torch.empty_like(input, dtype=dtype))

    return create


_T = torch.Tensor
DRAWS: dict[Any, Callable[..., Any]] = {
    **{f: _like(ALIASES[f]) for f in (torch.rand_like, torch.randn_like)},
    torch.bernoulli: ALIASES[torch.bernoulli],
    torch.nn.functional.dropout: ALIASES[torch.nn.functional.dropout],
    torch.rand: _of_shape(ALIASES[torch.rand_like]),
    torch.randn: _of_shape(ALIASES[torch.randn_like]),
    _T.bernoulli: composites.bernoulli,
    _T.bernoulli_: _in_place(composites.bernoulli_anew),
    _T.uniform_: _in_place(composites.uniform),
    _T.normal_: _in_place(composites.normal),
}
