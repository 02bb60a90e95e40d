"""What runs in a guest framework, made of functions of the guest's own tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...backend.finding.values import borrow, lend, read_key
from ...backend.guest import Guest, Kind, Pull, Shape, SharedBuffer, make_zeros
from ...errors import GradientError, MultigradError, UnsupportedOp
from ...graph.ir.types import FLOATS

Tensor = Any
WIDE = ("float64", "int64", "uint64")
MOST_TRIES = 64
# Stand for a length that is not known yet: what depends on it differs. Both can be halved, or cut
# in three.
FILLS = (12, 24)


@dataclass(frozen=True, slots=True, eq=False)
class GuestFunction:
    """A `Guest`.

    Attributes:
        name: what to call it in messages.
        guest: where it runs.
        forward: the guest's `*inputs -> a tuple of outputs`.
        keep: the guest's `*inputs -> (outputs, pull)`, where `pull(*cotangents)` gives a gradient
            or None for each input.
        backward: the guest's `(inputs, cotangents) -> the same gradients`, from the inputs alone.
        wrt: the positions of inputs that may get a gradient.
        like: for each output, the input whose shape and dtype it has; None: `infer` tries.
        undifferentiable: the positions of outputs that carry no gradient.
        key: the position of the input that is a random key.
        owns: whether the code is the user's: it may write to its inputs, and may hold on to its
            outputs, so that each side gets memory of its own.
        keeps_outputs: whether the guest keeps outputs for backward, which therefore must not be
            written to.
        seen: what `forward` and `keep` note about the outputs beside the tensors.
        probed: what `infer` has found, with what it saw then; shared by all that have the same
            outputs.
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
    seen: dict[str, Any] = field(default_factory=dict)
    probed: dict[Any, Any] = field(default_factory=dict)

    def run(self, inputs: Sequence[SharedBuffer]) -> list[SharedBuffer]:
        """Return the outputs."""
        with ExitStack() as stack:
            self._enter(stack, inputs)
            outputs = self._attempt(self.forward, *self._borrow(inputs))
            return [lend(self.guest, y) for y in outputs]

    def record(self, inputs: Sequence[SharedBuffer]) -> tuple[list[SharedBuffer], Pull]:
        """Return the outputs, and the map from their cotangents to a gradient, or None, for each
        input.
        """
        with ExitStack() as stack:
            self._enter(stack, inputs)
            outputs, pull = self._attempt(self.keep, *self._borrow(inputs))
            lent = [lend(self.guest, y) for y in outputs]
        kinds = [SharedBuffer(x.dtype, x.shape, _nothing) for x in inputs]  # the memory may go

        def pull_back(cotangents: Sequence[SharedBuffer | None]) -> list[SharedBuffer | None]:
            with ExitStack() as stack:
                self._enter(stack, kinds)
                found = self._attempt(pull, *self._borrow_cotangents(cotangents))
                return self._lend_gradients(found, kinds)

        return lent, pull_back

    def gradients(
        self, inputs: Sequence[SharedBuffer], cotangents: Sequence[SharedBuffer | None]
    ) -> list[SharedBuffer | None]:
        """Return a gradient, or None, for each input."""
        with ExitStack() as stack:
            self._enter(stack, inputs)
            given = self._borrow(inputs)
            found = self._attempt(self.backward, given, self._borrow_cotangents(cotangents))
            return self._lend_gradients(found, inputs)

    def carries(self, position: int, dtype: str) -> bool:
        """Return whether an output carries a gradient."""
        return dtype in FLOATS and position not in self.undifferentiable

    def infer(self, inputs: Sequence[Kind]) -> list[Kind]:
        """Return the outputs' shapes and dtypes for inputs that are not there yet.

        Raises:
            MultigradError: it fails on zeros of these shapes.
        """
        if self.like is not None:
            return [inputs[i] for i in self.like]
        key = tuple(inputs)
        if key not in self.probed:
            shapes = [shape for shape, _ in inputs]
            kinds = infer_kinds(shapes, partial(self._try, inputs))
            self.probed[key] = kinds, dict(self.seen)
        kinds, seen = self.probed[key]
        self.seen.update(seen)
        return kinds

    def refusal(self, what: str = "has no second derivative") -> GradientError:
        """Return the error for a derivative that a bridge does not carry."""
        return GradientError(
            f"{self.name}, which runs in {self.guest.name}, {what} in another framework: a bridge "
            "carries one gradient back. Run it in the framework of its tensors (backend=None)"
        )

    def unsupported(self, where: str, advice: str) -> UnsupportedOp:
        """Return the error for a place where a host cannot call a guest."""
        return UnsupportedOp(
            f"{self.name} runs in {self.guest.name}, which {where} cannot call: {advice}"
        )

    # --- in the guest -----------------------------------------------------------------------------

    def _enter(self, stack: ExitStack, inputs: Sequence[SharedBuffer]) -> None:
        """Enter the mode that keeps the widest dtype among the inputs."""
        if self.guest.tensors.precision is not None:
            wide = next(
                (x.dtype for i, x in enumerate(inputs) if x.dtype in WIDE and i != self.key), None
            )
            if wide is not None:
                stack.enter_context(self.guest.tensors.precision(wide))

    def _borrow(self, inputs: Sequence[SharedBuffer]) -> list[Tensor]:
        return [
            self._read_key(x) if i == self.key else borrow(self.guest, x, self.owns)
            for i, x in enumerate(inputs)
        ]

    def _read_key(self, lent: SharedBuffer) -> Tensor:
        words = lent.array().astype(np.uint32)
        return read_key(self.guest, self.guest.tensors.from_numpy(words))

    def _borrow_cotangents(self, cotangents: Sequence[SharedBuffer | None]) -> list[Tensor | None]:
        return [None if c is None else borrow(self.guest, c, self.owns) for c in cotangents]

    def _lend_gradients(
        self, found: Sequence[Tensor | None], inputs: Sequence[SharedBuffer]
    ) -> list[SharedBuffer | None]:
        lent: list[SharedBuffer | None] = [None] * len(inputs)
        for i in self.wrt:
            gradient = found[i]
            if gradient is not None:
                lent[i] = self._check(lend(self.guest, gradient), inputs[i], i)
        return lent

    def _check(self, gradient: SharedBuffer, like: SharedBuffer, position: int) -> SharedBuffer:
        if gradient.shape == like.shape and gradient.dtype == like.dtype:
            return gradient
        raise GradientError(
            f"{self.name} returned a {gradient.dtype} gradient of shape {gradient.shape} for input "
            f"{position}, which is {like.dtype} of shape {like.shape}; expected the same"
        )

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
        given = zip(shapes, inputs, strict=True)
        zeros = [make_zeros(tuple(shape), dtype) for shape, (_, dtype) in given]
        return [(y.shape, y.dtype) for y in self.run(zeros)]


