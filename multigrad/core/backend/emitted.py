"""Functions prepared for one backend: straight-line code and what `render` needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from .. import ops
from ..ir.graph import Graph, Node
from ..ir.op import T, Type
from ..support.params import Fused
from ..support.records import record

Source: TypeAlias = str
Function: TypeAlias = Callable[..., Any]
Vjp: TypeAlias = Callable[[Function, Any], tuple[Any, Function]]


@record(eq=True)
class Body:
    """Straight-line code: `lines`, then the expressions `results`.

    `parameters` are the graph's inputs, `reads` those among them that the code mentions.
    `elementwise`: each element of a result depends on that element of the inputs alone.
    """

    parameters: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    reads: frozenset[str]
    elementwise: bool

    @property
    def result(self) -> str:
        """The results, separated by commas: the only one, or the elements of a tuple."""
        return ", ".join(self.results)

    def indented(self, spaces: int) -> str:
        """Return the lines, each ended, indented for a template."""
        return "".join([f"{' ' * spaces}{line}\n" for line in self.lines])


@dataclass(slots=True, eq=False, repr=False)
class Prepared:
    """What fast code needs from the params, by a function `prepare(wrap, *params) -> values`."""

    # Computed once instead of in each call: a number that meets a tensor costs a call of torch
    # 1.1 us more than a tensor without dimensions. `names`, in order, have their expressions.
    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[Node, bool], str] = field(default_factory=dict)

    def name(self, node: Node, text: str, wraps: bool, fresh: Callable[[str], str]) -> str:
        """Return the name of a static scalar as a number, or (`wraps`) as a tensor."""
        # A param itself needs no new name.
        if node.op is ops.INPUT and not wraps:
            return self.names.setdefault(text, text)
        wrapper = self._known.get((node, wraps))
        if wrapper is None:
            wrapper = self._known[node, wraps] = fresh("n")
            self.names[wrapper] = f"wrap({text})" if wraps else text
        return wrapper


@record()
class Code:
    """The straight-line code of a pair of graphs.

    Attributes:
        forward: `*inputs, *params, [key] -> *outputs`.
        keep: `*inputs, *outputs, *params -> the residuals that are computed`, in the order of
            `Residuals.computed`.
        backward: `*cotangents, *residuals, *params, [key] -> *gradients`, those of `Names.wrt`.
        prepared: what the code needs of the params, where it is computed before; a rule's forward
            needs nothing.
        whole: forward and `keep` in one, `*inputs, *params, [key] -> *outputs, *computed`, where a
            loop gives what both need: then `keep` gives nothing.
    """

    forward: Body
    keep: Body
    backward: Body
    prepared: Prepared | None = None
    whole: Body | None = None


@record()
class Origin:
    """What was emitted, and for what kind of caller.

    Attributes:
        name: "rule under forward".
        is_rule: whether backward is a rule, which params reach and forward does not.
        compiled: whether a compiler reads the code: then `fast` overwrites nothing.
        fused: whether the graphs run as one kernel each, see `xg.function`.
        graphs: forward, keep and backward, for a backend that writes kernels of its own; None where
            a loop computes what the first two need.
        input_types: the types of the inputs; None for one that neither graph reads.
        output_types: the types of the outputs.
        gradient_types: the types of the gradients of `Names.wrt`.
        casts: whether the framework may choose another dtype for an op, as under autocast. What
            backward computes again has to be what forward computed, so the code forbids it.
    """

    name: str
    is_rule: bool = False
    compiled: bool = False
    fused: Fused = "auto"
    graphs: tuple[Graph, Graph, Graph] | None = None
    input_types: tuple[Type | None, ...] = ()
    output_types: tuple[Type, ...] = ()
    gradient_types: tuple[Type, ...] = ()
    casts: bool = False


@record()
class Names:
    """The names in the code: what a call takes and returns.

    Attributes:
        identifier: a Python name for the class or function.
        params: the values that a call takes after the tensors: run-time params, then "key" if
            random.
        defaults: values for params where the object is for people to call; "key" is then drawn.
        inputs: the tensors that a call takes; a rule's is "tin".
        outputs: how the code of keep and backward refers to the outputs.
        cotangents: one for each output.
        wrt: the inputs that get a gradient, in the order of backward's results; the others get
            None.
        tangents: one for each input.
    """

    identifier: str
    params: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("tin",)
    outputs: tuple[str, ...] = ("output",)
    cotangents: tuple[str, ...] = ("grad_out",)
    wrt: tuple[str, ...] = ("tin",)
    tangents: tuple[str, ...] = ("tangent",)


@record()
class Residuals:
    """What forward keeps for backward.

    Attributes:
        names: an input's, an output's, or one of `computed`.
        computed: the residuals that `keep` computes.
        histories: the residuals that fast code keeps in addition, where it has a `whole`.
        likes: the residuals of which backward reads the shape and dtype alone, so that a backend
            need not keep the tensor.
        late: the inputs that fast code does not read, to which others may write before backward.
        shapes: the inputs whose shape backward is given as `shape_of_<input>`, to compare a
            gradient with.
    """

    names: tuple[str, ...]
    computed: tuple[str, ...]
    histories: tuple[str, ...] = ()
    likes: tuple[str, ...] = ()
    late: tuple[str, ...] = field(default=(), kw_only=True)
    shapes: tuple[str, ...] = ()


@record()
class Aliasing:
    """Which outputs may share memory, by position.

    Attributes:
        passed: those that may be an input itself, as of a cast to its dtype.
        viewed: always empty, for renderers of 1.0: graphs say themselves what is a view.
        shared: those that may be the same tensor as an output before them.
        views: those that may be a view of an input, or an input itself.
    """

    passed: tuple[int, ...] = ()
    viewed: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    views: tuple[int, ...] = ()


@record()
class Checks:
    """The names of functions in `namespace` that check a call; "" for none.

    Attributes:
        shape: applied to a rule's result and its cotangent, compares their shapes.
        gradients: for each of `Names.wrt`, applied to (gradient, shape).
        derivative: called with nothing before a derivative is taken of backward, refuses it.
        second_derivative: applied to each gradient, refuses a derivative of it.
        arguments: where people call the object, by param the one that refuses a tensor there that
            asks for a gradient, since it would get none.
        facts: where people call the object, by argument the one that refuses another shape, dtype
            or number than the code was captured for.
    """

    shape: str = ""
    gradients: tuple[str, ...] = ("",)
    derivative: str = ""
    second_derivative: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


@record()
class Derivative:
    """How the object is differentiated besides by its backward.

    Attributes:
        tangent: code of `*tangents of wrt, *inputs, *outputs, *params, [key] -> the tangents of the
            outputs that carry a gradient`, where forward mode is asked for.
        dual: returns the same lowered with forward mode, made when it is first asked for; raises
            UnsupportedOp where there is none. None where this has it, or the backend has none.
        pushes: whether there is a forward mode: backward is linear, or the author gives the
            tangents.
        linear: whether backward is linear in the cotangents.
        keeps_output: whether the author keeps outputs for backward, which differentiates them by
            this gradient again.
        undifferentiable: the positions of outputs that carry no gradient (bools and integers among
            them).
    """

    tangent: Body | None = None
    dual: Callable[[], Attached] | None = None
    pushes: bool = False
    linear: bool = False
    keeps_output: bool = False
    undifferentiable: tuple[int, ...] = ()


@record()
class Emitted:
    """A pair of graphs prepared for one backend, which `render` turns into source.

    Attributes:
        origin: what was emitted, and for what kind of caller.
        names: the names in the code.
        code: code that may run anywhere: under transforms, and where a derivative is taken of it.
        fast: code for where neither is the case; it may write over its own temporaries.
        residuals: what forward keeps for backward.
        aliasing: which outputs may share memory.
        checks: what checks a call.
        derivative: forward mode, and what is known of the derivative.
    """

    origin: Origin
    names: Names
    code: Code
    fast: Code
    residuals: Residuals
    aliasing: Aliasing = Aliasing()
    checks: Checks = Checks()
    derivative: Derivative = Derivative()

    @property
    def single(self) -> bool:
        """Whether a call returns the only output itself; else a tuple."""
        return len(self.names.cotangents) == 1

    def returned(self, words: Sequence[str]) -> str:
        """Return words for the outputs as a call returns these: the only one, or a tuple."""
        return words[0] if self.single else tuple_of(words)

    @property
    def carries(self) -> tuple[bool, ...]:
        """For each output, whether it carries a gradient."""
        count = range(len(self.names.cotangents))
        return tuple(i not in self.derivative.undifferentiable for i in count)

    @property
    def saved(self) -> tuple[str, ...]:
        """The inputs and outputs that backward or the code of the tangents reads."""
        tangent = frozenset() if self.derivative.tangent is None else self.derivative.tangent.reads
        reads = {*self.residuals.names, *tangent}
        return tuple([name for name in (*self.names.inputs, *self.names.outputs) if name in reads])

    def pushed(self, missing: str = "None") -> tuple[str, ...]:
        """Return for each output the expression of its tangent, `missing` for one that carries no
        gradient.
        """
        assert self.derivative.tangent is not None
        results = iter(self.derivative.tangent.results)
        return tuple([next(results) if carries else missing for carries in self.carries])

    @property
    def forward(self) -> Body:
        """Code of `tin -> output` that may run anywhere."""
        return self.code.forward

    @property
    def keep(self) -> Body:
        """Code of the computed residuals that may run anywhere."""
        return self.code.keep

    @property
    def backward(self) -> Body:
        """Code of backward that may run anywhere."""
        return self.code.backward

    @property
    def kept(self) -> tuple[str, ...]:
        """The expressions of the residuals where `keep` has run, in their order."""
        whole = self.code.whole
        results = (
            self.code.keep.results if whole is None else whole.results[len(self.names.outputs) :]
        )
        values = iter(results)
        return tuple(
            next(values) if r in self.residuals.computed else r for r in self.residuals.names
        )

    @property
    def read_params(self) -> tuple[str, ...]:
        """The params that backward reads: what it needs besides the residuals."""
        return tuple(filter(self.code.backward.reads.__contains__, self.names.params))

    @property
    def forward_params(self) -> tuple[str, ...]:
        """The params that forward reads."""
        return tuple(filter(self.code.forward.reads.__contains__, self.names.params))

    @property
    def signature(self) -> str:
        """The params as they follow the tensors in a parameter list: ", width=1.0, key=None"."""
        words: list[str] = []
        for name in self.names.params:
            follows = bool(words) and "=" in words[-1]
            if name in self.names.defaults or follows:
                words.append(f", {name}={_literal(self.names.defaults.get(name))}")
            else:
                words.append(f", {name}")
        return "".join(words)

    @property
    def arguments(self) -> str:
        """The params as they follow the tensors in a call: ", width, key"."""
        return ", ".join(("", *self.names.params))

    @property
    def check_arguments(self) -> tuple[str, ...]:
        """The lines by which what people call refuses arguments that it is not made for."""
        checks = (*self.checks.arguments.items(), *self.checks.facts.items())
        return tuple([f"{name} = {check}({name})" for name, check in checks])

    @property
    def draws(self) -> bool:
        """Whether a missing key is drawn from the framework's generator (name `draw_key`)."""
        return "key" in self.names.params and bool(self.names.defaults)

    def gradients(self, backward: Body) -> tuple[str, ...]:
        """Return for each input the expression of its gradient, checked where due, or "None"."""
        if self.checks.shape:
            return (self._once(f"{self.checks.shape}({backward.result}, grad_out)"),)
        gradients = dict.fromkeys(self.names.inputs, "None")
        rows = zip(self.names.wrt, self.checks.gradients, backward.results, strict=True)
        for name, check, result in rows:
            checked = f"{check}({result}, shape_of_{name})" if check else result
            gradients[name] = self._once(checked)
        return tuple(gradients.values())

    def _once(self, gradient: str) -> str:
        return (
            f"{self.checks.second_derivative}({gradient})"
            if self.checks.second_derivative
            else gradient
        )


class Made(NamedTuple):
    """A value that a file creates by calling a function, because it cannot be written out."""

    factory: Callable[..., Any]
    args: tuple[Any, ...]


def tuple_of(words: Iterable[str]) -> str:
    """Return the words as the source of a tuple."""
    terms = tuple(words)
    return f"({terms[0]},)" if len(terms) == 1 else f"({', '.join(terms)})"


def find_like(types: Sequence[Type | None]) -> int | None:
    """Return the position of the first tensor of the dtype T, whose dtype numbers take."""
    return next((i for i, t in enumerate(types) if t is not None and t.dtype == T), None)


def _literal(value: Any) -> str:
    # inf and nan have no literal in Python.
    is_odd = isinstance(value, float) and not math.isfinite(value)
    return f"float({str(value)!r})" if is_odd else repr(value)


@dataclass(slots=True, eq=False, repr=False)
class Attached:
    """The result of lowering: the native object, its source, and how to call it."""

    native: Any
    source: str
    call: Callable[..., Any]
    emitted: Emitted | None = None
