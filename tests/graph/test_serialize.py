"""A graph as data and back: every op of the table, and graphs made of them at random, node for
node.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core import ops
from multigrad.core.ir.graph import freeze
from multigrad.core.ir.op import BOOL, INT32, Op, T
from multigrad.core.trace.trace import apply

xp = xg.xp
Tensor = Any
X = np.linspace(-2.0, 2.5, 16, dtype=np.float32).reshape(4, 4)
G = np.cos(X)
# Keys, which draws make of keys.
TABLE = [op for op in ops.CALLABLE_OPS if op not in (ops.FOLD_IN, ops.PLACE_KEY)]
VALUES = freeze(np.array([[0.5, -1.25, 3.0, float("nan")]]))
ATTRS: dict[str, tuple[Any, ...]] = {
    "axis": (0, -1), "keepdims": (True, False), "approximate": (True, False), "correction": (0, 1),
    "slope": (0.1,), "alpha": (1.5,), "n": (1, 2), "ord": (1, 2, 2.5, float("inf")),
    "q": (0.25, 1.0), "k": (2,), "reverse": (True, False), "descending": (True, False),
    "shape": ((4, 4), (2, -1)), "axes": ((1, 0), None), "axis1": (0,), "axis2": (1,),
    "source": (0,),
    "destination": (-1,), "shift": (1, -2), "offset": (0, -1), "indices": ((0, 2, 0, 1),),
    "index": (((None, 2, None), "..."), (0,), ("...", None)), "position": (0, 1),
    "repetitions": ((2,), (1, 2)), "repeats": (2,), "widths": (((1, 0),), ((0, 1), (2, 0))),
    "fill": (0.0, -0.0, float("-inf")), "b": (4.0,), "lambd": (0.5,), "threshold": (0.25,),
    "default": (-0.0,), "min": (-1.0,), "max": (1.0,), "nan": (0.0, float("nan")),
    "posinf": (None, 7.0), "neginf": (None, -7.0), "dtype": (T, "float32", "float64"),
    "value": (VALUES,), "sizes": ((2,), (1, 2)), "strides": ((1,), (2,)), "dilations": ((1,),),
    "groups": (1,), "rtol": (0.0, 1e-3), "epsilons": (1.0,), "lower": (True, False),
    "transposed": (True, False), "unit": (True, False), "names": (None, ("b", "m")),
    "split": (((),), (None, ("b",))), "concat": (0, -1), "pairs": (((0, 0),), ()),
}  # fmt: skip


def pick_attrs(op: Op, rng: random.Random) -> dict[str, Any]:
    if op is ops.EINSUM:
        return {"subscripts": "ij,kj->ik"}
    if op is ops.FFT:
        return {name: rng.choice(attr.samples) for name, attr in op.attrs.items()}
    return {name: rng.choice(ATTRS[name]) for name in op.attrs}


def pick_operands(op: Op, rng: random.Random, known: list[Tensor]) -> list[Tensor]:
    count = 2 if op.variadic else len(op.operands)
    operands = []
    for name in op.operand_names(count):
        x = rng.choice(known)
        if name == "key":
            x = known[0].trace.next_key()
        elif op.coerce == "bool" or name in ("condition", "mask"):
            x = x > 0.25
        elif op.coerce == "int":
            x = xp.astype(x, INT32)
        elif name == "start":
            x = 1
        elif op.coerce == "indices" and name == "indices":
            x = xp.argsort(x, axis=0)
        elif op is ops.FULL_LIKE and name == "value":
            x = 2.5
        elif (op, name) in ((ops.SUM_TO, "like"), (ops.BROADCAST_TO, "x")):
            x = xp.max(x, axis=0, keepdims=True)
        operands.append(x)
    return operands


def reduce_to_number(x: Tensor) -> Tensor:
    """One number that depends on every element, in the input's dtype."""
    if x.node.type.kind == "scalar":
        return x
    x = xp.astype(x, float) if x.node.type.dtype != T else x
    return xp.sum(xp.nan_to_num(x))


