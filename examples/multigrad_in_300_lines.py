"""multigrad in 300 lines: how a gradient, written once, comes to run in NumPy and in PyTorch.

Names are those of `multigrad/`; titles say which files do the same there, and what is beyond.

    rule            grad_out, tin -> grad_in: a function that is to be an activation's backward
      │ record      it runs once, on symbols; each of its operations becomes a node of a graph
    Function        a forward and a backward graph
      │ residuals   the fewest bytes that forward must keep for backward
      │ emit        straight-line source
      │ attach      a torch.autograd.Function, or a function of arrays and its pullback
      │ prove       the numbers are those of the rule as it is written
"""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Tensor = Any  # an array or a tensor
Code = Callable[..., Any]
TENSOR, MASK, NUMBER = "tensor", "mask", "number"  # types of values; a number is a Python float


# --- Ops: core/ops. Beyond: derivatives and where they are smooth, attributes, shapes, dtypes -----
@dataclass(frozen=True, eq=False)
class Op:
    """A row: the NumPy function that says what it means, by a name that torch has, too."""

    numpy: Any = None
    symbol: str = ""  # Python's operator
    gives: str = TENSOR  # of numbers alone, it gives a number


INPUT, PARAM, CONST, CAST = Op(), Op(gives=NUMBER), Op(gives=NUMBER), Op()
ADD, SUB, MUL, DIV = Op(np.add, "+"), Op(np.subtract, "-"), Op(np.multiply, "*"), Op(np.divide, "/")
LT, LE = Op(np.less, "<", MASK), Op(np.less_equal, "<=", MASK)
GT, GE = Op(np.greater, ">", MASK), Op(np.greater_equal, ">=", MASK)
AND, NEG = Op(np.bitwise_and, "&", MASK), Op(np.negative)
OPS = {op.numpy: op for op in (ADD, SUB, MUL, DIV, LT, LE, GT, GE, AND, NEG)}
OPS |= {f: Op(f) for f in (np.abs, np.exp, np.tanh, np.sqrt, np.maximum, np.minimum)}


# --- Graphs: core/ir/graph.py, core/passes/simplify.py. Beyond: loops, a table of rewrites --------
@dataclass(frozen=True, eq=False)
class Node:
    """One operation. Only `make_node` makes it, so that equal ones are one object."""

    op: Op
    operands: tuple[Node, ...]
    value: str  # an input's name, a constant's digits
    type: str


@functools.cache
def make_node(op: Op, *operands: Node, value: str = "") -> Node:
    of_numbers = operands and all(node.type == NUMBER for node in operands)
    return Node(op, operands, value, NUMBER if of_numbers else op.gives)


def constant(number: Any) -> Node:
    return make_node(CONST, value=repr(float(number)))


@dataclass(frozen=True)
class Graph:
    """A pure function. No code in it is dead: its nodes are those that the output needs."""

    inputs: Sequence[Node]
    output: Node


def walk(nodes: Sequence[Node], stop: Collection[Node] = (), order: Any = None) -> list[Node]:
    """Return nodes and all that they need, operands first; nothing below the nodes in `stop`."""
    order = {} if order is None else order
    for node in nodes:
        if node not in order:
            walk(() if node in stop else node.operands, stop, order)
            order[node] = None
    return [*order]


def simplify(node: Node) -> Node:
    """Return less with the same bits: x for x * 1.0, not for x + 0.0, which differs for -0.0."""
    first, last = node.operands[0], node.operands[-1]
    if all(operand.op is CONST for operand in node.operands):
        return constant(node.op.numpy(*[np.float64(operand.value) for operand in node.operands]))
    if node.op in (MUL, DIV) and last is constant(1.0):
        return first
    return first.operands[0] if node.op is first.op is NEG else node


# --- Symbols: core/trace/trace.py, core/functions/plain.py. Beyond: code of torch, JAX, TensorFlow
# and Keras, unchanged (engine/capture/), which may branch on values and change tensors in place ---
@dataclass(frozen=True)
class Trace:
    """One recording in progress."""

    name: str

    def apply(self, op: Op, *operands: Any) -> Value:
        nodes = [x.node if isinstance(x, Value) else constant(x) for x in operands]
        if op is not AND:
            nodes = [make_node(CAST, node) if node.type == MASK else node for node in nodes]
        return Value(self, simplify(make_node(op, *nodes)))


