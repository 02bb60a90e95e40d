"""What finds the cheats: torch's checker, two naive tests and `xg.audit`; `gates.toml` has it all.

torch's `opcheck` is asked for none of them: it takes operators, and compares no gradient's numbers.

python -m tests.foreign.cheats.gates [part of a name ...] [--update]
"""

from __future__ import annotations

import sys
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import multigrad as xg
from multigrad.audit.audit import LAWS

from .cheat import CHEATS, HELD, Cheat

TABLE = Path(__file__).with_name("gates.toml")
FAMILIES = ("shapes", "caches", "cotangents", "numbers", "memory", "paths", "calls")
# What takes longest is asked last: where a law is broken, the others need no answer.
COMPILED = ("compiled", "compiled transforms", "autocast")
LATE = ("sizes", *COMPILED)
EARLY = [law.name for law in LAWS if law.name not in LATE]
CHEAP = [*EARLY, "sizes"]
NAIVE = ("allclose", "kernelbench")


def cheats() -> list[Cheat]:
    if not CHEATS:
        for family in FAMILIES:
            import_module(f"{__package__}.{family}")
    return CHEATS


def tensors(inputs: Sequence[Any], dtype: Any = torch.float32) -> list[Any]:
    made = [torch.tensor(each) for each in inputs]
    return [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in made]


def gradients(function: Any, inputs: Sequence[Any]) -> list[Any]:
    torch.manual_seed(0)
    given = tensors(inputs)
    function(*given).sum().backward()
    return [x.grad for x in given if x.requires_grad]


def are_close(cheat: Cheat, function: Any, **limits: float) -> bool:
    inputs = cheat.twin.inputs
    pairs = zip(gradients(function, inputs), gradients(cheat.twin.plain, inputs), strict=True)
    return all(a is not None and torch.allclose(a, b, **limits) for a, b in pairs)


# --- gates: whether a function passes -------------------------------------------------------------
def gradcheck(cheat: Cheat, made: Any) -> bool:
    def seeded(*given: Any) -> Any:
        torch.manual_seed(0)
        return made.apply(*given)

    inputs = tensors(cheat.twin.inputs, torch.float64)
    return torch.autograd.gradcheck(seeded, inputs, raise_exception=False)


def allclose(cheat: Cheat, made: Any) -> bool:
    """Compare with autograd at the inputs, for a cotangent of ones."""
    return are_close(cheat, made.apply, rtol=1e-3, atol=1e-6)


def kernelbench(cheat: Cheat, made: Any) -> bool:
    """Compare outputs for 5 seeds, and the gradient of the sum, to 1e-2."""
    for seed in range(5):
        torch.manual_seed(seed)
        inputs = tensors(cheat.twin.inputs)
        given = [torch.randn_like(x) if x.requires_grad else x for x in inputs]
        outputs = []
        for function in (made.apply, cheat.twin.plain):
            torch.manual_seed(seed)
            outputs.append(function(*given))
        if not torch.allclose(*outputs, rtol=1e-2, atol=1e-2):
            return False
    return are_close(cheat, made.apply, rtol=1e-2, atol=1e-2)


def audit(cheat: Cheat, made: Any) -> str:
    """Return the first law that is broken, "" if none is."""
    for laws in (EARLY, ("sizes",), COMPILED):
        report = xg.audit(made, *cheat.twin.inputs, laws=laws)
        if not report.ok:
            return report.problem or report.findings[0].law
    return ""


GATES: dict[str, Callable[[Cheat, Any], Any]] = {
    "allclose": allclose, "kernelbench": kernelbench, "gradcheck": gradcheck, "audit": audit,
}  # fmt: skip


def ask(gate: str, cheat: Cheat, made: Any) -> str:
    """Return what a gate says of a function: "passes", "fails", or the law that is broken."""
    HELD.clear()
    said = GATES[gate](cheat, made)
    return (said or "passes") if isinstance(said, str) else "passes" if said else "fails"


def main(words: list[str]) -> int:
    """Print what each gate finds; 1 if a cheat passes no naive test or a twin fails a gate."""
    chosen = [word for word in words if not word.startswith("--")]
    known = recorded() if TABLE.exists() else {}
    rows: dict[str, dict[str, str]] = {}
    twins: dict[str, Cheat] = {}
    faults, began = [], time.monotonic()
    for each in cheats():
        if chosen and not any(word in (each.name, each.family) for word in chosen):
            continue
        twins.setdefault(each.twin.name, each)
        found = {gate: ask(gate, each, each.wrong) for gate in GATES}
        rows[each.name] = {"family": each.family, **found}
        if all(found[gate] != "passes" for gate in NAIVE):
            faults.append(f"{each.name} passes no naive test")
        if found["audit"] == "passes":
            print(f"not found: {each.family}, {each.name}: {each.why}", flush=True)
    if "--update" in words:
        known |= rows
        names = [each.name for each in cheats() if each.name in known]
        lines = [f"{name} = {_inline(known[name])}" for name in names]
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{time.monotonic() - began:.0f} s for the cheats", flush=True)
    alarms: Counter[str] = Counter()
    for name, each in twins.items():
        for gate in GATES:
            said = ask(gate, each, each.twin.as_class())
            if said != "passes":
                alarms[gate] += 1
                faults.append(f"{name} is right, and {gate}: {said}")
    for gate in GATES:
        count = sum(row[gate] != "passes" for row in rows.values())
        print(f"{gate:12} finds {count} of {len(rows)}, accuses {alarms[gate]} of {len(twins)}")
    print(f"{time.monotonic() - began:.0f} s", *faults, sep="\n")
    return 1 if faults else 0


def _inline(row: dict[str, str]) -> str:
    return "{ " + ", ".join(f'{key} = "{value}"' for key, value in row.items()) + " }"


def recorded() -> dict[str, dict[str, str]]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main(sys.argv[1:]))
