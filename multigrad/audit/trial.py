"""Trials: a custom gradient on its own framework with its inputs, which the laws run and compare.

Nothing is captured: arrays go in and come out, and between them the author's code runs under the
framework's own autodiff. A law's judge is a function of a Trial; most begin

    run, u = trial.start()           a `ForwardRun` on the inputs, and cotangents for its outputs
    gradients = run.gradients(u)     arrays, None where an argument has no gradient

and compare these with other runs. A judge returns what it saw, "" or a `Remark` if the law is kept.
It raises `NotApplicable` if the law does not apply; any error of the code itself is a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from ..core.backend.contract import Backend
from ..core.backend.discovery import load_backend
from ..core.backend.values import is_float_tensor, owner_of
from ..core.ir.op import dtype_name
from ..core.ops.numerics import as_numpy_dtype
from ..core.rules.activation import Activation
from ..core.rules.rule import Rule
from ..core.support.records import cached_property
from ..core.support.trees import Tensor, optree
from ..engine.capture.user_code.inspection import plain_function
from ..engine.capture.user_code.libraries import names_library
from ..engine.functions.calls.arguments import positional_names, replace_at
from ..engine.functions.function import Function
from ..engine.functions.proof.compare import eps_of
from ..engine.functions.proof.run import homes as homes_of
from ..errors import RuleValueError
from ..look.check import weighted_sum
from ..look.subject import (
    Arguments,
    as_float,
    as_given,
    brackets,
    find_original,
    is_float_array,
    numbers_with_gradient,
    precision,
    read_arguments,
    subject_of,
)
from .seeds import Seeds

Array = Any
CLIPS, IS_CLIPPED = "cotangent", "it is said to change its cotangent"
# Whether a gradient is meant to differ, CLIPS, or whose derivative it is; None: not known.
Surrogate = bool | str | Callable[..., Any] | None
Arrays = list[Any]  # None where there is none
Weigh = Callable[[Arrays], float]
SEED = 20
OUTSIDE = (
    "no output is finite at these inputs: give others, of its domain (in a shell, --input 4x6:1..5)"
)
# By how much two computations of one number may differ, relative to it.
TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "float16": 4e-2, "bfloat16": 2e-1}


class NotApplicable(Exception):
    """A law says nothing about a case, for the reason that is its message."""


class Remark(str):
    """A remark on a law that is kept: false, as an empty string is."""

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Law:
    """One law.

    Attributes:
        name: as `xg.audit(laws=...)` takes it.
        sentence: what it says.
        judge: runs a trial; "" or a remark where the law is kept, else what it saw.
        matters: what goes wrong where it is broken.
        is_loud: whether code that raises here refuses, instead of breaking the law.
    """

    name: str
    sentence: str
    judge: Callable[[Trial], str]
    matters: str
    is_loud: bool = True

    def __call__(self, trial: Trial) -> str:
        return self.judge(trial)


def law(
    name: str, matters: str, *, is_loud: bool = True
) -> Callable[[Callable[[Trial], str]], Law]:
    """Make a law of its judge, whose docstring begins with the sentence."""

    def declare(judge: Callable[[Trial], str]) -> Law:
        sentence = " ".join((judge.__doc__ or "").partition("\n\n")[0].split())
        return Law(name, sentence, judge, matters, is_loud)

    return declare


@dataclass(frozen=True, slots=True)
class ForwardRun:
    """One forward: its float outputs, and the map from cotangents to a gradient for each input."""

    backend: Backend
    inputs: list[Tensor]
    outputs: list[Tensor]
    pull: Callable[[Sequence[Tensor]], list[Any]]

    def arrays(self) -> Arrays:
        return [self.read(y) for y in self.outputs]

    def read(self, x: Any) -> Any:
        return None if x is None else np.array(self.backend.tensors.to_numpy(x))

    def gradients(self, cotangents: Sequence[Array]) -> Arrays:
        """Return the gradients for cotangents of any float dtype, as the outputs have them."""
        # Copies, because a backward may write into its cotangents.
        pairs = zip(cotangents, self.outputs, strict=True)
        copies = (as_float(a, dtype_name(y.dtype)) for a, y in pairs)
        tensors = list(map(self.backend.tensors.from_numpy, copies))
        return [self.read(each) for each in self.pull(tensors)]


@dataclass(frozen=True)
class Trial:
    """A custom gradient with the inputs and the framework of its audit.

    Attributes:
        call: the function of tensors, unchanged.
        arguments: those of its call.
        is_surrogate: whether its gradient is meant to differ from the derivative.
        is_linear: whether its gradient is meant to be linear in the cotangent.
        meant: the function whose derivative it is said to be, `call` if no surrogate; None: unsaid.
        converted: multigrad's version; None if it is not another framework's custom gradient.
        forward: runs the forward alone, as plain code; None if there is none.
        input_names: those of its positional parameters, as far as they are known.
        seeds: put the random generators back before each run; None: it draws as it is called.
        original: what the caller gave.
        intention: what the gradient was recognized as, and by what; "" if it was not.
        contradiction: what it does that its name denies; "" if nothing.
    """

    name: str
    call: Callable[..., Any]
    backend: Backend
    arguments: Arguments
    is_surrogate: bool = False
    is_linear: bool = True
    meant: Callable[..., Any] | None = None
    converted: Function[..., Any] | None = None
    forward: Callable[..., Any] | None = None
    input_names: tuple[str, ...] = ()
    seeds: Seeds | None = None
    original: Any = None
    intention: str = ""
    contradiction: str = ""

    @cached_property
    def given(self) -> Arrays:
        """The tensors of the call as arrays, in their own dtypes."""
        return self.arguments.arrays

    @property
    def inputs(self) -> Arrays:
        """Those in the widest dtype."""
        return self.cast(self.wide)

    @property
    def code(self) -> tuple[Any, ...]:
        """The user's functions that it consists of."""
        if not isinstance(self.original, type):
            return (self.original,)
        members = (getattr(each, "__func__", each) for each in vars(self.original).values())
        return tuple(filter(callable, members))

    @property
    def input_count(self) -> int:
        """How many of the tensors are inputs: the parameters of a module come after them."""
        return len(self.given) - len(getattr(self.call, "parameter_names", ()))

    @cached_property
    def names(self) -> list[str]:
        """The names of the tensors: x, pair[0]; of a module's parameters, those that it gives."""
        inputs = self.arguments.paths(self.input_names)[: self.input_count]
        return [*inputs, *getattr(self.call, "parameter_names", ())]

    @property
    def numbers_with_gradient(self) -> dict[int, str]:
        """The places and names of the plain numbers that have a gradient, which no run shows."""
        return numbers_with_gradient(self.call, self.backend, self.arguments, self.input_names)

    def named(self, text: str) -> str:
        """Return a message with the names of the parameters in place of `argument 0`."""
        return re.sub(r"\bargument (\d+)", lambda match: self.names[int(match[1])], text)

    @cached_property
    def stated(self) -> Trial:
        """The trial whose derivative its gradient should be: its own, or that of `meant`."""
        return self if self.meant is None else replace(self, call=self.meant)

    @cached_property
    def floats(self) -> list[int]:
        """The positions of those that are of floats, which have gradients."""
        return [n for n, array in enumerate(self.given) if is_float_array(array)]

    @cached_property
    def dtype(self) -> str:
        """The dtype of the call: that of the first of them."""
        names = [dtype_name(self.given[n].dtype) for n in self.floats]
        return names[0] if names else "float32"

    @cached_property
    def wide(self) -> str:
        """The dtype for laws that need digits: float64 if it runs in float64."""
        # Only a run tells: code may refuse float64, or lack a kernel for it.
        try:
            with self.quiet("float64"):
                self.outputs_and_gradients(self.cast("float64"))
        except Exception:
            return self.dtype
        return "float64"

    @cached_property
    def digits(self) -> str:
        """The dtype whose digits the results have: coarser than `wide` if the code is."""
        # Outputs' dtypes tell most; steps that float64 sees and an output does not tell the rest.
        run = self.run()
        names = [dtype_name(y.dtype) for y in run.outputs]
        coarsest = max(names, key=TOLERANCES.__getitem__, default=self.wide)
        if coarsest != "float64":
            return coarsest
        arrays = self.cast("float64")
        outputs = self.run(arrays).arrays()
        for n in self.floats:
            near, far = (
                self.run(replace_at(arrays, [n], [moved_by(arrays[n], step)])).arrays()
                for step in (TINY_STEP, SMALL_STEP)
            )
            if any(has_few_digits(*each) for each in zip(outputs, near, far, strict=True)):
                return "float32"
        return "float64"

    @property
    def tolerance(self) -> float:
        """The relative difference that two gradients in the widest dtype may have."""
        return TOLERANCES[self.digits]

    @cached_property
    def noise(self) -> float:
        """The absolute difference that rounding leaves if terms cancel, in the widest dtype."""
        return self.noise_in(self.digits)

    def noise_in(self, dtype: str) -> float:
        """Return the residue of rounding if terms cancel: some eps of an output over an input."""
        y = largest_of(self.run().arrays())
        x = largest_of([self.given[n].astype(np.float64) for n in self.floats])
        return 8 * eps_of(as_numpy_dtype(dtype)) * y / x if x else 0.0

    @cached_property
    def is_repeatable(self) -> bool:
        """Whether two calls give the same result; True if it does not run."""
        with self.quiet():
            try:
                first, second = (self.outputs_and_gradients() for _ in range(2))
            except Exception:
                return True  # the law `repeatable` reports the error
        return all(
            a is b is None or np.array_equal(a, b, equal_nan=True)
            for a, b in zip(first, second, strict=True)
        )

    def cast(self, dtype: str) -> Arrays:
        return self.arguments.cast(dtype)

    def changed(self, arrays: Arrays, change: Callable[[Array], Array]) -> Arrays:
        """Return arrays for the tensors, with the floats among them changed."""
        return [change(a) if n in self.floats else a for n, a in enumerate(arrays)]

    def refuse_draws(self, what: str) -> None:
        """Raise NotApplicable for what draws: it gets other numbers there."""
        if self.seeds is not None:
            raise NotApplicable(f"it draws, and {what} other numbers")

    def keeping_seeds(self) -> AbstractContextManager[None]:
        """Leave the generators afterwards as they were before."""
        return nullcontext() if self.seeds is None else self.seeds.kept()

    @contextmanager
    def quiet(self, dtype: str = "") -> Iterator[None]:
        """Run in the framework's mode for a dtype, without warnings of NumPy's."""
        with precision(self.backend, dtype or self.wide), np.errstate(all="ignore"):
            yield

    def find_difference(self, found: Arrays, wanted: Arrays, roundings: float = 1.0) -> str:
        """Return where two lists of gradients in the widest dtype differ most, "" if they agree.

        Args:
            roundings: of how many gradients the differences are.
        """
        return find_difference(found, wanted, self.tolerance, roundings * self.noise)

    def tensors(self, arrays: Sequence[Array]) -> list[Tensor]:
        return [self.backend.tensors.from_numpy(np.array(a)) for a in arrays]

    def run(self, arrays: Sequence[Array] | None = None) -> ForwardRun:
        """Run forward on arrays; None: on the inputs, in the widest dtype."""
        return self.run_on(self.tensors(self.inputs if arrays is None else arrays))

    def start(self, arrays: Arrays | None = None, seed: int = 0) -> tuple[ForwardRun, Arrays]:
        """Return a forward on arrays, else on the inputs, and cotangents for it."""
        run = self.run(arrays)
        if not run.outputs:
            raise NotApplicable("it has no float output")
        return run, self.cotangents(run, seed)

    def outputs_and_gradients(self, arrays: Arrays | None = None) -> Arrays:
        run = self.run(arrays)
        return [*run.arrays(), *run.gradients(self.cotangents(run))]

    def runs(self, arrays: Arrays) -> bool:
        """Return whether the code takes inputs of other shapes, forward and backward."""
        try:
            self.outputs_and_gradients(arrays)
        except Exception:  # of the user's code
            return False
        return True

    def weighed(self, cotangents: Arrays) -> Weigh:
        """Return a function of the tensors: the sum of the outputs, weighted by cotangents; an
        element whose weight is 0 does not count, whatever it is.
        """

        def weigh(arrays: Arrays) -> float:
            return weighted_sum(cotangents, self.run(arrays).arrays())

        return weigh

    def compare(self, other: ForwardRun, run: ForwardRun, u: Arrays, wanted: Arrays) -> str:
        """Return where a run's outputs differ from another's, or its gradients from others."""
        fault = as_output_difference(self.find_difference(other.arrays(), run.arrays()))
        return fault or self.find_difference(other.gradients(u), wanted)

    def run_on(self, tensors: Sequence[Tensor], vjp: Any = None) -> ForwardRun:
        """Run forward on tensors of the framework, by its own vjp or another one."""
        if self.seeds is not None:
            self.seeds.rewind()
        outputs, pull_whole = self.arguments.pull(self.call, self.backend, tensors, vjp)
        float_places = [n for n, y in enumerate(outputs) if is_float_tensor(y)]
        # A backward draws what it would right after its forward.
        resume = None if self.seeds is None else self.seeds.mark()

        def pull(cotangents: Sequence[Tensor]) -> list[Any]:
            if resume is not None:
                resume()
            return pull_whole(replace_at([None] * len(outputs), float_places, cotangents))

        return ForwardRun(self.backend, list(tensors), [outputs[n] for n in float_places], pull)

    def outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the float outputs, under the transforms that are in force."""
        if self.seeds is not None:
            self.seeds.rewind()
        args, kwargs = self.arguments.nest(tensors)
        leaves = optree.tree_leaves(self.call(*args, **kwargs), none_is_leaf=True)
        return [y for y in leaves if is_float_tensor(y)]

    def as_plain_code(self) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """Return the call as a function from tensors to outputs that a compiler can follow.

        Raises:
            NotApplicable: arguments are nested, or given by name.
        """
        call, leaves, places = self.call, self.arguments.leaves, self.arguments.places
        args, kwargs = self.arguments.nest(self.given)
        if kwargs or len(args) != len(leaves):
            raise NotApplicable("its arguments are nested")
        # A compiler follows a class that is applied, and not what prepares its arguments.
        owner = self.original if isinstance(self.original, type) else None

        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            arguments = replace_at(leaves, places, tensors)
            outputs = call(*arguments) if owner is None else owner.apply(*arguments)
            return [*outputs] if isinstance(outputs, (tuple, list)) else [outputs]

        return run

    def cotangents(self, run: ForwardRun, seed: int = 0) -> Arrays:
        """Return normal numbers in the dtypes of the outputs, the same for equal seeds."""
        # Seeded by output, so that a change of one shape leaves the other numbers alone.
        return [draw_like(y, SEED, seed, n) for n, y in enumerate(run.outputs)]


def draw_like(y: Tensor, *seed: int) -> Array:
    numbers = np.random.default_rng(seed).standard_normal(tuple(map(int, y.shape)))
    return as_float(np.asarray(numbers), dtype_name(y.dtype))


def largest_of(arrays: Arrays) -> float:
    sizes = (np.abs(a[np.isfinite(a)]) for a in arrays)
    return max((float(np.max(a, initial=0.0)) for a in sizes), default=0.0)


def flat_outputs(trial: Trial, n: int, share: float = 0.5) -> set[int]:
    """Return which outputs stay as they are, in more than that share of their elements, after small
    steps of an argument.

    That has to be so at its numbers, their negatives, and larger and smaller ones: a ReLU and a
    clamp are flat on one side, or far out.
    """
    # A slope of more than 1e-5 counts, in float32 of more than 1e-3.
    step, least = (1e-6, 1e-11) if trial.digits == "float64" else (1e-3, 1e-6)
    flat: set[int] | None = None
    for factor in (1, -1, 16, -16, 1 / 16):
        arrays = trial.inputs
        x = arrays[n] = (arrays[n] * factor).astype(arrays[n].dtype)
        with suppress(Exception):  # the code may refuse such numbers, as probabilities above 1
            before = trial.run(arrays).arrays()
            arrays[n] = (x + step * (1.5 + wave(x))).astype(x.dtype)
            pairs = zip(trial.run(arrays).arrays(), before, strict=True)
            alike = [np.abs(a - b) <= least * (1 + np.abs(b)) for a, b in pairs]
            now = {k for k, each in enumerate(alike) if np.count_nonzero(each) > share * each.size}
            flat = now if flat is None else flat & now
    return flat or set()


def with_seeds(trial: Trial, seeds: Seeds) -> Trial:
    """Return a trial of what draws at random with these seeds for each run; others unchanged."""
    if trial.is_repeatable:
        return trial
    seeded = replace(trial, seeds=seeds)
    return seeded if seeded.is_repeatable else trial


def trial_of(obj: Any, inputs: Sequence[Any], surrogate: Surrogate) -> Trial:
    """Return the trial of an object called with these inputs.

    Raises:
        RuleTypeError: the object cannot be called.
        Exception: whatever the code raises if no framework runs it.
    """
    obj = as_given(obj, owners := tuple(filter(None, map(owner_of, inputs))))
    is_ours = isinstance(getattr(obj, "_activation", obj), Function | Activation | Rule | str)
    subject = subject_of(obj) if is_ours else find_original(obj)
    signed, call, homes = subject.function, subject.call, subject.homes
    if is_ours:
        homes = owners[:1]
        # Arrays stand for tensors of the framework whose custom gradient it was.
        if signed is not None and signed.recipe.imported and all(x.name == "numpy" for x in homes):
            homes = tuple(homes_of(signed.recipe.dialect()))[:1]
    elif (code := plain_function(call)) is not None and not names_library(code):
        homes = tuple(sorted(homes, key=lambda home: home not in owners))
    converted = signed if subject.is_custom else None
    function = signed if is_ours else converted
    arguments = read_arguments(inputs)
    names = ["x"] if signed is None else positional_names(signed.parameters)
    run_forward = None if function is None else function.recipe.run_forward
    forward = None if run_forward is None else lambda *args, **kwargs: run_forward(args, kwargs)
    failure: Exception | None = None
    # The first framework that runs forward and backward is its home.
    for home in homes or (load_backend("numpy"),):
        trial = Trial(
            subject.name, call, home, arguments,
            is_surrogate=subject.is_surrogate if surrogate is None else bool(surrogate),
            is_linear=not isinstance(surrogate, str),
            intention=IS_CLIPPED if isinstance(surrogate, str) else "",
            meant=surrogate if callable(surrogate) else call if surrogate is False else None,
            converted=converted, forward=forward, original=obj,
            input_names=tuple(getattr(call, "input_names", names)),
        )  # fmt: skip
        try:
            # Before the verdict of any law: code that does not run is not audited.
            with trial.quiet(trial.dtype):
                run = trial.run(trial.given)
                run.gradients(trial.cotangents(run))
                finite = [np.isfinite(y).any() for y in run.arrays() if y.size]
                if finite and not any(finite):
                    raise RuleValueError(OUTSIDE)
        except Exception as error:
            failure = failure or error
        else:
            return with_seeds(trial, Seeds(home, *trial.code))
    assert failure is not None
    raise failure


# --- what judges compare --------------------------------------------------------------------------
def find_difference(
    found: Arrays, wanted: Arrays, tolerance: float = 0.0, noise: float = 0.0
) -> str:
    """Return where two lists of gradients differ most, "" if they agree, but for signs of zeros.

    Args:
        tolerance: the allowed difference, relative to the largest element of a gradient.
        noise: an absolute difference allowed in addition, where large terms cancel.
    """
    for n, (got, want) in enumerate(zip(found, wanted, strict=True)):
        if got is None or want is None:
            if (got is None) != (want is None):
                return f"argument {n} has {'no' if got is None else 'a'} gradient"
            continue
        if got.shape != want.shape:
            return f"argument {n}: shape {got.shape}, expected {want.shape}"
        # The floats of ml_dtypes have kind V; gradients of integers and bools are not compared.
        if got.dtype.kind not in "fV" and got.dtype.name != "bfloat16":
            continue
        a, b = got.astype(np.float64), want.astype(np.float64)
        sizes = np.abs(b[np.isfinite(b)])
        allowed = tolerance * (sizes.max(initial=0.0) + np.finfo(np.float64).tiny) + noise
        # Infinities of one sign are equal, NaN counts as equal to NaN.
        is_same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed)
        if not is_same.all():
            # NaN on one side only is the largest error.
            error = np.where(is_same, -1.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
            place = place_of_largest(error)
            return f"argument {n}{brackets(place)}: {a[place]:.9g}, expected {b[place]:.9g}"
    return ""


def as_output_difference(said: str) -> str:
    return f"the output differs: {said.replace('argument', 'output')}" if said else ""


def place_of_largest(error: Array) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(int(np.nanargmax(error)), error.shape)))


def where_different(a: Any, b: Any) -> Any:
    """Return where two arrays differ; NaN equals NaN."""
    return ~((a == b) | (np.isnan(a) & np.isnan(b)))


def scaled(arrays: Arrays, factor: float) -> Arrays:
    return [None if a is None else (a * a.dtype.type(factor)).astype(a.dtype) for a in arrays]


def added(*parts: Arrays) -> Arrays:
    """Return the sums of several lists of gradients; None where one has none."""
    pairs = zip(*parts, strict=True)
    return [None if any(g is None for g in each) else reduce(add, each) for each in pairs]


def with_element(arrays: Arrays, n: int, place: int, number: float) -> Arrays:
    copies = [a.copy() for a in arrays]
    copies[n].flat[place] = number
    return copies


def wave(array: Array, shift: int = 0) -> Array:
    """Return numbers in the shape of an array, no two alike: a function of their differences moves
    along them.
    """
    return np.cos(shift + np.arange(array.size)).reshape(array.shape)


# Relative steps: computed in float32, numbers miss the one and follow the other.
TINY_STEP, SMALL_STEP = 1e-12, 1e-3


def moved_by(array: Array, step: float) -> Array:
    return (array * (1 + step * wave(array))).astype(array.dtype)


def has_few_digits(here: Array, near: Array, far: Array) -> bool:
    """Return whether numbers stay after a TINY_STEP of what they are computed from, and most do not
    after a SMALL_STEP.
    """
    is_same = here is not None and np.array_equal(here, near)
    return is_same and bool(2 * np.count_nonzero(here != far) > np.count_nonzero(near))
