"""The registry: names of rules, and what happens when one is taken, unknown, replaced or
removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.hidden import python

X = np.array([-1.0, 0.5, 2.0], np.float32)


def test_what_is_no_rule_says_where_the_rule_is(tmp_path: Path) -> None:
    spike = xg.activation("Heaviside", "triangular", {"width": 3.0})
    mended = r"its rule is xg\.get\('triangular'\)\.with_params\(width=3\.0\)"
    for use in (
        lambda rule: xg.activation("ReLU", rule)(X),
        lambda rule: xg.save(rule, tmp_path / "rule.json"),
    ):
        with pytest.raises(xg.RuleError, match=mended):
            use(spike)
    width = xg.schedule.linear(2, 1, 60)
    for annealed in (
        xg.activation("Heaviside", "triangular", {"width": width}),
        xg.activation("Heaviside", xg.get("triangular").with_params(width=width)),
    ):
        with pytest.raises(xg.RuleError) as raised:
            xg.save(annealed, tmp_path / "rule.json")
        rule = eval(str(raised.value).partition("its rule is ")[2], {"xg": xg})
        assert rule.name == "triangular" and rule.bound["width"].formula == width.formula
    with pytest.raises(xg.RuleError, match=r"is xg\.load\('triangular\.json'\)"):
        xg.get("triangular.json")
    with pytest.raises(FileNotFoundError, match=r"is xg\.get\('triangular'\)"):
        xg.load("triangular")


def test_a_rule_that_is_registered_before_the_library_is_imported_stays() -> None:
    code = """
import sys, numpy as np, multigrad as xg
mine = xg.register("sign")(lambda ctx, grad_out, tin: grad_out * 3.0)
assert xg.get("sign") is mine and "multigrad.core.rules.library" not in sys.modules
assert len([name for name in sys.modules if name.startswith("multigrad")]) <= 60
try:
    xg.register("triangular")(lambda ctx, grad_out, tin: grad_out)
except xg.RuleError as error:
    assert "registered already" in str(error)
assert xg.get("triangular") is not mine and xg.get("sign") is mine
xg.unregister("sign")
assert xg.get("sign") is not mine
"""
    python("-c", code)


def test_freegrads_names_lead_here() -> None:
    names = (xg.RuleError, xg.compose, xg.get, xg.register)
    from multigrad.core.rules.registry import RuleError, compose, get, register

    assert (RuleError, compose, get, register) == names
    assert issubclass(RuleError, KeyError)


def test_rule_of_the_library_is_found_by_threads_that_ask_for_the_first_one() -> None:
    code = (
        "import sys, threading, multigrad as xg; from concurrent.futures import "
        "ThreadPoolExecutor\n"
        "sys.setswitchinterval(1e-6); barrier = threading.Barrier(8)\n"
        "find = lambda name: (barrier.wait(), xg.get(name))[1].name\n"
        "with ThreadPoolExecutor(8) as pool: print(*pool.map(find, ['clip_norm'] * 8))"
    )
    assert python("-c", code).split() == ["clip_norm"] * 8


def test_layer_follows_a_name_that_is_redefined_while_it_is_looked_up() -> None:
    later: list[float] = []

    class Offset(np.ndarray[Any, Any]):
        """A param that is read once the rule was found, as when another thread comes between."""

        def item(self, *args: Any) -> Any:
            if later:
                define(later.pop())
            return super().item(*args)

    def define(factor: float) -> None:
        def times(ctx: Any, grad_out: Any, tin: Any, offset: float = 0.0) -> Any:
            return grad_out * factor + offset

        xg.register("test own", override=True)(times)

    define(3.0)
    act = xg.activation("Linear", rule="test own", params={"offset": np.zeros(()).view(Offset)})
    assert "mul(grad_out, 3.0)" in xg.show(act)
    define(5.0)
    later.append(7.0)
    assert "mul(grad_out, 5.0)" in xg.show(act)
    assert not later
    assert "mul(grad_out, 7.0)" in xg.show(act)
