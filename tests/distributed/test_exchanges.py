"""What a rule exchanges between shards, read off its graph, as the tables of the pages say."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.look.rule_description import describe_all
from pages.exchanges import KINDS, exchanged_by

PAGE = Path(__file__).parents[2] / "docs" / "devices.md"


def list_collectives(rule: str) -> list[tuple[str, int, bool]]:
    found = exchanged_by(xg.get(rule)).collectives
    return [(each.op, each.numbers, each.per_column) for each in found]


@pytest.mark.parametrize(
    ("rule", "kind", "collectives"),
    [
        ("triangular", "elementwise", []),
        ("d(Linear)", "elementwise", []),
        ("noise", "draws", []),
        ("centralize", "own axes", []),
        ("clip_norm", "reduces", [("all_norm", 1, False)]),
        ("normalize", "reduces", [("all_max", 1, False), ("all_norm", 1, False)]),
        ("dorefa_weights", "reduces", [("all_max", 1, False)]),
        (
            "magnitude_aware_sign",
            "reduces",
            [("all_max", 1, True), ("all_dim", 1, False), ("all_sum", 1, True)],
        ),
    ],
)
def test_a_rule_exchanges_what_its_graph_reduces(
    rule: str, kind: str, collectives: list[tuple[str, int, bool]]
) -> None:
    assert exchanged_by(xg.get(rule)).kind == kind
    assert list_collectives(rule) == collectives


def test_a_norm_of_the_whole_array_is_four_bytes_and_a_mean_of_columns_some_for_each() -> None:
    assert str(exchanged_by(xg.get("clip_norm"))) == "`all_norm`: 4 bytes"
    told = str(exchanged_by(xg.get("magnitude_aware_sign")))
    assert told == "`all_max`, `all_dim`, `all_sum`: 8 bytes per column and 8 bytes"


def test_a_rule_that_needs_the_whole_array_is_refused_by_its_op() -> None:
    def ordered(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xg.xp.sort(tin, axis=0)

    found = exchanged_by(xg.register("ordered")(ordered))
    assert str(found) == "refused: sort needs the whole array"


def test_a_rule_that_runs_as_it_is_has_no_graph_to_split() -> None:
    def as_it_is(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return np.asarray(grad_out)

    found = exchanged_by(xg.register("as_it_is", native=True)(as_it_is))
    assert found.kind == "refused"
    assert "runs as written" in found.reason


def test_most_of_the_library_exchanges_nothing_and_none_is_refused() -> None:
    own = [row for row in describe_all() if row.family]
    counts = Counter(exchanged_by(row.rule).kind for row in own if row.rule is not None)
    assert set(counts) == set(KINDS) - {"refused", "not known"}
    assert counts["reduces"] == 10
    said = (
        f"{len(own) - counts['reduces']} of the {len(own)} rules of the library exchange nothing: "
        f"{counts['elementwise']} act on single elements, {counts['draws']} draw, and "
        f"{counts['own axes']} reduce axes that are not split."
    )
    assert said in " ".join(PAGE.read_text(encoding="utf-8").split())


def test_the_page_has_the_bytes_that_the_graphs_have() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## What is exchanged\n")[1].split("\n##")[0]
    rows = {line.split("`")[1]: line for line in section.splitlines() if line.startswith("| `")}
    assert len(rows) == 6
    for name, line in rows.items():
        found = exchanged_by(xg.get(name))
        lengths = sum(each.op == "all_dim" for each in found.collectives)
        number = len(found.collectives) - lengths
        said = f"{number}, and a length" if lengths else str(number)
        told = found.bytes_per_step().replace(" and ", ", ")
        assert line == f"| `{name}` | {said} | {told} |"


def test_the_page_counts_hops_as_its_formula_does() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for devices in (8, 1024, 16384):
        (line,) = [line for line in lines if line.startswith(f"| {devices:,} | ")]
        tree = 2 * math.ceil(math.log2(devices)) * 10
        ring = 2 * (devices - 1) * 10
        many = tree * 100 // 1000
        assert line == f"| {devices:,} | {tree} us | {ring:,} us | {many} ms |"