@dataclass(frozen=True, eq=False)
class Value(np.lib.mixins.NDArrayOperatorsMixin):
    """A symbol. It holds a node and no numbers. The mixin makes `x + y` a call of np.add."""

    trace: Trace
    node: Node

    def __array_ufunc__(self, function: Any, method: str, *operands: Any) -> Any:
        is_known = function in OPS and method == "__call__"
        return self.trace.apply(OPS[function], *operands) if is_known else NotImplemented

    def __bool__(self) -> bool:
        raise TypeError(f"{self.trace.name} branches on a value: multiply by a mask instead")


def record(name: str, code: Code, inputs: Sequence[Node]) -> Graph:
    """Run code once, on a symbol for each input, and return what it computes as a graph."""
    result = code(*[Value(Trace(name), node) for node in inputs])
    if not isinstance(result, Value) or result.node.type != TENSOR:
        raise TypeError(f"{name} returns {result}, which is no tensor of floats")
    return Graph(inputs, result.node)


# --- Functions: core/functions/function.py, core/passes/residuals.py. Beyond: any in- and outputs -
@dataclass(frozen=True, eq=False)
class Function:
    """A forward `tin -> output` and its backward `grad_out, tin, *params -> grad_in`."""

    name: str
    forward: Graph
    backward: Graph

    def __call__(self, tin: Tensor, *params: float) -> Any:
        return attach(self, "torch" if isinstance(tin, torch.Tensor) else "numpy")(tin, *params)


def residuals(function: Function) -> dict[Node, str]:
    """Return what forward keeps for backward, by name: the fewest bytes, masks or the input."""
    grad_out, tin, *_ = function.backward.inputs
    outputs = [function.backward.output]
    masks = [n for n in walk(outputs) if n.type == MASK and grad_out not in walk([n])]
    for count in range(4):  # a mask takes a byte an element, the input four
        for kept in itertools.combinations(masks, count):
            if tin not in walk(outputs, stop=kept):
                return {node: f"kept{i}" for i, node in enumerate(kept)}
    return {tin: "tin"}


# --- Emission: core/lowering/emit.py, multigrad_torch/core/attach/render.py. Beyond: vmap ---------
def emit(name: str, inputs: Mapping[Node, str], outputs: Sequence[Node]) -> str:
    """Return the source of a function of inputs, the first of which is a tensor like all others."""
    nodes = [node for node in walk(outputs, stop=inputs) if node not in inputs]
    uses = [operand for node in nodes for operand in node.operands]
    texts, lines = dict(inputs), [f"def {name}({', '.join(inputs.values())}):\n"]
    for node in nodes:
        texts[node] = express(node, texts, like=next(iter(inputs.values())))
        if uses.count(node) > 1:  # what is used once is nested: a name would keep its memory
            lines.append(f"    v{len(lines)} = {texts[node]}\n")
            texts[node] = f"v{len(lines) - 1}"
    return "".join(lines) + f"    return [{', '.join(texts[node] for node in outputs)}]\n\n\n"


def express(node: Node, texts: Mapping[Node, str], like: str) -> str:
    operands = [texts[operand] for operand in node.operands]
    if node.op is CONST:
        return node.value if node.value[-1].isdigit() else f"float('{node.value}')"
    if node.op.symbol:
        return f"({operands[0]} {node.op.symbol} {operands[1]})"
    if node.type == NUMBER:
        return f"float(np.{node.op.numpy.__name__}({', '.join(operands)}))"
    for i, operand in enumerate(node.operands):
        if operand.type != TENSOR:
            operands[i] = f"xp.asarray({operands[i]}, dtype={like}.dtype)"
    return operands[0] if node.op is CAST else f"xp.{node.op.numpy.__name__}({', '.join(operands)})"


@functools.cache
def attach(function: Function, framework: str) -> Code:
    """Return the function as the framework's own, compiled from source that tracebacks show."""
    grad_out, tin, *params = function.backward.inputs
    kept, names = residuals(function), {node: node.value for node in params}
    source = emit("forward", {tin: "tin", **names}, [function.forward.output, *kept])
    source += emit("backward", {grad_out: "grad_out", **kept, **names}, [function.backward.output])
    file = f"<multigrad: {function.name} in {framework}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    xp, attached = {"numpy": (np, attach_numpy), "torch": (torch, Attached.apply)}[framework]
    exec(compile(source, file, "exec"), namespace := {"xp": xp, "np": np})  # noqa: S102
    return functools.partial(attached, namespace["forward"], namespace["backward"])


