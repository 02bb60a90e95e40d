"""A function that a host calls in a guest framework, and what it returns before it has run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...core.backend.contract import Backend
from ...core.ir.op import FLOATS, dtype_name
from ...core.support.trees import Tensor, optree
from ...errors import GradientError, MultigradError, UnsupportedOp
from ..backend.guest import Guest, Kind, Pull, Shape, SharedBuffer, make_zeros
from ..functions.calls.arguments import replace_at
from ..trace.random_keys import read_key

WIDE = ("float64", "int64", "uint64")
MOST_TRIES = 64  # each runs the code
# Stand for a length that is not known yet: what depends on it differs. Both can be halved, or cut
# in three.
FILLS = (12, 24)


def lend(backend: Backend, x: Tensor) -> SharedBuffer:
    if backend.interop.lend is not None:
        return backend.interop.lend(x)
    array = partial(backend.tensors.to_numpy, x)
    return SharedBuffer(dtype_name(x.dtype), tuple(x.shape), array)


def borrow(backend: Backend, lent: SharedBuffer, own: bool = False) -> Tensor:
    """Return a backend's tensor of what was lent.

    Args:
        own: whether the tensor's memory must be its own, so that either side may write to what it
            has.
    """
    if backend.interop.borrow is not None:
        return backend.interop.borrow(lent, own)
    return backend.tensors.from_numpy(np.array(lent.array()) if own else lent.array())


@dataclass(frozen=True, slots=True, eq=False)
class OutputTree:
    """What a call returned, as it was nested, without the tensors.

    Attributes:
        nesting: a structure of optree.
        positions: which leaves are tensors; a bridge carries these alone, in this order.
        leaves: all the leaves, None in place of a tensor.
    """

    nesting: Any
    positions: Sequence[int]
    leaves: Sequence[Any]

    def fill(self, tensors: Sequence[Tensor]) -> Any:
        leaves = replace_at(self.leaves, self.positions, tensors)
        return optree.tree_unflatten(self.nesting, leaves)


@dataclass(slots=True, eq=False)
class LatestOutputs:
    """The tree of the latest call in the guest, which the host fills once it has the tensors."""

    tree: OutputTree | None = None


# The kinds of the inputs of a trial -> those of its outputs, and their tree.
Trials: TypeAlias = dict[tuple[Kind, ...], tuple[list[Kind], OutputTree | None]]


@dataclass(frozen=True, slots=True, eq=False)
class GuestFunction:
    """Code that a host calls in a guest, with the attributes of the protocol `Guest`, and others.

    Attributes:
        name: what to call it in messages.
        guest: where it runs.
        forward: the guest's `*inputs -> a tuple of outputs`.
        keep: the guest's `*inputs -> (outputs, pull)`, where `pull(*cotangents)` gives a gradient
            or None for each input.
        backward: the guest's `(inputs, cotangents) -> the same gradients`, from the inputs alone.
        undifferentiable: the positions of outputs that carry no gradient.
        key: the position of the input that is a random key.
        owns: whether the code is the user's: it may write to its inputs, and may hold on to its
            outputs, so that each side gets memory of its own.
        latest: what `forward` and `keep` note about the outputs, if these are nested.
        trials: what `infer` knows already; shared by all that have the same outputs.
    """

    name: str
    guest: Backend
    forward: Callable[..., tuple[Tensor, ...]]
    keep: Callable[..., tuple[tuple[Tensor, ...], Callable[..., tuple[Tensor | None, ...]]]]
    backward: Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Tensor | None, ...]]
    wrt: tuple[int, ...]
    like: tuple[int, ...] | None = None
    undifferentiable: tuple[int, ...] = ()
    key: int | None = None
    owns: bool = False
    keeps_outputs: bool = False
    is_batched: bool = False
    latest: LatestOutputs = field(default_factory=LatestOutputs)
    trials: Trials = field(default_factory=dict)

    def run(self, inputs: Sequence[SharedBuffer]) -> list[SharedBuffer]:
        with ExitStack() as stack:
            self._enter(stack, inputs)
            outputs = self._attempt(self.forward, *self._borrow(inputs))
            return [lend(self.guest, y) for y in outputs]

    def record(self, inputs: Sequence[SharedBuffer]) -> tuple[list[SharedBuffer], Pull]:
        with ExitStack() as stack:
            self._enter(stack, inputs)
            outputs, pull = self._attempt(self.keep, *self._borrow(inputs))
            buffers = [lend(self.guest, y) for y in outputs]
        kinds = [SharedBuffer(x.dtype, x.shape, _nothing) for x in inputs]  # the memory may go

        def pull_back(cotangents: Sequence[SharedBuffer | None]) -> list[SharedBuffer | None]:
            with ExitStack() as stack:
                self._enter(stack, kinds)
                gradients = self._attempt(pull, *self._borrow_cotangents(cotangents))
                return self._lend_gradients(gradients, kinds)

        return buffers, pull_back

    def gradients(
        self, inputs: Sequence[SharedBuffer], cotangents: Sequence[SharedBuffer | None]
    ) -> list[SharedBuffer | None]:
        with ExitStack() as stack:
            self._enter(stack, inputs)
            tensors = self._borrow(inputs)
            gradients = self._attempt(self.backward, tensors, self._borrow_cotangents(cotangents))
            return self._lend_gradients(gradients, inputs)

    def carries(self, position: int, dtype: str) -> bool:
        return dtype in FLOATS and position not in self.undifferentiable

    def infer(self, inputs: Sequence[Kind]) -> list[Kind]:
        """Return the outputs' shapes and dtypes for inputs that are not there yet."""
        if self.like is not None:
            return [inputs[i] for i in self.like]
        key = tuple(inputs)
        if key not in self.trials:
            shapes = [shape for shape, _ in inputs]
            kinds = infer_kinds(shapes, partial(self._try, inputs))
            self.trials[key] = kinds, self.latest.tree
        # The tree, too: nothing runs where the trial is known, and the host fills the tree.
        kinds, self.latest.tree = self.trials[key]
        return kinds

    def refusal(self, what: str = "has no second derivative") -> GradientError:
        return GradientError(
            f"{self.name}, which runs in {self.guest.name}, {what} in another framework: a bridge "
            "carries one gradient back. Run it in the framework of its tensors (backend=None)"
        )

    def unsupported(self, where: str, advice: str) -> UnsupportedOp:
        return UnsupportedOp(
            f"{self.name} runs in {self.guest.name}, which {where} cannot call: {advice}"
        )

    def _enter(self, stack: ExitStack, inputs: Sequence[SharedBuffer]) -> None:
        # jax, say, needs a mode for 64 bits. The words of a key are no numbers, and do not count.
        if self.guest.tensors.precision is not None:
            numbers = [x for i, x in enumerate(inputs) if i != self.key]
            wide_dtype = next((x.dtype for x in numbers if x.dtype in WIDE), None)
            if wide_dtype is not None:
                stack.enter_context(self.guest.tensors.precision(wide_dtype))

    def _borrow(self, inputs: Sequence[SharedBuffer]) -> list[Tensor]:
        return [
            read_key(self.guest, self.guest.tensors.from_numpy(x.array().astype(np.uint32)))
            if i == self.key
            else borrow(self.guest, x, self.owns)
            for i, x in enumerate(inputs)
        ]

    def _borrow_cotangents(self, cotangents: Sequence[SharedBuffer | None]) -> list[Tensor | None]:
        return [None if c is None else borrow(self.guest, c, self.owns) for c in cotangents]

    def _lend_gradients(
        self, gradients: Sequence[Tensor | None], inputs: Sequence[SharedBuffer]
    ) -> list[SharedBuffer | None]:
        buffers: list[SharedBuffer | None] = [None] * len(inputs)
        for i in self.wrt:
            own_gradient = gradients[i]
            if own_gradient is None:
                continue
            x, gradient = inputs[i], lend(self.guest, own_gradient)
            if (gradient.shape, gradient.dtype) != (x.shape, x.dtype):
                raise GradientError(
                    f"{self.name} returned a {gradient.dtype} gradient of shape {gradient.shape} "
                    f"for input {i}, which is {x.dtype} of shape {x.shape}; expected the same"
                )
            buffers[i] = gradient
        return buffers

    def _attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except MultigradError:
            raise
        except Exception as error:
            kind = type(error).__name__
            raise MultigradError(
                f"{self.name} failed in {self.guest.name}: {kind}: {error}"
            ) from error

    def _try(self, inputs: Sequence[Kind], shapes: Sequence[Sequence[int]]) -> list[Kind]:
        pairs = zip(shapes, inputs, strict=True)
        zeros = [make_zeros(tuple(shape), dtype) for shape, (_, dtype) in pairs]
        return [(y.shape, y.dtype) for y in self.run(zeros)]


