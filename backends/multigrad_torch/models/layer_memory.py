"""The tensors that a model's layers keep for backward, read by hooks for saved tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from multigrad.models.layer_memory import MASKS, WHOLE, Residual, new_residual

from ..attach.kept_tensors import Sizes, memory_of
from ..core.attach import host
from ..core.state import as_it_is

Tensor: TypeAlias = torch.Tensor


class Record:
    """The tensors that are saved while layers run, and the layers that saved them.

    Hooks call `pack`, `enter` and `leave` while `rows` runs the model.

    Attributes:
        saved: each tensor with the layer that kept it.
        given: the inputs of layers, with the layers' names.
        made: the outputs of layers.
        running: the names of the layers that run now, innermost last.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.saved: list[tuple[str, Tensor]] = []
        self.given: list[tuple[str, Tensor]] = [(WHOLE, each) for each in inputs]
        self.made: list[Tensor] = []
        self.running: list[str] = [WHOLE]

    def pack(self, tensor: Tensor) -> Tensor:
        self.saved.append((self.running[-1], tensor))
        return tensor

    def enter(self, name: str, values: Any) -> None:
        self.running.append(name)
        self.given.extend((name, each) for each in _tensors_in(values))

    def leave(self, outputs: Any) -> None:
        self.running.pop()
        self.made.extend(_tensors_in(outputs))

    def rows(self, run: Callable[[], Any], own: Iterable[Tensor]) -> list[Residual]:
        """Run forward, and return the saved tensors whose memory is not that of weights."""
        with (
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(self.pack, as_it_is),
        ):
            outputs = run()
        rows = self._describe({memory_of(each) for each in own})
        # Until here all memory is held, so that no address is used twice.
        del outputs
        return rows

    def _describe(self, weight_memories: set[Any]) -> list[Residual]:
        """Return the saved tensors that lie in other memory than weights, each memory once."""
        inputs = {(layer, memory_of(each)) for layer, each in self.given}
        outputs = {*map(memory_of, self.made)}
        rows: list[Residual] = []
        sizes = Sizes()
        for layer, tensor in self.saved:
            memory, size = memory_of(tensor), sizes.count(tensor)
            if memory in weight_memories or not size:
                continue
            dtype = str(tensor.dtype).removeprefix("torch.")
            if (layer, memory) in inputs:
                role = "input"
            elif memory in outputs:
                role = "output"
            else:
                role = "mask" if dtype in MASKS else "intermediate"
            rows.append(new_residual(rows, layer, role, shape=tensor.shape, dtype=dtype, size=size))
        return rows


def kept_by_layers(
    model: nn.Module, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> list[Residual]:
    """Run a model forward on zeros, and return the saved tensors: layer, role, shape, dtype and
    bytes.

    Memory is counted once, for the layer that keeps it first; weights and buffers are not counted.
    """
    weights = [*model.parameters(), *model.buffers()]
    inputs = _make_inputs(list(model.parameters()), shapes, dtypes)
    record = Record(inputs)
    with ExitStack() as stack:
        stack.enter_context(_restored(model))
        for name, module in model.named_modules():
            label = name or WHOLE

            def before(_: Any, values: Any, label: str = label) -> None:
                record.enter(label, values)

            def after(_: Any, values: Any, outputs: Any) -> None:
                record.leave(outputs)

            for handle in (
                module.register_forward_pre_hook(before),
                module.register_forward_hook(after, always_call=True),
            ):
                stack.callback(handle.remove)
        return record.rows(lambda: model(*inputs), weights)


def kept_by_call(
    call: Callable[..., Any],
    weights: Sequence[Tensor],
    others: Sequence[Tensor],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
) -> list[Residual]:
    """Return the same for a call of a Keras model; see `multigrad.keras.layer_kinds`."""
    inputs = _make_inputs(weights, shapes, dtypes)
    record = Record(inputs)

    def within(name: str, run: Any, args: Any, kwargs: Any) -> Any:
        record.enter(name, (args, kwargs))
        outputs = None
        try:
            outputs = run(*args, **kwargs)
        finally:
            record.leave(outputs)
        return outputs

    return record.rows(lambda: call(weights, others, inputs, within), [*weights, *others])


def _make_inputs(
    weights: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> list[Tensor]:
    device = weights[0].device if weights else None
    # Autograd saves nothing unless a gradient is asked for: of a weight, or else of the inputs.
    has_trainable = any(each.requires_grad for each in weights)
    inputs = [
        torch.zeros(shape, dtype=host.dtype(name), device=device)
        for shape, name in zip(shapes, dtypes, strict=True)
    ]
    for each in inputs:
        each.requires_grad_(each.is_floating_point() and not has_trainable)
    return inputs


def _tensors_in(values: Any) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(values) if isinstance(each, Tensor)]


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    # The run may change buffers, such as running means, and draw: both are restored.
    buffers = {name: each.detach().clone() for name, each in model.named_buffers()}
    devices = {each.device.index for each in model.parameters() if each.is_cuda}
    with torch.random.fork_rng([index for index in devices if index is not None]):
        try:
            yield
        finally:
            with torch.no_grad():
                for name, each in model.named_buffers():
                    each.copy_(buffers[name])
