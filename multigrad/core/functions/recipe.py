"""`Recipe`: how a function with its own gradient is run and captured.

Every Function has one. Which groups of fields it fills depends on what the Function is made of:

                                    options  arguments  graphs  imported  opaque
    the user's own code                x
    a framework's custom gradient      x         x                 x
    a rule under an activation         x         x        x
    a module for another framework     x                  x
    a document                         x         x
    code of `xg.opaque`                x                  x                  x

What it records for one layout of arguments becomes a `Variant`, which also says what the function
does besides returning: updates in place, attributes, changed containers. A graph has no such
effects. On its own framework the function itself is run, with them; elsewhere they are left out (a
warning says so of updates, and captured code that reads such an attribute is refused there); inside
another capture they are done to the symbols there (`effects.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import DisprovedError, TraceError
from ..backend.contract import Backend
from ..ir.graph import Location
from ..lowering.function_graph import FunctionGraph
from ..support.lazy_modules import NEEDS_ENGINE, provided
from ..support.params import Fused
from ..support.records import record
from ..support.trees import optree
from ..trace.source import OWN
from .arguments import Layout

# --- recipes, and what they record ----------------------------------------------------------------
if TYPE_CHECKING:  # what the engine alone makes
    from ...engine.capture.values.oracle import Reach
    from ...engine.functions.calls.effects import Note, Update
    from ...engine.functions.calls.imported_gradients import ImportedGradient, OpaqueCalls, Pushed
    from ...engine.trace.code_trace import Assumption, CodeTrace

KEY = (0, 7)  # of the draws in a proof
INDEXED = frozenset(("getitem", "take"))  # ops whose constant index may lie outside the tensor
# The cotangents, structured like the outputs -> what the user's code returns.
Pull = Callable[..., Any]


@record(eq=True)
class Recorded:
    """What a recipe gives for one call on symbolic values.

    Attributes:
        outputs: any nesting of tensors.
        pull: maps cotangents, nested like the outputs, to gradients; None: the true derivative.
        first_order, keeps_output, second_order: see `FunctionGraph`.
        undifferentiable: outputs that carry no gradient.
        missing: maps an output to what backward gets if its cotangent is missing; None: zeros.
        takes_ctx: whether `pull` takes what torch calls a backward with, as `ctx=`.
        dirty: arguments that the code declares as updated in place (`mark_dirty` of torch).
        push: runs the author's own tangent rule; None: there is none, or no graph holds it.
        recomputes: whether backward may compute again, from the arguments, what forward kept.
    """

    outputs: Any
    pull: Pull | None
    first_order: bool = False
    keeps_output: bool = False
    undifferentiable: tuple[Any, ...] = ()
    missing: Callable[[Any], Any] | None = None
    second_order: Callable[[], bool] | bool = True
    takes_ctx: bool = False
    dirty: tuple[Any, ...] = ()
    push: Callable[[], Pushed | None] | None = None
    recomputes: bool = False


def no_refusals(layout: Layout) -> Mapping[str, str]:
    return {}


@record(eq=True)
class Options:
    """What the author of a function has chosen.

    Attributes:
        native: None: it runs as written if it cannot be captured; True: always; False: never.
        looks_at_values: whether it runs as written wherever values are known, unlike a graph.
        copies: see `xg.Capture`: whether code that writes into its arguments does so on copies.
        fused: whether its parts run as one kernel each; see `xg.activation`.
        residuals: what forward keeps for backward; see `Function.keeping`.
    """

    native: bool | None = None
    looks_at_values: bool = False
    copies: bool = False
    fused: Fused = "auto"
    residuals: str = "auto"


DEFAULTS = Options()


@record(eq=True)
class ArgumentRules:
    """How the arguments of a call are read, and what is refused of them.

    Attributes:
        lay_out_leaves: see `Recipe.lay_out`; None: by the signature.
        check: `check(backend, leaves)` checks the values of a call, whose kinds are known.
        refused: `refused(layout)` gives messages for refused derivatives, by the tensors' names.
    """

    lay_out_leaves: Callable[[inspect.Signature | None, Sequence[Any], Any], Layout] | None = None
    check: Callable[[Backend, Sequence[Any]], None] = lambda backend, leaves: None
    refused: Callable[[Layout], Mapping[str, str]] = no_refusals


@record(eq=True)
class GraphSource:
    """Where graphs come from, and what is known of them, if they are not captured from code.

    Attributes:
        capture: `capture(recipe, layout, facts, leaves)`; None: `Recipe.record` is run.
        prove: `prove(recipe, variant, leaves, is_call=)`; None: the code is compared.
        lower: `lower(graphs, backend)` lowers the backward alone for a proof, of a function that
            returns its one tensor: `(cotangent, leaves) -> gradient`; None: as for a call.
        note_native: see `Recipe.give_up`; None: as functions do.
        gives_like_input: whether there is one output, of the shape and dtype of the first tensor.
    """

    capture: Callable[..., Variant] | None = None
    prove: Callable[..., str] | None = None
    lower: Callable[[FunctionGraph, Backend], Callable[[Any, Sequence[Any]], Any]] | None = None
    note_native: Callable[[TraceError], TraceError | None] | None = None
    gives_like_input: bool = False


@record()
class Recipe:
    """How a function with a gradient of its own is run and captured: data, and a few functions.

    Attributes:
        name: for messages.
        run: `run(args, kwargs)` runs it as written, on a framework's tensors.
        record: `record(trace, args, kwargs)` runs it on symbols; None: `graphs.capture` has graphs.
        functions: the user's functions that it runs, the forward first; none of graphs.
        written_in: the library that it is written in, where the author says so; or
            `f(library of the call's tensors) -> library`; see `dialect`.
        signature: of its arguments; None: it is not known.
        is_derived: whether its gradient is the true derivative, of autodiff.
        noun: what it is, for messages: a "function", or a "rule", which is a backward pass.
        subject: what messages call it.
        title: the subject, made unique where two Functions of one rule occur.
        origin: what it was made of besides functions: a document, a class, a chain's parts, ...
        is_document: whether that is a document.
        copied: `copied(copy)` makes the recipe of copies of the objects that it calls; None: it
            calls none of the user's own.
        imported: the framework's own custom gradient that it is; None: it comes from no framework.
        opaque: how other frameworks call it, if nothing of it is captured; None: by its graphs.
    """

    name: str
    run: Callable[[tuple[Any, ...], dict[str, Any]], Recorded]
    record: Callable[[CodeTrace, tuple[Any, ...], dict[str, Any]], Recorded] | None = None
    functions: tuple[Any, ...] = ()
    written_in: str | Callable[[str | None], str] = ""
    signature: inspect.Signature | None = None
    is_derived: bool = False
    noun: str = "function"
    subject: str = ""
    title: str = ""
    origin: Any = None
    is_document: bool = False
    copied: Callable[[Callable[[Any], Any]], Recipe] | None = None
    options: Options = DEFAULTS
    arguments: ArgumentRules = ArgumentRules()
    graphs: GraphSource = GraphSource()
    imported: ImportedGradient | None = None
    opaque: OpaqueCalls | None = None

    def __post_init__(self) -> None:
        if not self.subject:
            object.__setattr__(self, "subject", f"{self.noun} {self.name!r}")
        if not self.title:
            object.__setattr__(self, "title", self.subject)

    def dialect(self, called: str | None = None) -> str:
        """Return the library that it is written in, "" where it is written for all.

        Args:
            called: the library of a call's tensors, which decides if the code names no library.
        """
        name = self.written_in if isinstance(self.written_in, str) else self.written_in(called)
        return "" if name == OWN else name

    def run_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the outputs that forward alone gives, for a framework's own autodiff to see."""
        if self.imported is None or self.imported.run_primal is None:
            return self.run(args, kwargs).outputs
        return self.imported.run_primal(args, kwargs)

    def lay_out(
        self, parameters: inspect.Signature | None, leaves: Sequence[Any], tree: Any
    ) -> Layout:
        """Return the layout of a call's leaves: which are tensors, numbers, or fixed."""
        read_leaves = self.arguments.lay_out_leaves or partial(read_layout, self.name)
        return read_leaves(parameters, leaves, tree)

    def give_up(self, error: TraceError) -> TraceError | None:
        """Return why it runs as written, for messages; raise that if it must not."""
        if self.options.native is False:
            raise error
        if self.graphs.note_native is not None:
            return self.graphs.note_native(error)
        return error.to_keep()