def attach_numpy(forward: Code, backward: Code, tin: Tensor, *params: float) -> tuple[Tensor, Code]:
    output, *kept = forward(tin, *params)
    return output, lambda grad_out: backward(grad_out, *kept, *params)[0]


class Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Code, backward: Code, tin: Tensor, *params: float) -> Tensor:
        output, *kept = forward(tin, *params)
        ctx.save_for_backward(*kept)
        ctx.run, ctx.params = backward, params
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        (grad_in,) = ctx.run(grad_out, *ctx.saved_tensors, *ctx.params)
        return None, None, grad_in, *[None for _ in ctx.params]


# --- Rules: core/rules/registry.py, core/rules/context.py, core/rules/rule.py. Beyond: files ------
@dataclass(frozen=True, eq=False)
class Rule:
    """A function `(ctx, grad_out, tin, **params) -> grad_in`, and the defaults of its params."""

    name: str
    function: Code
    params: Mapping[str, float]


RULES: dict[str, Rule] = {}
IN_FORCE: ContextVar[tuple[Rule, list[float]]] = ContextVar("rule in force")
FORWARDS: dict[str, Code] = {"Linear": lambda tin: tin, "Heaviside": lambda tin: (tin > 0) * 1.0}


def register(name: str) -> Code:
    def decorate(function: Code) -> Code:
        params = [*inspect.signature(function).parameters.values()][3:]
        RULES[name] = Rule(name, function, {each.name: each.default for each in params})
        return function

    return decorate


@contextmanager
def use(name: str, **params: float) -> Iterator[None]:
    """Let a rule be the backward of the activations that are called in the block."""
    rule = RULES[name]
    token = IN_FORCE.set((rule, [*{**rule.params, **params}.values()]))
    try:
        yield
    finally:
        IN_FORCE.reset(token)


def activation(forward: str) -> Code:
    """Return an activation, whose backward is the rule in force; of an array with its pullback."""
    return lambda tin: put_under(IN_FORCE.get()[0], forward)(tin, *IN_FORCE.get()[1])


# --- Proof: core/functions/proof.py. Beyond: foreign code, bounds of rounding, effects ------------
@functools.cache
def put_under(rule: Rule, forward: str) -> Function:
    """Return the Function with an activation's forward, and a rule as its backward."""
    grad_out, tin = make_node(INPUT, value="grad_out"), make_node(INPUT, value="tin")
    inputs = [grad_out, tin, *[make_node(PARAM, value=name) for name in rule.params]]
    backward = record(rule.name, functools.partial(rule.function, None), inputs)
    graphs = record(forward, FORWARDS[forward], [tin]), backward
    return prove(rule, Function(f"{rule.name} under {forward}", *graphs))


def prove(rule: Rule, function: Function) -> Function:
    """Return the function if its emitted code gives what the rule gives, run as it is written."""
    samples = np.array([-np.inf, -2.0, -0.7, -0.0, 0.0, 0.3, 1.0, np.inf, np.nan])
    grad_out, tin = np.meshgrid(samples, samples)  # all pairs of them
    for step in (0.0, 0.25):
        params = [default + step for default in rule.params.values()]
        with np.errstate(all="ignore"):
            grad_in = function(tin, *params)[1](grad_out)
            as_written = rule.function(None, grad_out, tin, *params)
        if not np.array_equal(grad_in, as_written, equal_nan=True):
            raise ValueError(f"{rule.name} gives {as_written}, and {grad_in} as it was recorded")
    return function


if __name__ == "__main__":

    @register("triangular")
    def triangular(ctx: Any, grad_out: Tensor, tin: Tensor, width: float = 1.0) -> Tensor:
        return grad_out * np.maximum(1.0 - abs(tin) / np.maximum(width, 1e-6), 0.0)

    x = torch.linspace(-2, 2, 5, requires_grad=True)
    with use("triangular", width=2.0):
        activation("Heaviside")(x).sum().backward()
    print(x.grad, *linecache.getlines("<multigrad: triangular under Heaviside in torch>"))
