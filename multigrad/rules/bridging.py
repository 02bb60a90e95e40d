"""Functions, and activations under a rule, in another framework: captured code runs as the guest's.

What cannot be captured runs as it is in the guest, by its own autodiff and on memory of its own, so
that a Function for one framework can be used in the others. The host draws a random rule's key, so
that the numbers are the host's own.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..backend.contract import Backend
from ..backend.discovery import backend_of, load_backend
from ..backend.guest import Guest, Kind, Pull, Shape, SharedBuffer, make_zeros
from ..backend.values import borrow, lend, read_key
from ..errors import GradientError, MultigradError, UnsupportedOp
from ..functions.calls.arguments import Layout, flatten, one_backend, owner_of, replace_at, unwrap
from ..functions.calls.as_written import tensors_among
from ..functions.calls.binding import assemble
from ..functions.calls.capture_errors import NotCaptured
from ..functions.calls.decision import ELSEWHERE
from ..functions.calls.recipe import Variant
from ..functions.function import Function
from ..graph.ir.types import FLOATS
from ..graph.support.threads import build_once, make_lock
from ..graph.support.trees import optree
from ..lowering.checks import find_lacking, refuse_lacking
from ..lowering.forwards import Forward
from ..lowering.lower import lower_graphs
from ..lowering.plain_functions import PlainFunctions, without_autodiff
from ..trace.active_rules import FREE, KeySource
from ..trace.lookups import at_present
from .activation import without_rule
from .context import RuleInForce
from .model.activation_function import put_under
from .vjp import vjp_leaves

# --- what runs in a guest framework, made of functions of the guest's own tensors -----------------
Tensor = Any
WIDE = ("float64", "int64", "uint64")
MOST_TRIES = 64
# Stand for a length that is not known yet: what depends on it differs. Both can be halved, or cut
# in three.
FILLS = (12, 24)


@dataclass(frozen=True, slots=True, eq=False)
class GuestFunction:
    """Code that a host calls in a guest, as the protocol `Guest` has it.

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
        with ExitStack() as stack:
            self._enter(stack, inputs)
            outputs = self._attempt(self.forward, *self._borrow(inputs))
            return [lend(self.guest, y) for y in outputs]

    def record(self, inputs: Sequence[SharedBuffer]) -> tuple[list[SharedBuffer], Pull]:
        with ExitStack() as stack:
            self._enter(stack, inputs)
            outputs, pull = self._attempt(self.keep, *self._borrow(inputs))
            lent = [lend(self.guest, y) for y in outputs]
        kinds = [SharedBuffer(x.dtype, x.shape, _nothing) for x in inputs]  # the memory may go

        def pull_back(cotangents: Sequence[SharedBuffer | None]) -> list[SharedBuffer | None]:
            with ExitStack() as stack:
                self._enter(stack, kinds)
                gradients = self._attempt(pull, *self._borrow_cotangents(cotangents))
                return self._lend_gradients(gradients, kinds)

        return lent, pull_back

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
        if key not in self.probed:
            shapes = [shape for shape, _ in inputs]
            kinds = infer_kinds(shapes, partial(self._try, inputs))
            # `seen` too: whoever asks again must find what the probe saw.
            self.probed[key] = kinds, dict(self.seen)
        kinds, seen = self.probed[key]
        self.seen.update(seen)
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

    # --- in the guest -----------------------------------------------------------------------------

    def _enter(self, stack: ExitStack, inputs: Sequence[SharedBuffer]) -> None:
        # jax, say, needs a mode for 64 bits. The words of a key are no numbers, and do not count.
        if self.guest.tensors.precision is not None:
            wide = next(
                (x.dtype for i, x in enumerate(inputs) if x.dtype in WIDE and i != self.key), None
            )
            if wide is not None:
                stack.enter_context(self.guest.tensors.precision(wide))

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
        lent: list[SharedBuffer | None] = [None] * len(inputs)
        for i in self.wrt:
            gradient = gradients[i]
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
    return [_agree(kinds) for kinds in zip(*attempts, strict=True)]


def _search(
    shapes: Sequence[Shape],
    attempt: Callable[[Sequence[Sequence[int]]], list[Kind]],
    error: MultigradError,
) -> list[Kind]:
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
    return [[next(lengths) if n is None else n for n in shape] for shape in shapes]


def _agree(kinds: Sequence[Kind]) -> Kind:
    shapes = [shape for shape, _ in kinds]
    # A length that differs between the tries depends on an unknown one.
    shape = tuple(n[0] if len(set(n)) == 1 else None for n in zip(*shapes, strict=True))
    return shape, kinds[0][1]