@provided
def read_layout(
    function: str, parameters: inspect.Signature | None, leaves: Sequence[Any], tree: Any
) -> Layout:
    """Return the layout of a call by its signature; of a rule its params are known."""
    raise TraceError(f"{function!r} is called with arguments that {NEEDS_ENGINE}")


@provided
def library_of(functions: Iterable[Any], said: str, called: str | None = None) -> str:
    """Return the library that functions are written in, "" where all are written for any.

    Their author says it (`said`), or else the names in the first that names one, or else the
    tensors that they are called with, or else, without a call, what their files import.
    """
    return said


def never_run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
    """Raise: `Recipe.run` of what runs by its graph alone."""
    raise NotImplementedError


@record()
class Variant:
    """A function captured for one layout of its arguments.

    Attributes:
        graphs: the tensors and the numbers of the layout are their inputs, in order.
        outputs: the nesting of the outputs.
        fixed: outputs that are no tensors, by position.
        facts: what was fixed for the capture.
        proofs: by the dtype of the first float tensor: "" where the graphs and the code agree, why
            that could not be found out, or the error that says that they do not.
        omissions: what its graphs leave out of the code, by kind; see `Trace.omissions`.
        weak: the positions of outputs whose dtype gives way to others', on its own framework.
        assumed: what it asserts of values.
        notes: attributes that it sets on tensors; its own framework runs the original for them too.
        updates: arguments that it updates in place, as only its own framework does.
        draws_apart: whether its draws take other keys than those of the code as written.
        lowered: what it was lowered to, by backend.
        places: where results lie in memory, as a proof has found: see `proof/memory.py`.
        reach: tells in which 16-bit dtypes this variant is valid, too; None: not known.
        reads_names: whether its code has asked what names mean in its library.
        numbers: functions that give the values of the last inputs, numbers that its code reads and
            that keep changing. Only the variant of a call has any.
    """

    graphs: FunctionGraph
    layout: Layout
    outputs: Any
    fixed: Mapping[int, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    proofs: dict[str, str | DisprovedError] = field(default_factory=dict)
    omissions: Mapping[str, str] = field(default_factory=dict)
    weak: tuple[int, ...] = ()
    assumed: tuple[Assumption, ...] = ()
    notes: tuple[Note, ...] = ()
    updates: tuple[Update, ...] = ()
    draws_apart: bool = False
    lowered: dict[str, Any] = field(default_factory=dict)
    reads_names: bool = False
    places: dict[Any, Any] = field(default_factory=dict)
    reach: Reach | None = None
    numbers: tuple[Callable[[], float], ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether its graphs are all that its code does, as for plain rules; if not, the engine's
        `decide` says how a call runs.
        """
        return not (self.omissions or self.updates or self.notes)

    @property
    def has_index(self) -> bool:
        """Whether its forward has a constant index, which may lie outside the tensor of a call."""
        return any(op.name in INDEXED for op in self.graphs.forward.ops)

    def laid_out(self, layout: Layout) -> Variant:
        """Return this variant with another layout of the same key."""
        return self if self.layout is layout else replace(self, layout=layout)

    def numbers_now(self) -> dict[str, float]:
        """Return the present values of `numbers`, by the names of these inputs."""
        names = self.graphs.params[len(self.graphs.params) - len(self.numbers) :]
        return dict(zip(names, (find() for find in self.numbers), strict=True))


def assemble(variant: Variant, values: Sequence[Any]) -> Any:
    """Return the outputs of a call, nested, of those that its graphs give."""
    remaining = iter(values)
    count = variant.outputs.num_leaves
    flat = [variant.fixed[i] if i in variant.fixed else next(remaining) for i in range(count)]
    return optree.tree_unflatten(variant.outputs, flat)


@dataclass(slots=True, eq=False)
class Findings:
    """What captures of a function have found until now, which equal functions share.

    Attributes:
        variants: the graphs, by layout and facts.
        facts: the names of the facts that the code has asked for; they only grow.
        places: the lines that asked for them, where known.
        uncaptured: the layouts of calls that ran as written, as its code looks at values.
        open_forms: by layout, those of `known_forms.py`.
    """

    variants: dict[Any, Variant] = field(default_factory=dict)
    facts: frozenset[str] = frozenset()
    places: dict[str, Location] = field(default_factory=dict)
    uncaptured: dict[Any, Layout] = field(default_factory=dict)
    open_forms: dict[Any, Any] = field(default_factory=dict)


# --- why a function could not be captured; it then runs as written, and the engine warns ----------
class NotCaptured(Exception):
    """A function cannot be captured, or its graph does not serve.

    Attributes:
        error: says why; a copy without its traceback, whose frames would keep the call's tensors.
        kinds: of what a graph would leave out; see `Trace.omissions`.
    """

    def __init__(self, error: TraceError, kinds: Iterable[str] = ()) -> None:
        super().__init__(str(error))
        self.error = error.to_keep()
        self.error.__cause__ = error.__cause__
        self.kinds = frozenset(kinds)

    def with_cause(self) -> TraceError:
        """Return the error, to be raised with what this one was raised from as its cause."""
        self.error.__cause__ = self.__cause__
        return self.error


def defined_at(functions: Iterable[object]) -> Location | None:
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is not None:
            return Location(code.co_filename, code.co_firstlineno, "")
    return None


@provided
def warn_native(functions: Iterable[Any], error: TraceError) -> None:
    """Warn once, at the line that cannot be captured, that a rule runs as written."""


@provided
def warn_disproved(error: DisprovedError, module: str) -> None:
    """Warn that a function runs as written because its graph computes something else."""
