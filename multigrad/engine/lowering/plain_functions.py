"""A pair of graphs as plain functions of one framework, without its autodiff.

They run for another framework. The parts are those of every function (forward, what it keeps,
backward) without the native object around them; and backward from the inputs alone, for hosts that
keep nothing of a guest. And a graph that runs once, on NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.backend.contract import Backend
from ...core.backend.discovery import load_backend
from ...core.backend.emitted import Emitted
from ...core.ir.graph import Graph
from ...core.lowering.emit import Emission, emit_body
from ...core.lowering.lower import compile_body
from .calls import drop_calls

Tensor = Any
Pull = Callable[..., tuple[Tensor, ...]]


def without_autodiff(backend: Backend) -> Backend:
    """Return a backend that lowers to a `PlainFunctions` object."""

    def finish_plain(namespace: dict[str, Any], emitted: Emitted) -> PlainFunctions:
        return PlainFunctions(namespace, emitted, backend.interop.outside)

    autodiff = replace(
        backend.autodiff,
        render=render,
        finish=finish_plain,
        call=call,
        keeps_float_derivatives=True,  # nobody differentiates straight code
        only_fast=True,
        forbid_derivative=None,
        refuse_gradient=None,
    )
    # Plain functions have no place for prepared numbers.
    fast = replace(backend.kernels.fast, constants={})
    return backend.with_groups(kernels=replace(backend.kernels, fast=fast), autodiff=autodiff)


class PlainFunctions:
    """Forward and backward as plain functions of tensors, then run-time params, then a key.

    Attributes:
        keep: `*inputs, *params, [key] -> (outputs, the residuals that are computed)`.
        backward: `*cotangents, *residuals, *params, [key] -> gradients`.
        is_random: whether they take a key.
        keeps_outputs: whether the map that `record` returns holds outputs.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        emitted: Emitted,
        outside: Callable[[Callable[..., Any]], Callable[..., Any]] | None,
    ) -> None:
        names = ("forward", "keep", "backward", "function")
        functions = [namespace[name] for name in names]
        if outside is not None:
            functions = [outside(function) for function in functions]
        self._forward, self.keep, self.backward, self._gradients = functions
        self.emitted = emitted
        self.is_random = "key" in emitted.names.params
        self.keeps_outputs = any(name in emitted.names.outputs for name in emitted.residuals.names)
        self._count = len(emitted.names.inputs)
        self._read = tuple(emitted.names.params.index(name) for name in emitted.forward_params)
        places = [*emitted.names.inputs, *emitted.names.outputs, *emitted.residuals.computed]
        self._residuals = tuple(places.index(name) for name in emitted.residuals.names)
        # For each input the position of its gradient, None if it has none.
        self._places = tuple(
            emitted.names.wrt.index(n) if n in emitted.names.wrt else None
            for n in emitted.names.inputs
        )

    def run(self, *args: Any) -> tuple[Tensor, ...]:
        inputs, values = args[: self._count], args[self._count :]
        return self._forward(*inputs, *[values[i] for i in self._read])

    def record(self, *args: Any) -> tuple[tuple[Tensor, ...], Pull]:
        """Return the outputs, and the map from their cotangents to a gradient or None by tensor."""
        outputs, computed = self.keep(*args)
        tensors = (*args[: self._count], *outputs, *computed)
        residuals = [tensors[i] for i in self._residuals]
        values = args[self._count :]
        # Only the residuals stay alive until `pull` is called.
        del tensors, computed, args

        def pull(*cotangents: Tensor) -> tuple[Tensor, ...]:
            return self._arrange(self.backward(*cotangents, *residuals, *values))

        return outputs, pull

    def gradients(self, args: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Tensor, ...]:
        """Return a gradient, or None, for each tensor, from what forward was called with."""
        return self._arrange(self._gradients(*cotangents, *args))

    def _arrange(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(None if i is None else gradients[i] for i in self._places)


def call(native: PlainFunctions, emitted: Emitted) -> Callable[..., Any]:
    return native.run


def render(emitted: Emitted) -> str:
    """Return the source of the four functions; each returns a tuple."""
    # A rule under the identity, for example:
    #
    #     def forward(tin):
    #         return (tin,)
    #
    #     def keep(tin, width):                     # outputs, and the residuals that it computes
    #         (output,) = forward(tin)
    #         return (output,), (abs(tin) < width,)
    #
    #     def backward(grad_out, kept, width):
    #         return (grad_out * kept,)
    #
    #     def function(grad_out, tin, width):       # backward from the inputs alone
    #         (kept,) = (abs(tin) < width,)
    #         return backward(grad_out, kept, width)
    f, k, b = emitted.fast.forward, emitted.fast.keep, emitted.fast.backward
    inputs, cotangents = ", ".join(emitted.names.inputs), ", ".join(emitted.names.cotangents)
    outputs = _tuple(emitted.names.outputs)
    params = "".join(f", {name}" for name in emitted.forward_params)
    residuals = "".join(f", {name}" for name in emitted.residuals.names)
    results = list(b.results)
    if emitted.checks.shape:
        results[0] = f"{emitted.checks.shape}({results[0]}, {emitted.names.cotangents[0]})"
    run = f"    {outputs} = forward({inputs}{params})\n"
    needed = k.reads.union(emitted.residuals.names).intersection(emitted.names.outputs)
    computed = (
        f"    {_tuple(emitted.residuals.computed)} = {_tuple(k.results)}\n" if k.results else ""
    )
    recomputed = f"{run if needed else ''}{k.indented(4)}{computed}"
    return f"""\
def forward({inputs}{params}):
{f.indented(4)}    return {_tuple(f.results)}


def keep({inputs}{emitted.arguments}):
{run}{k.indented(4)}    return {outputs}, {_tuple(k.results)}


def backward({cotangents}{residuals}{emitted.arguments}):
{b.indented(4)}    return {_tuple(results)}


def function({cotangents}, {inputs}{emitted.arguments}):
{recomputed}    return backward({cotangents}{residuals}{emitted.arguments})
"""


def _tuple(words: Sequence[str]) -> str:
    return f"({', '.join(words)},)" if words else "()"


def run_reference(graph: Graph, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the outputs of a graph on NumPy, in the dtypes of its arrays.

    `inputs` are arrays, numbers and the key by the names of the graph's inputs.
    """
    emission = Emission(load_backend("numpy"), graph.name)
    # The name of the function that is compiled below.
    emission.taken.add("reference")
    body = emit_body(drop_calls(graph), emission)
    results = "".join(f"{each}, " for each in body.results)
    function, _ = compile_body("reference", body, f"({results})", emission)
    with np.errstate(all="ignore"):
        return function(*[inputs[name] for name in body.parameters]) if body.results else ()
