"""A Function made ready for one backend: its straight-line code, and what `render` needs to know besides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ir.graph import Graph
from .emit import Body
from .prepare import Prepared


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """The straight-line code of a Function.

    Attributes:
        forward: `tin -> output`.
        keep: `tin, output, *params -> the residuals that are computed`, in the order of `Lowering.computed`.
        backward: `grad_out, *residuals, *params, [key] -> grad`.
        prepared: what `keep` and `backward` need of the params, where it is computed before.
    """

    forward: Body
    keep: Body
    backward: Body
    prepared: Prepared | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Lowering:
    """A Function made ready for one backend: what `render` turns into source.

    Attributes:
        name: "rule under forward".
        identifier: a Python name for the class or function.
        code: code that may run anywhere: under transforms, and where a derivative is taken of it.
        fast: code for where neither is the case; it may write over its own temporaries.
        params: the values that a call takes after the tensor: run-time params, then "key" if random.
        residuals: the names of what forward keeps for backward: "tin", "output", or a name in `computed`.
        computed: the residuals that `keep` computes.
        defaults: values for params where the object is for people to call; "key" is then drawn.
        check: the name of the shape check to apply to the result, or "".
        refuse: the name of a function to call, with nothing, before a derivative is taken of backward, or "".
        tangent: code of `tangent, [tin], *params -> tangent of the output`, where forward mode is asked for.
        graph: what `backward` is code of.
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
    graph: Graph | None = None

    @property
    def is_linear(self) -> bool:
        """Whether backward is linear in grad_out, so that there is a forward mode."""
        from ..ir.linearity import is_linear

        return self.graph is not None and is_linear(self.graph)

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
    def signature(self) -> str:
        """The params as they follow `tin` in a parameter list: ", width=1.0, key=None"."""
        words = []
        for name in self.params:
            if not self.defaults:
                words.append(f", {name}")
            else:
                words.append(f", {name}={_literal(self.defaults.get(name))}")
        return "".join(words)

    @property
    def arguments(self) -> str:
        """The params as they follow `tin` in a call: ", width, key"."""
        return "".join(f", {name}" for name in self.params)

    @property
    def draws(self) -> bool:
        """Whether a missing key is drawn from the framework's generator (name `draw_key`)."""
        return "key" in self.params and bool(self.defaults)

    @property
    def grad_in(self) -> str:
        """The expression that backward returns."""
        return self.checked(self.code.backward)

    def checked(self, backward: Body) -> str:
        """Return the result of a backward, with the check of its shape where one is due."""
        return f"{self.check}({backward.result}, grad_out)" if self.check else backward.result


def _literal(value: Any) -> str:
    """The source of a default; inf and nan have no literal in Python."""
    is_odd = isinstance(value, float) and not math.isfinite(value)
    return f"float({str(value)!r})" if is_odd else repr(value)