def infer_kinds(
    shapes: Sequence[Shape], attempt: Callable[[Sequence[Sequence[int]]], list[Kind]]
) -> list[Kind]:
    """Return the outputs' kinds by trying; an unknown length is tried as two different ones."""
    if not any(n is None for shape in shapes for n in shape):
        return attempt(fill(shapes, iter(())))
    try:
        attempts = [attempt(fill(shapes, itertools.repeat(n))) for n in FILLS]
    except MultigradError as error:
        # A length must be that of another input; then the number of axes is all that is sure.
        kinds = _search(shapes, attempt, error)
        return [((None,) * len(shape), dtype) for shape, dtype in kinds]
    # A short length, too, if it is taken: `x[:5]` has the same length for both others.
    with suppress(MultigradError):
        short_kinds = attempt(fill(shapes, itertools.repeat(1)))
        if [len(shape) for shape, _ in short_kinds] == [len(shape) for shape, _ in attempts[0]]:
            attempts.append(short_kinds)
    return [_agree(kinds) for kinds in zip(*attempts, strict=True)]


def _search(
    shapes: Sequence[Shape],
    attempt: Callable[[Sequence[Sequence[int]]], list[Kind]],
    error: MultigradError,
) -> list[Kind]:
    known_lengths = list(dict.fromkeys(n for shape in shapes for n in shape if n is not None))
    unknown_count = sum(n is None for shape in shapes for n in shape)
    choices = itertools.product((*known_lengths, 1), repeat=unknown_count)
    for lengths in itertools.islice(choices, MOST_TRIES):
        with suppress(MultigradError):
            return attempt(fill(shapes, iter(lengths)))
    raise error


def _nothing() -> Any:
    raise AssertionError("its shape and dtype alone were kept")


def fill(shapes: Sequence[Shape], lengths: Iterator[int]) -> list[list[int]]:
    return [[next(lengths) if n is None else n for n in shape] for shape in shapes]


def _agree(kinds: Sequence[Kind]) -> Kind:
    shapes = [shape for shape, _ in kinds]
    # A length that differs between the tries depends on an unknown one.
    axes = zip(*shapes, strict=True)
    shape = tuple(lengths[0] if len(set(lengths)) == 1 else None for lengths in axes)
    return shape, kinds[0][1]


def cross(host: Backend, guest_function: Guest, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the outputs of what runs in a guest, with its gradient in the host's autodiff."""
    if host.interop.bridge is None:
        raise guest_function.unsupported(
            f"backend {host.name!r}", "it has no bridge to other frameworks"
        )
    return host.interop.bridge(guest_function, tensors)
