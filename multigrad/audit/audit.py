"""`xg.audit`: a test of a custom gradient against the laws, and its report; `xg.check`, which asks
for the derivative alone.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from ..core import ops
from ..core.backend.discovery import backend_of, load_backend
from ..core.backend.values import owner_of
from ..core.ir.op import FLOATS, dtype_name
from ..core.lowering.derivatives import is_linear
from ..core.lowering.function_graph import FunctionGraph
from ..core.ops.numerics import ignoring_warnings
from ..core.passes.simplify import is_elementwise
from ..core.rules.activation import Activation
from ..core.rules.rule import Rule
from ..core.rules.signature import called_method, name_of
from ..core.support.trees import Tensor, optree
from ..engine.capture.user_code.object_state import FilledCopy, ObjectState, held_by, read_state
from ..engine.functions.calls.arguments import positional_names, unwrap
from ..engine.functions.calls.parameters import signature_of
from ..engine.functions.decision import SHOWN
from ..engine.functions.function import Function
from ..engine.functions.known_forms import find_variant
from ..engine.functions.object_function import owner_of_method
from ..errors import RuleTypeError, suggest
from ..look.check import CheckReport, compare
from ..look.convert import brief
from ..look.source import captured_pair
from ..look.subject import (
    Report,
    as_array,
    find_original,
    made_of_pair,
    make_inputs,
    read_arguments,
    read_inputs,
    subject_of,
)
from . import consistency, derivatives, modes, sizes, unusual_inputs
from .intention import recognize, stated_intention
from .seeds import Seeds
from .sizes import lines_to_copy, smallest
from .trial import CLIPS, Law, NotApplicable, Surrogate, Trial, trial_of

REPEATABLE = "repeatable"
DERIVATIVE = "derivative"
# What to write, by the law, where a gradient is meant to break it, or is to keep it.
HINTS = {
    DERIVATIVE: (
        "; if it is meant to differ, say so: surrogate=True in code, --surrogate on the command "
        "line, or SURROGATE = True in the module"
    ),
    "linear": (
        "; if it clips or normalizes its cotangent on purpose, say so: "
        f'surrogate="{CLIPS}" in code, or SURROGATE = {{NAME: "{CLIPS}"}} in the module'
    ),
    "second derivative": (
        "; save the inputs rather than what the forward computes from them, or refuse: a backward "
        "under torch's @once_differentiable raises an error"
    ),
}
LONGEST = 0.3  # seconds of a search for smaller inputs
SLOW = ("threads", "compiled", "compiled transforms")  # one try takes longer than that
KEPT, BROKEN, REFUSED, NOT_APPLICABLE = "kept", "broken", "refused", "does not apply"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one law.

    Attributes:
        law: its name.
        state: "kept", "broken", "refused" (the code raises, which says so) or "does not apply".
        reason: what was observed, or why the law does not apply; a remark or "" if it is kept.
        sentence, matters: those of the law.
    """

    law: str
    state: str
    reason: str
    sentence: str
    matters: str

    def __str__(self) -> str:
        return f"{self.law}: {self.state}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True, slots=True, repr=False)