def infer_kinds(
    shapes: Sequence[Shape], attempt: Callable[[Sequence[Sequence[int]]], list[Kind]]
) -> list[Kind]:
    """Return the outputs' kinds by trying; a length that is not known yet is tried as two different
    ones.

    Raises:
        MultigradError: no attempt gave outputs.
    """
    if not any(n is None for shape in shapes for n in shape):
        return attempt(fill(shapes, iter(())))
    try:
        found = [attempt(fill(shapes, itertools.repeat(n))) for n in FILLS]
    except MultigradError as error:
        # A length must be that of another input; then the number of axes is all that is sure.
        kinds = _search(shapes, attempt, error)
        return [((None,) * len(shape), dtype) for shape, dtype in kinds]
    return [_agree(kinds) for kinds in zip(*found, strict=True)]


def _search(
    shapes: Sequence[Shape],
    attempt: Callable[[Sequence[Sequence[int]]], list[Kind]],
    error: MultigradError,
) -> list[Kind]:
    """Try lengths that are known elsewhere for those that are not."""
    known = list(dict.fromkeys(n for shape in shapes for n in shape if n is not None))
    unknown = sum(n is None for shape in shapes for n in shape)
    lengths = itertools.product((*known, 1), repeat=unknown)
    for chosen in itertools.islice(lengths, MOST_TRIES):
        with suppress(MultigradError):
            return attempt(fill(shapes, iter(chosen)))
    raise error


def _nothing() -> Any:
    raise AssertionError("its shape and dtype alone were kept")


def fill(shapes: Sequence[Shape], lengths: Iterator[int]) -> list[list[int]]:
    """Return shapes in which the lengths that are not known are the given ones, in order."""
    return [[next(lengths) if n is None else n for n in shape] for shape in shapes]


def _agree(kinds: Sequence[Kind]) -> Kind:
    """Return the kind of one output: None where a length follows one that is not known yet."""
    shapes = [shape for shape, _ in kinds]
    shape = tuple(n[0] if len(set(n)) == 1 else None for n in zip(*shapes, strict=True))
    return shape, kinds[0][1]


def cross(host: Backend, foreign: Guest, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the outputs of what runs in a guest, with its gradient in the host's autodiff.

    Raises:
        UnsupportedOp: the host cannot call another framework, or not here.
    """
    if host.interop.bridge is None:
        raise foreign.unsupported(f"backend {host.name!r}", "it has no bridge to other frameworks")
    return host.interop.bridge(foreign, tensors)


def as_key(host: Backend, key: Any) -> Tensor:
    """Return a drawn key as a tensor of the host's."""
    return host.tensors.from_numpy(np.array(key, np.uint32)) if isinstance(key, tuple) else key