def cross(host: Backend, foreign: Guest, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the outputs of what runs in a guest, with its gradient in the host's autodiff."""
    if host.interop.bridge is None:
        raise foreign.unsupported(f"backend {host.name!r}", "it has no bridge to other frameworks")
    return host.interop.bridge(foreign, tensors)


# For one Function; numbers that never repeat would fill it without end.
MOST_PROBED = 256
_lock = make_lock()
# By Function, which this keeps no longer alive: outputs' kinds that were found by trying.
_probed: weakref.WeakKeyDictionary[Function, dict[Any, dict[Any, Any]]] = (
    weakref.WeakKeyDictionary()
)


def call_function(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], guest: str
) -> Any:
    """Return a Function's outputs for a host's tensors, run in a guest with its backward.

    A Function that runs as it is and draws random numbers of its own draws anew where compiled code
    runs it again for backward.

    Args:
        args, kwargs: what the Function takes; the tensors among them belong to one framework, the
            host.
        guest: the name of a backend.

    Raises:
        BackendNotFound: there is no such backend, or it is not installed.
        UnsupportedOp: the guest lacks an op, or the host cannot call it here.
        TraceError: it runs as it is and is written for another framework than the guest.
    """
    leaves, tree = flatten(args, kwargs)
    leaves = [unwrap(leaf) for leaf in leaves]
    # Without a tensor there is no host: it is a plain call.
    if not any(owner_of(leaf) for leaf in leaves):
        return function(*args, **kwargs)
    leaves, tree = function.completion.complete(leaves, tree)
    layout = function.recipe.lay_out(function.parameters, leaves, tree)
    host = one_backend(function.name, layout, leaves)
    # The tensors are the guest's own.
    if host.name == guest:
        return function(*args, **kwargs)
    return _call_leaves(function, layout, leaves, host, load_backend(guest), draws=function.draws)


def call_activation(
    forward: Forward, in_force: RuleInForce | None, x: Tensor, guest: str
) -> Tensor:
    """Return the activation of a host's tensor, run in a guest with its backward.

    Args:
        in_force: the rule; None: the activation's own derivative.
        x: a tensor of the host, whose autodiff the gradient flows back in.
        guest: the name of a backend.

    Raises:
        BackendNotFound: there is no such backend, or it is not installed.
        UnsupportedOp: the guest lacks an op, or the host cannot call it here.
        GradientError: x is no float.
    """
    x = unwrap(x)
    host = backend_of(x)
    if in_force is None:
        if guest == host.name:
            return without_rule(forward, host, x)(x)
        function, leaves, draws = put_under(None, forward), [x], FREE
    else:
        leaves, draws = [x, *at_present(in_force, host).values], in_force.draws
        function = put_under(in_force.specialization, forward)
        if guest == host.name:
            return function.entries.on(host, leaves).run(leaves, draws)
    layout = function.recipe.lay_out(None, leaves, flatten(tuple(leaves), {})[1])
    function.recipe.arguments.check(host, leaves)
    return _call_leaves(function, layout, leaves, host, load_backend(guest), draws=draws)


def _call_leaves(
    function: Function,
    layout: Layout,
    leaves: Sequence[Any],
    host: Backend,
    guest: Backend,
    draws: KeySource,
) -> Any:
    variant = find_variant(function, layout, leaves)
    if variant is None:
        return _call_as_it_is(function, host, guest, layout, leaves)
    plain_functions = find_plain_functions(function, variant, guest)
    foreign = make_foreign(function, variant, plain_functions, guest, leaves)
    tensors = [leaves[i] for i in tensors_among(layout, leaves)]
    if variant.graphs.is_random:
        key = draws.next_key(host)
        is_words = isinstance(key, tuple)
        tensors.append(host.tensors.from_numpy(np.array(key, np.uint32)) if is_words else key)
    return assemble(variant, cross(host, foreign, tuple(tensors)))


def find_variant(function: Function, layout: Layout, leaves: Sequence[Any]) -> Variant | None:
    """Return a Function's graphs for these arguments; None: it runs as it is."""
    if function.native is True:
        return None
    try:
        return function.entries.decide(ELSEWHERE, layout, leaves).variant
    except NotCaptured as error:
        error.error.__cause__ = error.__cause__
        function.recipe.give_up(error.error)
        return None


def find_plain_functions(function: Function, variant: Variant, guest: Backend) -> PlainFunctions:
    graphs = variant.graphs

    def lower() -> tuple[PlainFunctions, dict[str, str]]:
        lacking = find_lacking(function.recipe.subject, guest, graphs.forward, graphs.backward)
        return lower_graphs(graphs, without_autodiff(guest)).native, lacking

    plain_functions, lacking = build_once(variant.lowered, f"straight {guest.name}", lower)
    refuse_lacking(lacking, variant.layout.dtype or "")
    return plain_functions


