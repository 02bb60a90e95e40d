"""A Function made ready for one backend: its straight-line code, and what `render` needs to know besides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .emit import Body
from .prepare import Prepared

if TYPE_CHECKING:
    from ..pair import GraphPair


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """The straight-line code of a pair of graphs.

    Attributes:
        forward: `*inputs, *params, [key] -> *outputs`.
        keep: `*inputs, *outputs, *params -> the residuals that are computed`, in the order of `Lowering.computed`.
        backward: `*cotangents, *residuals, *params, [key] -> *gradients`, those of `Lowering.wrt`.
        prepared: what `keep` and `backward` need of the params, where it is computed before.
    """

    forward: Body
    keep: Body
    backward: Body
    prepared: Prepared | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Lowering:
    """A pair of graphs made ready for one backend: what `render` turns into source.

    Attributes:
        name: "rule under forward".
        identifier: a Python name for the class or function.
        code: code that may run anywhere: under transforms, and where a derivative is taken of it.
        fast: code for where neither is the case; it may write over its own temporaries.
        params: the values that a call takes after the tensors: run-time params, then "key" if random.
        residuals: the names of what forward keeps for backward: an input's, an output's, or one in `computed`.
        computed: the residuals that `keep` computes.
        defaults: values for params where the object is for people to call; "key" is then drawn.
        check: the name of the shape check to apply to the result, or "".
        refuse: the name of a function to call, with nothing, before a derivative is taken of backward, or "".
        tangent: code of `tangent, [tin], *params -> tangent of the output`, where forward mode is asked for.
        pair: what it is code of.
        inputs: the names of the tensors that a call takes; a rule's is "tin".
        cotangents: the names of the outputs' cotangents, one for each output.
        wrt: the inputs that get a gradient, in the order of backward's results; the others get None.
        undifferentiable: the positions of outputs that carry no gradient (bools and integers among them).
        shapes: the inputs whose shape backward is given as `shape_of_<input>`, to compare a gradient with.
        gradient_checks: for each of `wrt` the name of a function to apply to (gradient, shape), or "".
        single: whether a call returns the only output itself; else a tuple.
        once: the name of a function to apply to each gradient, which refuses a derivative of it, or "".
    """

    name: str
    identifier: str
    code: Code
    fast: Code
    params: tuple[str, ...]
    residuals: tuple[str, ...]
    computed: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""
    refuse: str = ""
    tangent: Body | None = None
    pair: GraphPair | None = None
    inputs: tuple[str, ...] = ("tin",)
    cotangents: tuple[str, ...] = ("grad_out",)
    wrt: tuple[str, ...] = ("tin",)
    undifferentiable: tuple[int, ...] = ()
    shapes: tuple[str, ...] = ()
    gradient_checks: tuple[str, ...] = ("",)
    single: bool = True
    once: str = ""

    @property
    def is_linear(self) -> bool:
        """Whether backward is linear in grad_out, so that there is a forward mode."""
        from ..ir.linearity import is_linear

        single = self.inputs == self.wrt and len(self.inputs) == len(self.cotangents) == 1
        return single and self.pair is not None and is_linear(self.pair.backward)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names under which keep's code knows the outputs."""
        return ("output",) if self.pair is None else self.pair.outputs

    @property
    def carries(self) -> tuple[bool, ...]:
        """For each output, whether it carries a gradient."""
        count = range(len(self.cotangents))
        return tuple(i not in self.undifferentiable for i in count)

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
        computed = iter(self.code.keep.results)
        return tuple(next(computed) if r in self.computed else r for r in self.residuals)

    @property
    def read_params(self) -> tuple[str, ...]:
        """The params that backward reads: what it needs besides the residuals."""
        return tuple(name for name in self.params if name in self.code.backward.reads)

    @property
    def forward_params(self) -> tuple[str, ...]:
        """The params that forward reads."""
        return tuple(name for name in self.params if name in self.code.forward.reads)

    @property
    def signature(self) -> str:
        """The params as they follow the tensors in a parameter list: ", width=1.0, key=None"."""
        words = []
        for name in self.params:
            if not self.defaults:
                words.append(f", {name}")
            else:
                words.append(f", {name}={_literal(self.defaults.get(name))}")
        return "".join(words)

    @property
    def arguments(self) -> str:
        """The params as they follow the tensors in a call: ", width, key"."""
        return "".join(f", {name}" for name in self.params)

    @property
    def draws(self) -> bool:
        """Whether a missing key is drawn from the framework's generator (name `draw_key`)."""
        return "key" in self.params and bool(self.defaults)

    @property
    def grad_in(self) -> str:
        """The expression that backward returns, of a lowering with one input."""
        return self.checked(self.code.backward)

    def checked(self, backward: Body) -> str:
        """Return the only result of a backward, with the check of its shape where one is due."""
        return self.gradients(backward)[0]

    def gradients(self, backward: Body) -> tuple[str, ...]:
        """Return an expression for each input: its gradient, checked where that is due, or "None"."""
        if self.check:
            return (self._once(f"{self.check}({backward.result}, grad_out)"),)
        by_name = {
            name: self._once(f"{check}({result}, shape_of_{name})" if check else result)
            for name, check, result in zip(
                self.wrt, self.gradient_checks, backward.results, strict=True
            )
        }
        return tuple(by_name.get(name, "None") for name in self.inputs)

    def _once(self, gradient: str) -> str:
        return f"{self.once}({gradient})" if self.once else gradient


def _literal(value: Any) -> str:
    """The source of a default; inf and nan have no literal in Python."""
    is_odd = isinstance(value, float) and not math.isfinite(value)
    return f"float({str(value)!r})" if is_odd else repr(value)
