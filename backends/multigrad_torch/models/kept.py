"""What the layers of a model keep for backward, as autograd's hooks of saved tensors tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from ..attach import bridge

Tensor: TypeAlias = torch.Tensor
Row: TypeAlias = dict[str, Any]
WHOLE = "(model)"  # what ops outside of layers are counted for


def kept_by_layers(
    model: nn.Module, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> list[Row]:
    """Run a model forward on zeros, and return what is saved: by layer, what it is, shape, dtype,
    bytes. A memory is told once, at the layer that keeps it first; weights and buffers are not.
    """
    first = next(model.parameters(), None)
    device = None if first is None else first.device
    learns = any(each.requires_grad for each in model.parameters())
    inputs = [
        torch.zeros(shape, dtype=bridge.dtype(name), device=device)
        for shape, name in zip(shapes, dtypes, strict=True)
    ]
    for each in inputs:
        each.requires_grad_(each.is_floating_point() and not learns)
    saved: list[tuple[str, Tensor]] = []
    running: list[str] = [WHOLE]
    given: list[tuple[str, Tensor]] = [(WHOLE, each) for each in inputs]
    made: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append((running[-1], tensor))
        return tensor

    def enter(name: str, values: Any) -> None:
        running.append(name)
        given.extend((name, each) for each in _tensors(values))

    def leave(outputs: Any) -> None:
        running.pop()
        made.extend(_tensors(outputs))

    with ExitStack() as stack:
        stack.enter_context(_as_before(model))
        for name, module in model.named_modules():
            label = name or WHOLE

            def before(_: Any, values: Any, label: str = label) -> None:
                enter(label, values)

            def after(_: Any, values: Any, outputs: Any) -> None:
                leave(outputs)

            for handle in (
                module.register_forward_pre_hook(before),
                module.register_forward_hook(after, always_call=True),
            ):
                stack.callback(handle.remove)
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, _same))
        outputs = model(*inputs)
    rows = _rows(model, saved, given, made)
    del outputs  # until here no memory was given back, and taken by another tensor
    return rows


def _rows(
    model: nn.Module,
    saved: Sequence[tuple[str, Tensor]],
    given: Sequence[tuple[str, Tensor]],
    made: Sequence[Tensor],
) -> list[Row]:
    own = {_place(each) for each in (*model.parameters(), *model.buffers())}
    inputs = {(layer, _place(each)) for layer, each in given}
    outputs = {*map(_place, made)}
    found: dict[Any, Row] = {}
    for layer, tensor in saved:
        place = _place(tensor)
        if place in own or place in found or tensor.numel() == 0:
            continue
        dtype = str(tensor.dtype).removeprefix("torch.")
        if (layer, place) in inputs:
            what = "input"
        elif place in outputs:
            what = "output"
        else:
            what = "mask" if dtype in ("bool", "uint8") else "intermediate"
        count = sum(row["layer"] == layer for row in found.values())
        name = f"saved_{count}" if count else "saved"
        found[place] = {
            "layer": layer,
            "name": name,
            "what": what,
            "shape": tuple(tensor.shape),
            "dtype": dtype,
            "bytes": tensor.nbytes,
        }
    return list(found.values())


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _place(tensor: Tensor) -> Any:
    """Return where the memory of a tensor begins: one for all views of it."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):  # of subclasses without a storage
        return id(tensor)


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from _tensors(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)


@contextmanager
def _as_before(model: nn.Module) -> Iterator[None]:
    """Set the buffers of a model, such as running means, and the generators back."""
    buffers = {name: each.detach().clone() for name, each in model.named_buffers()}
    devices = {each.device.index for each in model.parameters() if each.is_cuda}
    with torch.random.fork_rng([index for index in devices if index is not None]):
        try:
            yield
        finally:
            with torch.no_grad():
                for name, each in model.named_buffers():
                    each.copy_(buffers[name])