def make_rule(seed: int, length: int, first: Op | None = None) -> Any:
    """A rule of random ops; the same at each capture."""

    def drawn(ctx: Any, grad_out: Tensor, tin: Tensor, width: float = 0.5) -> Tensor:
        rng = random.Random(seed)
        known = [grad_out, tin, tin * width]
        total: Any = 0.0
        for i in range(length):
            op = first if first is not None and i == 0 else rng.choice(TABLE)
            made = apply(op, *pick_operands(op, rng, known), **pick_attrs(op, rng))
            total = total + reduce_to_number(made)
            if made.node.type == grad_out.node.type:
                known.append(made)
        return grad_out * total

    return xg.get(xg.compose(drawn).parts[0])


def outcome(rule: Any) -> Any:
    """The numbers of a rule, or the kind of error where its shapes do not fit."""
    try:
        return rule(None, G, X, key=3).tobytes()
    except (ValueError, IndexError, TypeError, xg.MultigradError) as error:
        return type(error)


def nodes_of(rule: Any) -> str:
    """The graph as text, without what it says of the source."""
    head, *lines = xg.show(rule).splitlines()
    return "\n".join([head.partition("  #")[0], *lines])


def assert_survives(rule: Any) -> None:
    document = json.loads(json.dumps(rule.to_dict(), allow_nan=False))
    loaded = xg.from_dict(document)
    assert loaded.to_dict() == document
    assert nodes_of(loaded) == nodes_of(rule)
    assert outcome(loaded) == outcome(rule)


@pytest.mark.parametrize("op", TABLE, ids=lambda op: op.name)
def test_every_op_comes_back(op: Op) -> None:
    rule = make_rule(1, 1, op)
    assert f'"{op.name}"' in json.dumps(rule.to_dict())
    assert_survives(rule)


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_graphs_of_random_ops_come_back(first: int) -> None:
    for seed in range(first, first + 10):
        try:
            assert_survives(make_rule(seed, 12))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize(
    "number",
    [0.1, 1 / 3, 1e-310, 1.7976931348623157e308, -0.0, float("inf"), float("-inf"), 7, True],
)
def test_constants_keep_every_bit_and_their_kind(number: float) -> None:
    def holds(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * number

    rule = xg.get(xg.compose(holds).parts[0])
    text = json.dumps(rule.to_dict(), allow_nan=False)
    assert nodes_of(xg.from_dict(json.loads(text))) == nodes_of(rule)


def test_nan_is_written_as_strict_json() -> None:
    def holds(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * float("nan")

    document = xg.compose(holds).to_dict()
    assert '{"float": "nan"}' in json.dumps(document, allow_nan=False)
    assert np.isnan(xg.from_dict(document)(None, G, X)).all()


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64"]
)
def test_constant_arrays_keep_their_values(dtype: str) -> None:
    values = np.array([[0, 1, 3, 1], [1, 0, 0, 1]]).astype(dtype)[::-1]

    def weighted(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return xp.where(values, grad_out, 0.0) if dtype == "bool" else grad_out * values

    rule = xg.get(xg.compose(weighted).parts[0])
    loaded = xg.from_dict(rule.to_dict())
    assert loaded(None, G[:2], X[:2]).tobytes() == rule(None, G[:2], X[:2]).tobytes()


def test_an_array_that_several_graphs_use_is_written_once() -> None:
    values = np.arange(4.0)

    def weighted(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
        return grad_out * values + values if tin is None else grad_out * values

    assert len(xg.compose(weighted).to_dict()["parts"][0]["arrays"]) == 1


def test_bytes_of_arrays_are_little_endian() -> None:
    values = np.array([1.0, 2.0])

    def weighted(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * values

    (array,) = xg.compose(weighted).to_dict()["parts"][0]["arrays"]
    assert array == {"dtype": "float64", "shape": [2], "data": "AAAAAAAA8D8AAAAAAAAAQA=="}


def test_lines_are_kept_without_their_folder() -> None:
    document = json.dumps(xg.get("arctan").to_dict())
    assert '"at": "surrogate.py:' in document
    assert "rules/" not in document
    assert "# surrogate.py:" in xg.show(xg.from_dict(json.loads(document)))


def test_bools_of_a_comparison_are_saved_as_bools() -> None:
    nodes = xg.get("d(ReLU)").to_dict()["forms"][0]["backward"]["nodes"]
    assert ["tensor", BOOL, "x"] in [node["type"] for node in nodes]
