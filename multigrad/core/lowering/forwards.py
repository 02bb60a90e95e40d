"""The activations, declared once: the name, op and graph of each, and its number, if it has one.

`ACTIVATIONS` is the table, by name. `find_forward` returns the row of a name as people write it, in
any case or by an alias, and the same row with another number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias
from weakref import WeakValueDictionary

from ...errors import RuleTypeError, RuleValueError, suggest
from .. import ops
from ..ir.graph import Graph
from ..ir.op import INPUT, Op
from ..passes.simplify import simplify
from ..support.lazy_modules import provided
from ..support.records import cached_property
from ..support.threads import make_lock
from ..trace.trace import Trace, Value, apply
from ..trace.xp import all as xp
from .derivatives import pullback

# For type checkers: also usual other names and lower case. Written from the tables below by
# `python tools/write_sources.py`.
ActivationName: TypeAlias = Literal[
    "Linear", "linear", "ReLU", "relu", "ReLU6", "relu6", "LeakyReLU", "leakyrelu", "leaky_relu",
    "ELU", "elu", "Tanh", "tanh", "Logistic", "logistic", "SiLU", "silu", "GELU", "gelu",
    "Softplus", "softplus", "Heaviside", "heaviside", "Sign", "sign", "Round", "round", "Floor",
    "floor", "Ternary", "ternary", "Identity", "identity", "None", "none", "Sigmoid", "sigmoid",
    "Swish", "swish", "Step", "step", "BinaryStep", "binarystep", "binary_step", "Signum", "signum",
    "Heaviside(at_zero=1.0)", "Sign(at_zero=1.0)",
]  # fmt: skip

# (input, result of the op, number) -> output.
Adjust = Callable[[Value, Value, float], Value]


@dataclass(frozen=True, eq=False)
class Forward:
    """An activation of the table.

    Attributes:
        name: also the key of all that is made from it; names the setting if not the default.
        op: None for the identity.
        attrs: those of the op.
        differentiable: False if frameworks have no derivative for it, so that ours is used.
        setting: the name and value of its number, None if it has none.
        with_setting: computes the output from the input, the op's result and that number.
        function: the Function of the user's code that it is, whose gradient acts where no rule
            does; None: it is of the table.
        lowered: the plain function for each backend.
        functions_under: the Functions of it without a rule (None), and of one of the user's code
            under rules, by specialization: they go with it.
    """

    name: str
    op: Op | None
    attrs: Any = field(default_factory=dict)
    differentiable: bool = True
    setting: tuple[str, float] | None = None
    with_setting: Adjust | None = None
    function: Any = None
    lowered: dict[str, Any] = field(default_factory=dict, init=False)
    functions_under: dict[Any, Any] = field(default_factory=dict, init=False)

    # What makes the `RuleCaptures` under it: a forward of the user's code, `ForwardOfCode` of
    # `engine/rules/model/forward_of_code.py`, has one of its own, as it may have several graphs.
    captures: ClassVar[Any] = None

    @property
    def key(self) -> str:
        return self.name

    @property
    def words(self) -> str:
        return repr(self.name)

    def graph(self) -> Graph:
        """Return `tin -> output`."""
        return self.own_graph

    @cached_property
    def own_graph(self) -> Graph:
        trace = Trace(self.name)
        tin = trace.input("tin", INPUT)
        output = tin if self.op is None else apply(self.op, tin, **self.attrs)
        if self.with_setting is not None and self.setting is not None:
            output = self.with_setting(tin, output, self.setting[1])
        return Graph(self.name, (tin.node,), (output.node,))

    @cached_property
    def derivative(self) -> Graph:
        """`(grad_out, tin) -> grad` of the true derivative."""
        return simplify(pullback(self.graph()))


def value_at_zero(tin: Value, step: Value, at_zero: float) -> Value:
    # At both zeros the op itself gives 0.
    if at_zero == 0.0:
        return step
    # One comparison, instead of two and a choice.
    if at_zero == 1.0 and step.node.op is ops.HEAVISIDE:
        return apply(ops.CAST, xp.greater_equal(tin, 0.0), dtype=tin.node.type.dtype)
    return xp.where(xp.equal(tin, 0.0), at_zero, step)


def zero_within_threshold(tin: Value, sign: Value, threshold: float) -> Value:
    # By what is not beyond it, so that NaN keeps its sign, which is NaN.
    return xp.where(xp.less_equal(xp.abs(tin), threshold), 0.0, sign)


_ROWS = (
    Forward("Linear", None),
    Forward("ReLU", ops.RELU),
    Forward("ReLU6", ops.RELU6),
    Forward("LeakyReLU", ops.LEAKY_RELU, {"slope": 0.01}),
    Forward("ELU", ops.ELU, {"alpha": 1.0}),
    Forward("Tanh", ops.TANH),
    Forward("Logistic", ops.SIGMOID),
    Forward("SiLU", ops.SILU),
    Forward("GELU", ops.GELU, {"approximate": False}),
    Forward("Softplus", ops.SOFTPLUS),
    Forward("Heaviside", ops.HEAVISIDE, {}, False, ("at_zero", 0.0), with_setting=value_at_zero),
    Forward("Sign", ops.SIGN, {}, False, ("at_zero", 0.0), with_setting=value_at_zero),
    Forward("Round", ops.ROUND, differentiable=False),
    Forward("Floor", ops.FLOOR, differentiable=False),
    Forward(
        "Ternary", ops.SIGN, {}, False, ("threshold", 0.05), with_setting=zero_within_threshold
    ),
)
ACTIVATIONS = MappingProxyType({row.name: row for row in _ROWS})
# What the frameworks and papers call them.
ALIASES = MappingProxyType(
    {
        "Identity": "Linear",
        "None": "Linear",
        "Sigmoid": "Logistic",
        "Swish": "SiLU",
        "Step": "Heaviside",
        "BinaryStep": "Heaviside",
        "Signum": "Sign",
    }
)


def plainly(name: str) -> str:
    """Return a name without what people write differently: case, underscores, hyphens, spaces."""
    return re.sub(r"[-_\s]", "", name).lower()


_BY_PLAIN_NAME = {
    **{plainly(name): row for name, row in ACTIVATIONS.items()},
    **{plainly(alias): ACTIVATIONS[name] for alias, name in ALIASES.items()},
}
_WITH_VALUE = re.compile(r"(?P<name>[^()]+)\(\s*(?P<setting>\w+)\s*=(?P<value>[^()=]+)\)")


def activations() -> list[ActivationName]:
    """Return the names of all activations, in the order of the documentation.

    They are taken in any case, with or without underscores, and by other names that are usual:
    "sigmoid" is "Logistic", "step" is "Heaviside", "swish" is "SiLU", "identity" is "Linear".

    Examples:
        >>> "Heaviside" in xg.activations()
        True
        >>> [name for name in xg.activations() if name.startswith("S")]
        ['SiLU', 'Softplus', 'Sign']
    """
    names: list[Any] = list(ACTIVATIONS)
    return names


def find_forward(
    name: str, at_zero: float | None = None, threshold: float | None = None
) -> Forward:
    """Return the activation of that name, in any case.

    Args:
        at_zero: the value at the jump, of Heaviside and Sign; None is what the name says, 0 where
            it says nothing. "Heaviside(at_zero=1.0)" is the name with its value.
        threshold: that of Ternary, as in "Ternary(threshold=0.1)"; by default 0.05.

    Raises:
        RuleValueError: there is none of the name, or a value is no finite number.
        RuleTypeError: a value for an activation that has none, or no number.
    """
    arguments = {"at_zero": at_zero, "threshold": threshold}
    values = {setting: value for setting, value in arguments.items() if value is not None}
    match = _WITH_VALUE.fullmatch(name.strip()) if isinstance(name, str) else None
    plain = name if match is None else match["name"]
    row = _BY_PLAIN_NAME.get(plainly(plain)) if isinstance(plain, str) else None
    if row is None:
        raise unknown_activation_error(plain)
    # An argument counts more than the number in the name.
    if match is not None and match["setting"] not in values:
        values[match["setting"]] = _read_value(name, row, match["value"])
    for setting, value in values.items():
        row = _with_value(row, setting, value)
    return row


@provided
def unknown_activation_error(name: Any) -> RuleValueError:
    """Return the error for a name that no activation has."""
    hint = suggest(str(name), (*ACTIVATIONS, *ALIASES))
    return RuleValueError(f"no activation {name!r}{hint} (activations: {', '.join(ACTIVATIONS)})")


def _read_value(name: str, row: Forward, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        example = "Heaviside(at_zero=1.0)"
        if row.setting is not None:
            example = f"{row.name}({row.setting[0]}=1.0)"
        raise RuleValueError(
            f"activation {name!r}: {value!r} is not a number; write {example!r}"
        ) from None


def _with_value(row: Forward, setting: str, value: float) -> Forward:
    if row.setting is None or row.setting[0] != setting:
        owners = [each.name for each in _ROWS if each.setting and each.setting[0] == setting]
        owners_have = f"{' and '.join(owners)} {'has' if len(owners) == 1 else 'have'}"
        hint = "" if row.setting is None else f"; it takes {row.setting[0]}"
        reason = "it has no jump at zero" if setting == "at_zero" else "it has none"
        raise RuleTypeError(
            f"activation {row.name!r} takes no {setting}"
            + (f": {reason}; {owners_have}{hint}" if owners else f"{hint or ': it takes nothing'}")
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RuleTypeError(f"{setting} is a number, such as 1.0; got {value!r}")
    if not math.isfinite(value):
        raise RuleValueError(f"{setting} is a finite number, such as 1.0; got {value!r}")
    if setting == "threshold" and value < 0:
        raise RuleValueError(f"activation {row.name!r}: threshold is >= 0, got {value!r}")
    # From the row without a value, so that there is one row for each value.
    base = ACTIVATIONS[row.name.partition("(")[0]]
    assert base.setting is not None
    # 0.0 and -0.0 are one number here, as defaults too.
    return base if value == base.setting[1] else _set(base, setting, float(value) or 0.0)


_setting = make_lock()
# By name, the activations with another value of their setting, one object for each that lives.
_set_rows: WeakValueDictionary[str, Forward] = WeakValueDictionary()


def _set(row: Forward, setting: str, value: float) -> Forward:
    name = f"{row.name}({setting}={value!r})"
    with _setting:
        known = _set_rows.get(name)
        if known is None:
            known = _set_rows[name] = replace(row, name=name, setting=(setting, value))
    return known