class AuditReport(Report):
    """What `xg.audit` found; prints as a table.

    Examples:
        >>> halved = xg.function(lambda x: x * x, lambda grad_out, x: grad_out * x)
        >>> report = xg.audit(halved, np.array([1.0, 2.0]), laws=["derivative", "zero"])
        >>> [finding.law for finding in report.findings]
        ['derivative']
        >>> xg.audit(halved, np.array([1.0, 2.0]), surrogate=True).ok  # as it is meant to differ
        True

    Attributes:
        name: of what was audited.
        home: the framework that it ran on.
        laws: what came of each law.
        problem: why it does not run at all, and then no law was asked, or not to the end.
        not_reached: the laws that were not asked, as it did not end within its limit.
        inputs: what it was called with, tensors by dtype and shape.
        source: where the command has the inputs from; "" where they were given.
        smallest: the smallest inputs found that break the first law that is broken; "" if none.
        reproducer: lines to copy that show that it is broken.
    """

    name: str
    home: str
    laws: tuple[Finding, ...]
    problem: str = ""
    inputs: str = ""
    source: str = ""
    smallest: str = ""
    reproducer: tuple[str, ...] = ()
    not_reached: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The laws that are broken."""
        return tuple(finding for finding in self.laws if finding.state == BROKEN)

    @property
    def ok(self) -> bool:
        """Whether it runs, and no law is broken."""
        return not self.problem and not self.findings

    def __str__(self) -> str:
        if self.problem and not self.laws:
            return f"{self.name} does not run: {self.problem}"
        count = sum(finding.state == KEPT for finding in self.laws)
        inputs = f" with {self.inputs}" if self.inputs else ""
        counts = [f"{count} laws kept", f"{len(self.findings)} broken"]
        counts += [f"{len(self.not_reached)} not reached"] * bool(self.not_reached)
        lines = [f"{self.name} on {self.home}{inputs}: {', '.join(counts)}"]
        if self.problem:
            lines.append(f"  {self.problem}; not reached: {', '.join(self.not_reached)}")
        if self.source:
            lines.append(f"  inputs: {self.source}")
        for n, finding in enumerate(self.findings):
            lines.append(f"  {finding}")
            lines.append(f"    {finding.sentence} Otherwise {finding.matters}.")
            if n == 0 and self.smallest:
                clause = f"broken by inputs as small as these: {self.smallest}"
                lines.append(f"  {finding.law} is {clause}")
        inapplicable = [finding for finding in self.laws if finding.state == NOT_APPLICABLE]
        # That the derivative is not compared is to be read; the other reasons are in `laws`.
        exceptions = [each for each in inapplicable if each.law == DERIVATIVE]
        for finding in self.laws:
            if (finding.reason and finding.state in (REFUSED, KEPT)) or finding in exceptions:
                lines.append(f"  {finding}")
        if names := [finding.law for finding in inapplicable if finding not in exceptions]:
            lines.append(f"  {NOT_APPLICABLE}: {', '.join(names)}")
        # Not indented, or Python would refuse what is pasted.
        if self.reproducer:
            lines += [f"  to see that {self.findings[0].law} is broken:", *self.reproducer]
        return "\n".join(lines)


def audit(
    fn: Any,
    *inputs: Any,
    laws: Iterable[str] | None = None,
    surrogate: bool | str | Callable[..., Any] | None = None,
) -> AuditReport:
    """Test a custom gradient against the laws of gradients, in its own framework.

    Nothing is converted: a `torch.autograd.Function`, a function decorated with `jax.custom_vjp`,
    `jax.custom_jvp` or `tf.custom_gradient`, any function of tensors, and rules and Functions of
    multigrad run unchanged. So does a pair of plain functions, a forward and a backward, as for
    `xg.function`. For a module or a layer, the gradients of its parameters are audited too.

    Examples:
        >>> import torch
        >>> class Square(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...
        ...     @staticmethod
        ...     def backward(ctx, grad_out):
        ...         (x,) = ctx.saved_tensors
        ...         return 2.0 * x  # grad_out is forgotten
        >>> report = xg.audit(Square, torch.tensor([1.0, -2.0]))
        >>> report.ok, [finding.law for finding in report.findings][:3]
        (False, ['derivative', 'linear', 'scale'])

    Args:
        fn: what is audited.
        *inputs: what it is called with; arrays and any framework's tensors stand for tensors.
        laws: the names of the laws to test; None: all.
        surrogate: whether its gradient is meant to differ from the derivative; None: what
            `SURROGATE` in its class or module says; else a rule under an activation is, whatever
            has a flat forward, and what its name or its numbers show to be straight-through, a
            reversal or a scaling. A function of the same arguments: it is meant to be the
            derivative of that. "cotangent": it changes the cotangent, by clipping it for
            instance, and is neither the derivative nor linear.

    Raises:
        RuleTypeError: fn is not callable, there is no tensor among the inputs, a law has another
            name, or `surrogate` is none of these.
    """
    return audit_telling(lambda report: None, fn, inputs, laws, surrogate)


def audit_telling(
    tell: Callable[[AuditReport], object],
    fn: Any,
    inputs: Sequence[Any],
    laws: Iterable[str] | None = None,
    surrogate: Surrogate = None,
) -> AuditReport:
    """Audit as `audit` does, and tell what is known after each law: the next one may not end."""
    chosen_laws = choose_laws(laws)
    is_word = isinstance(surrogate, bool | str | None) and surrogate in (None, True, False, CLIPS)
    if not (is_word or callable(surrogate)):
        raise RuleTypeError(
            f'surrogate is True, False, "{CLIPS}" or the function whose derivative is meant, got '
            f"{surrogate!r}"
        )
    with Seeds().kept():
        report = _audit(fn, inputs, chosen_laws, surrogate, tell)
        if not report.findings:
            return report
        law = report.findings[0].law

        def breaks(candidate: Sequence[Any]) -> bool:
            try:
                return bool(_audit(fn, candidate, choose_laws([law]), surrogate).findings)
            except RuleTypeError:
                return False

        best = smallest(inputs, breaks, 0.0 if law in SLOW else LONGEST)
    is_smaller = any(a is not b for a, b in zip(best, map(as_array, inputs), strict=True))
    return replace(
        report,
        smallest=", ".join(map(repr, best)) if law not in SLOW and is_smaller else "",
        reproducer=lines_to_copy(fn, report.home, law, best, surrogate),
    )


def _audit(
    fn: Any,
    inputs: Sequence[Any],
    laws: Sequence[Law],
    surrogate: Surrogate,
    tell: Callable[[AuditReport], object] = bool,
) -> AuditReport:
    try:
        trial, target = trial_as_intended(fn, inputs, surrogate)
    # The caller's own mistake, not a fault of the audited code: raised, not reported.
    except RuleTypeError:
        raise
    except Exception as error:
        hint = "" if read_arguments(inputs).arrays else "; no tensor is among its inputs"
        return AuditReport(name_of(fn), "", (), problem=brief(error) + hint)
    if not trial.floats:
        raise RuleTypeError(f"{trial.name} got no float tensor to be audited with; pass arrays")
    texts = [
        f"{each.dtype}[{', '.join(map(str, each.shape))}]"
        if isinstance(each, np.ndarray)
        else repr(each)[:40]
        for each in trial.arguments.leaves
    ]
    first = trial.input_count  # of the parameters
    for place, name in zip(trial.arguments.places[first:], trial.names[first:], strict=True):
        texts[place] = f"{name} {texts[place]}"
    report = AuditReport(trial.name, trial.backend.name, (), inputs=", ".join(texts))
    names = [law.name for law in laws]
    with ignoring_warnings(), keeping_dtypes(target), trial.keeping_seeds():
        for n, law in enumerate(laws, 1):
            findings = (*report.laws, _test_law(target, trial, law))
            report = replace(report, laws=findings, not_reached=tuple(names[n:]))
            tell(report)
    return report


def trial_as_intended(
    fn: Any, inputs: Sequence[Any], surrogate: Surrogate = None
) -> tuple[Trial, Any]:
    """Return a trial that knows whether its gradient is meant to differ, as for `audit`, and what
    it calls.
    """
    with ignoring_warnings():
        target, all_inputs = open_up(fn, inputs)
        intention = stated_intention(fn, name_of(fn)) if surrogate is None else surrogate
        with keeping_dtypes(target):
            trial = trial_of(target, all_inputs, intention)
            if intention is None and not trial.is_surrogate:
                trial = recognize(trial, fn)
    return trial, target


def check(obj: str | Callable[..., Any], *inputs: Any, backend: str | None = None) -> CheckReport:
    """Compare a gradient with finite differences, or a surrogate with the true derivative.

    Examples:
        >>> report = xg.check(xg.activation("Tanh"), np.array([-1.0, 0.5]))
        >>> report.ok, report.max_error < 1e-9
        (True, True)
        >>> print(xg.check(xg.activation("Heaviside", rule="triangular"), np.array([-0.5, 0.25])))
        activation('Heaviside', rule='triangular') on numpy, float64
          the surrogate differs from the true derivative by at most 0.75 (2 elements)
          worst at x[1] = 0.25: gradient 0.75, expected 0
                    at    surrogate         true   difference
                  -0.5          0.5            0          0.5
                  0.25         0.75            0         0.75

    A Function is run in float64, and each element of its inputs moved by small steps to both sides.
    Where the differences do not settle, the function has a kink or a jump there: such elements are
    left out of the verdict, and counted. If `SURROGATE` in its class or module is a function, its
    gradient is compared with the derivative of that. Whatever else `xg.audit` takes for meant to
    differ passes where it is finite, and the report says why. An activation with a rule, or a rule
    (under Linear), is compared with the activation's true derivative: its gradient is meant to
    differ, so the report says by how much.

    Args:
        obj: an activation (also a module or layer), a rule or its name, or whatever else
            `xg.audit` takes.
        *inputs: tensors of one framework, or NumPy arrays; floats are taken in float64. Without
            any, a grid from -2 to 2 for a rule, and normal numbers of shape (4, 6) for each tensor
            of a Function.
        backend: where to run it; None: where the inputs come from.

    Raises:
        RuleError: obj is the name of no rule.
        RuleTypeError: it got no tensor, or does not run and got a list of numbers in place of one.
        TraceError: it cannot run on that backend.
    """
    subject = subject_of(obj)
    arrays = inputs or make_inputs(subject)
    data, named = read_inputs(subject, arrays), None if backend is None else load_backend(backend)
    meant = stated_intention(obj, name_of(obj))
    try:
        if callable(meant):
            subject = replace(subject, is_surrogate=False, meant=meant)
            named = named or trial_as_intended(obj, arrays)[0].backend
        report = compare(subject, data, named)
    except Exception as error:
        lists = (optree.tree_leaves(x) for x in inputs if type(x) is list)
        if not any(all(isinstance(n, int | float) for n in leaves) for leaves in lists):
            raise
        text = f"{subject.name} does not run with a list of numbers: {brief(error)}"
        raise RuleTypeError(f"{text}; for a tensor, give numpy.array(x)") from error
    if callable(meant):
        return replace(
            report, intention="compared with the derivative of the function in SURROGATE"
        )
    if report.ok or not report.compared or subject.is_surrogate:
        return report
    trial, _ = trial_as_intended(obj, arrays)
    if not trial.is_surrogate or trial.contradiction:
        return replace(report, intention=trial.named(trial.contradiction))
    as_surrogate = compare(replace(subject, is_surrogate=True), data, named)
    return replace(as_surrogate, intention=trial.intention or "SURROGATE says that it differs")


def choose_laws(names: Iterable[str] | None, but: Iterable[str] = ()) -> Sequence[Law]:
    """Return the laws of these names, None for all, but for some."""
    rows = {law.name: law for law in LAWS}
    names = [names] if isinstance(names, str) else names
    law_names, exceptions = list(rows if names is None else names), list(but)
    for name in (*law_names, *exceptions):
        if name not in rows:
            raise RuleTypeError(f"no law {name!r}{suggest(name, rows)} ({', '.join(rows)})")
    return [rows[name] for name in law_names if name not in exceptions]


def _test_law(target: Any, trial: Trial, law: Law) -> Finding:
    try:
        with trial.quiet():
            # The other laws compare two runs, which proves nothing if every run differs.
            if law.name != REPEATABLE and not trial.is_repeatable:
                raise NotApplicable(
                    f"it is not {REPEATABLE}: its numbers differ each time, whatever the seed"
                )
            message = law(trial)
            if message and (reason := excuse(trial, target, law.name)):
                raise NotApplicable(reason)
        # A `Remark` is false, as "" is, but has text.
        state, message = BROKEN if message else KEPT, trial.named(message)
    except NotApplicable as reason:
        state, message = NOT_APPLICABLE, str(reason)
    # `is_loud` laws let code refuse with an error; for the others an error breaks the law.
    except Exception as error:
        state, message = REFUSED if law.is_loud else BROKEN, f"it raises {brief(error)}"
    is_unstated = state == BROKEN and (trial.meant is None or trial.intention)
    hint = HINTS.get(law.name, "") if is_unstated else ""
    return Finding(law.name, state, message, law.sentence, law.matters + hint)


# --- what a rule or a Function of ours states in its graph ----------------------------------------
LINEAR = ("linear", "scale", "ones", "each output", "forward mode")


def excuse(trial: Trial, obj: Any, law: str) -> str:
    """Return the reason that exempts an object from a law, "" if neither its author nor its graph
    states one.
    """
    if law in LINEAR and not trial.is_linear:
        return trial.intention
    try:
        graphs = _graphs_of(obj)
    except Exception:  # of the user's code, too: no graph states nothing
        return ""
    if graphs is None:
        return ""
    if graphs.is_random:  # few draws may be alike twice
        return "it draws at random, as its graph says"
    if not graphs.is_rule:
        return ""
    if law in LINEAR and not is_linear(graphs.backward, graphs.cotangents):
        return "it is not linear in the cotangent, as its graph says, and meant to differ"
    if law in ("not finite", "sizes") and not is_elementwise(graphs.backward):
        return "its gradient is of all elements together, as its graph says"
    if law == "second derivative":
        if graphs.first_order:
            return "it is registered with first_order=True: nobody differentiates it again"
        if any(node.op is ops.STOP_GRADIENT for node in graphs.backward.nodes):
            return "it counts a number as a constant, by stop_gradient"
    return ""


def _graphs_of(obj: Any) -> FunctionGraph | None:
    inner = getattr(obj, "_activation", obj)  # of a module or layer
    inner = getattr(inner, "captured_form", inner)  # of what `override` returned
    if isinstance(inner, Function):
        # `is_rule` marks a gradient that is meant to differ from the derivative.
        return replace(find_variant(inner, SHOWN).graphs, is_rule=inner.is_surrogate)
    if isinstance(inner, str | Rule):
        inner = Activation("Linear", inner)
    if isinstance(inner, Activation):
        in_force = inner.in_force()
        return None if in_force is None else captured_pair(in_force, inner.forward)
    return None


# --- the laws, in the order of reports; each stands where it is judged ----------------------------
LAWS: tuple[Law, ...] = (
    consistency.judge_type,
    consistency.judge_repeatable,
    consistency.judge_seeded,
    derivatives.judge_derivative,
    consistency.judge_linear,
    consistency.judge_scale,
    consistency.judge_ones,
    consistency.judge_zero,
    consistency.judge_each_output,
    consistency.judge_each_input,
    consistency.judge_parameters,
    unusual_inputs.judge_strided_cotangent,
    unusual_inputs.judge_broadcast_cotangent,
    unusual_inputs.judge_strided_input,
    unusual_inputs.judge_broadcast_input,
    consistency.judge_twice,
    consistency.judge_written,
    consistency.judge_interleaved,
    consistency.judge_threads,
    consistency.judge_float16,
    consistency.judge_bfloat16,
    unusual_inputs.judge_far,
    unusual_inputs.judge_zeros,
    unusual_inputs.judge_not_finite,
    unusual_inputs.judge_edges,
    unusual_inputs.judge_empty,
    unusual_inputs.judge_no_axes,
    sizes.judge_sizes,
    derivatives.judge_second,
    modes.judge_batched,
    modes.judge_compiled,
    modes.judge_compiled_transforms,
    modes.judge_forward,
    modes.judge_checkpoint,
    modes.judge_autocast,
    modes.judge_bytes,
    modes.judge_saved,
)


# --- parameters of modules and layers as inputs of what is audited, after its own -----------------
def open_up(fn: Any, inputs: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Return the object to call and its inputs, which the parameters follow.

    A forward and a backward, as `xg.function` takes them, run as they are; the parameters of a
    module or a layer are added to its inputs.
    """
    fn = made_of_pair(fn)
    if isinstance(fn, type):
        original = find_original(fn)
        fn = fn if original.is_custom else original.call
    if not _is_model(fn):
        return fn, inputs
    if not getattr(fn, "built", True):
        fn(*inputs)  # its parameters are made by the first call
    state = read_state(fn)
    tensors, names = _trained(state)
    if not tensors:
        return fn, inputs
    shown_names = tuple(names[name] for name in sorted(tensors))
    return Opened(fn, state, len(inputs), shown_names), (*inputs, tensors)


def opened_model(parameters: Any) -> tuple[Callable[[Any], Any], Any, dict[str, str]]:
    """Return how to put tensors into a model, its trained tensors by name, and the names that its
    framework gives them, in its order. Tensors that are no model's are returned as they are.
    """
    if not _is_model(parameters):
        return lambda tensors: tensors, parameters, {}
    state = read_state(parameters)
    tensors, names = _trained(state)
    return Opened(parameters, state, 0).filled, tensors, names


def _trained(state: ObjectState) -> tuple[dict[str, Tensor], dict[str, str]]:
    owners = {name: owner for name, owner in state.tensors.items() if _is_trained(owner)}
    # A variable and the tensor inside it may both be listed: each number is audited once.
    ids = {id(held_by(owner)) for owner in owners.values() if held_by(owner) is not owner}
    tensors = {name: held_by(owner) for name, owner in owners.items() if id(owner) not in ids}
    paths = {name: getattr(owners[name], "path", name) for name in tensors}  # Keras's own names
    return tensors, paths


@contextmanager
def keeping_dtypes(fn: Any) -> Iterator[None]:
    """Switch Keras's autocast off, so that layers compute in the dtype of their inputs."""
    flatten = getattr(fn.owner, "_flatten_layers", None) if isinstance(fn, Opened) else None
    layers = [each for each in (flatten() if flatten else ()) if each.autocast]
    try:
        for layer in layers:
            layer.autocast = False
        yield
    finally:
        for layer in layers:
            layer.autocast = True


def _is_model(fn: Any) -> TypeGuard[Callable[..., Any]]:
    is_object = callable(fn) and not isinstance(fn, Function | type | types.FunctionType)
    return is_object and owner_of_method(fn) is fn


def _is_trained(tensor: Any) -> bool:
    is_float = dtype_name(held_by(tensor).dtype) in FLOATS
    # torch says `requires_grad`, Keras `trainable`; a tensor with neither counts as trained.
    flags = (getattr(tensor, name, True) for name in ("requires_grad", "trainable"))
    return is_float and all(flag is not False for flag in flags)


class Opened:
    """A module or a layer as a function of its inputs and of its trained tensors, by name.

    Its other tensors, such as running means, are cast to the dtype of the trained ones.
    """

    def __init__(
        self, owner: Any, state: ObjectState, input_count: int, names: tuple[str, ...] = ()
    ) -> None:
        self.owner, self.state, self.home_of_tensors = owner, state, state.home
        self.input_count, self.parameter_names = input_count, names
        signature = signature_of(called_method(owner))
        self.input_names = positional_names(signature)[:input_count]
        self.__name__ = name_of(owner)
        self.rest = {name: x for name, x in state.tensors.items() if not _is_trained(x)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs, tensors = args[: self.input_count], args[self.input_count]
        return self.filled(tensors)(*inputs, **kwargs)

    def filled(self, held: dict[str, Tensor]) -> Any:
        dtype = next(x.dtype for x in optree.tree_leaves(held) if owner_of(x) is not None)
        buffers = {name: _with_dtype(held_by(x), dtype) for name, x in self.rest.items()}
        return FilledCopy(self.owner, self.state, {**buffers, **held}).object


def _with_dtype(tensor: Tensor, dtype: Any) -> Tensor:
    if dtype_name(tensor.dtype) not in FLOATS:
        return tensor
    backend = backend_of(unwrap(tensor))
    return backend.kernels.rows[ops.CAST](tensor, dtype=dtype)