def make_foreign(
    function: Function,
    variant: Variant,
    plain_functions: PlainFunctions,
    guest: Backend,
    leaves: Sequence[Any],
) -> GuestFunction:
    layout = variant.layout
    count = len(layout.tensors)
    values = [leaves[i] for i in layout.indices("number")]
    # A number that is not plain, such as a tensor, becomes an input of the guest.
    numbers = [value if isinstance(value, int | float) else None for value in values]
    key_place = count + numbers.count(None)
    emitted = plain_functions.emitted
    wrt = (
        name in emitted.names.wrt and leaf.is_float
        for name, leaf in zip(emitted.names.inputs, layout.tensors, strict=True)
    )

    def fill(inputs: Sequence[Tensor]) -> list[Any]:
        rest = iter(inputs[count:])
        filled = [next(rest) if number is None else number for number in numbers]
        return [*inputs[:count], *filled, *rest]

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        return plain_functions.run(*fill(inputs))

    def keep(*inputs: Tensor) -> Any:
        return plain_functions.record(*fill(inputs))

    def backward(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return plain_functions.gradients(fill(inputs), cotangents)

    return GuestFunction(
        function.recipe.title,
        guest,
        run,
        keep=keep,
        backward=backward,
        wrt=tuple(i for i, each in enumerate(wrt) if each),
        like=(0,) if function.recipe.graphs.gives_like_input else None,
        undifferentiable=emitted.derivative.undifferentiable,
        key=key_place if plain_functions.is_random else None,
        keeps_outputs=plain_functions.keeps_outputs,
        probed=_probed_of(
            function, (guest.name, layout.key, layout.dtype, tuple(numbers), variant.graphs.name)
        ),
    )


def _probed_of(function: Function, key: Any) -> dict[Any, Any]:
    with _lock:
        known = _probed.setdefault(function, {})
        # Only a cache: it is emptied when it is full.
        if len(known) >= MOST_PROBED:
            known.clear()
        return known.setdefault(key, {})


# --- as it is -------------------------------------------------------------------------------------
def _call_as_it_is(
    function: Function, host: Backend, guest: Backend, layout: Layout, leaves: Sequence[Any]
) -> Any:
    places = tensors_among(layout, leaves)
    gives_like_input = function.recipe.graphs.gives_like_input
    seen: dict[str, Any] = {}
    if gives_like_input:
        seen = {"nesting": optree.tree_structure(0), "positions": [0], "flat": [None]}

    def note(flat: Sequence[Any], nesting: Any) -> tuple[Tensor, ...]:
        positions = [i for i, each in enumerate(flat) if owner_of(each) is not None]
        seen.update(
            nesting=nesting,
            positions=positions,
            flat=[None if i in positions else each for i, each in enumerate(flat)],
        )
        # The bridge carries only the guest's tensors back.
        if any(owner_of(flat[i]) is not guest for i in positions):
            raise MultigradError(
                f"{function.recipe.subject} returned a tensor of another framework than "
                f"{guest.name}, where it runs"
            )
        return tuple(flat[i] for i in positions)

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = layout.rebuild(replace_at(leaves, places, inputs))
        return note(*optree.tree_flatten(function(*args, **kwargs), none_is_leaf=True))

    def keep(*inputs: Tensor) -> Any:
        arguments = replace_at(leaves, places, inputs)
        flat, nesting, pull_leaves = vjp_leaves(function, arguments, layout.tree, guest)
        outputs = note(flat, nesting)

        def pull(*cotangents: Tensor) -> tuple[Tensor | None, ...]:
            upstream: list[Any] = [None] * len(flat)
            for i, cotangent in zip(seen["positions"], cotangents, strict=True):
                upstream[i] = cotangent
            gradients = pull_leaves(upstream)
            return tuple(gradients[i] for i in places)

        return outputs, pull

    def backward(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Any, ...]:
        return keep(*inputs)[1](*cotangents)

    numbers = tuple(leaves[i] for i in layout.indices("number") if i not in places)
    dtypes = tuple(leaf.dtype for leaf in layout.tensors)
    foreign = GuestFunction(
        function.recipe.title,
        guest,
        run,
        keep=keep,
        backward=backward,
        wrt=tuple(i for i, leaf in enumerate(layout.tensors) if leaf.is_float),
        like=(0,) if gives_like_input else None,
        owns=True,
        seen=seen,
        probed=_probed_of(function, (guest.name, layout.key, dtypes, numbers)),
    )
    outputs = cross(host, foreign, tuple(leaves[i] for i in places))
    flat = list(seen["flat"])
    for i, output in zip(seen["positions"], outputs, strict=True):
        flat[i] = output
    return optree.tree_unflatten(seen["nesting"], flat)
