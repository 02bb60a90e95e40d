"""`Foreign`: what runs in a guest framework, as a host sees it.

A host lends its inputs and borrows the results, and attaches the gradient to its own autodiff. It either keeps what
`record` gives, so that residuals stay in the guest, or calls `gradients`, which begins from the inputs again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import GradientError, MultigradError, UnsupportedOp
from ..ir.types import FLOATS, dtype_name
from ..lowering.backend import Backend
from ..lowering.lent import Lent, borrow, lend

Tensor = Any
Shape = tuple[int | None, ...]
Kind = tuple[
    Shape, str
]  # a shape, None where a length is not known yet, and the IR name of a dtype
Pull = Callable[[Sequence[Lent | None]], list[Lent | None]]
WIDE = ("float64", "int64", "uint64")
MOST_TRIES = 64
FILLS = (3, 5)  # stand for a length that is not known yet: what depends on it differs


@dataclass(frozen=True, slots=True, eq=False)
class Foreign:
    """A function of tensors with its gradient, which runs in a guest.

    Attributes:
        name: what to call it in messages.
        guest: where it runs.
        forward: the guest's `*inputs -> a tuple of outputs`.
        keep: the guest's `*inputs -> (outputs, pull)`, where `pull(*cotangents)` gives a gradient or None for each input.
        backward: the guest's `(inputs, cotangents) -> the same gradients`, from the inputs alone.
        wrt: the positions of inputs that may get a gradient.
        like: for each output, the input whose shape and dtype it has; None: `infer` tries.
        undifferentiable: the positions of outputs that carry no gradient.
        key: the position of the input that is a random key.
        owns: whether the code is the user's: it may write to its inputs, and may hold on to its outputs, so that each side
            gets memory of its own.
        keeps_outputs: whether the guest keeps outputs for backward, which therefore must not be written to.
        seen: what `forward` and `keep` note about the outputs beside the tensors.
        probed: what `infer` has found, with what it saw then; shared by all that have the same outputs.
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

    def run(self, inputs: Sequence[Lent]) -> list[Lent]:
        """Return the outputs."""
        with ExitStack() as stack:
            self._enter(stack, inputs)
            outputs = self._attempt(self.forward, *self._borrow(inputs))
            return [lend(self.guest, y) for y in outputs]

    def record(self, inputs: Sequence[Lent]) -> tuple[list[Lent], Pull]:
        """Return the outputs, and the map from their cotangents to a gradient, or None, for each input."""
        with ExitStack() as stack:
            self._enter(stack, inputs)
            outputs, pull = self._attempt(self.keep, *self._borrow(inputs))
            lent = [lend(self.guest, y) for y in outputs]
        kinds = [Lent(x.dtype, x.shape, _nothing) for x in inputs]  # the memory may go

        def pull_back(cotangents: Sequence[Lent | None]) -> list[Lent | None]:
            with ExitStack() as stack:
                self._enter(stack, kinds)
                found = self._attempt(pull, *self._borrow_cotangents(cotangents))
                return self._lend_gradients(found, kinds)

        return lent, pull_back

    def gradients(
        self, inputs: Sequence[Lent], cotangents: Sequence[Lent | None]
    ) -> list[Lent | None]:
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
            self.probed[key] = self._probe(inputs), dict(self.seen)
        kinds, seen = self.probed[key]
        self.seen.update(seen)
        return kinds

    def refusal(self, what: str = "has no second derivative") -> GradientError:
        """Return the error for a derivative that a bridge does not carry."""
        return GradientError(
            f"{self.name}, which runs in {self.guest.name}, {what} in another framework: a bridge carries one "
            f"gradient back. Run it in the framework of its tensors (backend=None)"
        )

    def unsupported(self, where: str, advice: str) -> UnsupportedOp:
        """Return the error for a place where a host cannot call a guest."""
        return UnsupportedOp(
            f"{self.name} runs in {self.guest.name}, which {where} cannot call: {advice}"
        )

    # --- in the guest ----------------------------------------------------------------------------------

    def _enter(self, stack: ExitStack, inputs: Sequence[Lent]) -> None:
        """Enter the mode that keeps the widest dtype among the inputs."""
        if self.guest.precision is not None:
            wide = next(
                (x.dtype for i, x in enumerate(inputs) if x.dtype in WIDE and i != self.key), None
            )
            if wide is not None:
                stack.enter_context(self.guest.precision(wide))

    def _borrow(self, inputs: Sequence[Lent]) -> list[Tensor]:
        return [
            self._read_key(x) if i == self.key else borrow(self.guest, x, self.owns)
            for i, x in enumerate(inputs)
        ]

    def _read_key(self, lent: Lent) -> Tensor:
        words = lent.array().astype(np.uint32)
        return self.guest.key_pair(self.guest.from_numpy(words))

    def _borrow_cotangents(self, cotangents: Sequence[Lent | None]) -> list[Tensor | None]:
        return [None if c is None else borrow(self.guest, c, self.owns) for c in cotangents]

    def _lend_gradients(
        self, found: Sequence[Tensor | None], inputs: Sequence[Lent]
    ) -> list[Lent | None]:
        lent: list[Lent | None] = [None] * len(inputs)
        for i in self.wrt:
            gradient = found[i]
            if gradient is not None:
                lent[i] = self._check(lend(self.guest, gradient), inputs[i], i)
        return lent

    def _check(self, gradient: Lent, like: Lent, position: int) -> Lent:
        if gradient.shape == like.shape and gradient.dtype == like.dtype:
            return gradient
        raise GradientError(
            f"{self.name} returned a {gradient.dtype} gradient of shape {gradient.shape} for input {position}, "
            f"which is {like.dtype} of shape {like.shape}; expected the same"
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

    def _probe(self, inputs: Sequence[Kind]) -> list[Kind]:
        """Return the outputs' kinds by trying; a length that is not known yet is tried as two different ones."""
        shapes = [shape for shape, _ in inputs]
        if not any(n is None for shape in shapes for n in shape):
            return self._try(shapes, inputs)
        try:
            found = [self._try(fill(shapes, itertools.repeat(n)), inputs) for n in FILLS]
        except MultigradError as error:
            # A length must be that of another input; then the number of axes is all that is sure.
            return [((None,) * len(shape), dtype) for shape, dtype in self._search(inputs, error)]
        return [_agree(kinds) for kinds in zip(*found, strict=True)]

    def _search(self, inputs: Sequence[Kind], error: MultigradError) -> list[Kind]:
        """Try lengths that are known elsewhere for those that are not."""
        shapes = [shape for shape, _ in inputs]
        known = list(dict.fromkeys(n for shape in shapes for n in shape if n is not None))
        unknown = sum(n is None for shape in shapes for n in shape)
        lengths = itertools.product((*known, 1), repeat=unknown)
        for chosen in itertools.islice(lengths, MOST_TRIES):
            with suppress(MultigradError):
                return self._try(fill(shapes, iter(chosen)), inputs)
        raise error

    def _try(self, shapes: Sequence[Sequence[Any]], inputs: Sequence[Kind]) -> list[Kind]:
        given = zip(shapes, inputs, strict=True)
        zeros = [make_zeros(tuple(shape), dtype) for shape, (_, dtype) in given]
        return [(y.shape, y.dtype) for y in self.run(zeros)]


@dataclass(frozen=True, slots=True)
class _Zeros:
    """Makes zeros."""

    shape: tuple[int, ...]
    dtype: str

    def __call__(self) -> np.ndarray[Any, Any]:
        from ..ir.meaning import as_numpy_dtype

        return np.zeros(self.shape, as_numpy_dtype(self.dtype))


def make_zeros(shape: tuple[int, ...], dtype: str) -> Lent:
    """Return zeros for any framework."""
    return Lent(dtype, shape, _Zeros(shape, dtype))


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


def kind_of(x: Tensor) -> Kind:
    """Return the shape and dtype of a host's tensor."""
    return tuple(x.shape), dtype_name(x.dtype)


def cross(host: Backend, foreign: Foreign, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the outputs of what runs in a guest, with its gradient in the host's autodiff.

    Raises:
        UnsupportedOp: the host cannot call another framework, or not here.
    """
    if host.bridge is None:
        raise foreign.unsupported(f"backend {host.name!r}", "it has no bridge to other frameworks")
    return host.bridge(foreign, tensors)


def as_key(host: Backend, key: Any) -> Tensor:
    """Return a drawn key as a tensor of the host's."""
    return host.from_numpy(np.array(key, np.uint32)) if isinstance(key, tuple) else key
