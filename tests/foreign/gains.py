"""What conversion gives the torch gradients of published packages, on torch itself.

Each is asked as it is published and as `xg.convert` of it: `vmap`, the whole of `torch.compile`
(`fullgraph=True`), its second derivative, and the bytes that it keeps for backward. The answers
stand in `gains.toml`; the page on audits and README count them.

    python tests/foreign/gains.py [PACKAGE or module:name ...] [--update]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tomllib
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GAINS = HERE / "gains.toml"
LAWS = ("vmap", "second derivative")
COMPILED, BYTES = "compiled", "bytes"
KEPT, BROKEN, REFUSED = "kept", "broken", "refused"


def measure(fn: Any, inputs: Sequence[Any]) -> dict[str, str]:
    """Return for each question the answer as published and once converted, "refused, kept"."""
    import multigrad as xg

    if xg.audit(fn, *inputs, laws=["type"]).home != "torch":
        return {}
    converted = xg.convert(fn)
    before, after = (states(each, inputs) for each in (fn, converted))
    found = {law: f"{before[law]}, {after[law]}" for law in before if law in after}
    found[COMPILED] = ", ".join(compiles(each, inputs) for each in (fn, converted))
    found[BYTES] = ", ".join(str(bytes_kept(each, inputs)) for each in (fn, converted))
    return found


def states(fn: Any, inputs: Sequence[Any]) -> dict[str, str]:
    """Return the states of the laws that apply."""
    import multigrad as xg

    report = xg.audit(fn, *as_tensors(inputs), laws=list(LAWS))
    return {each.law: each.state for each in report.laws if each.state in (KEPT, BROKEN, REFUSED)}


def compiles(fn: Any, inputs: Sequence[Any]) -> str:
    """Return whether torch compiles a call as one graph, and gives its gradient."""
    import torch

    torch._dynamo.reset()
    call = caller(fn)
    try:
        run(torch.compile(lambda *args: call(*args), fullgraph=True), as_tensors(inputs))
    except Exception:  # noqa: BLE001, whatever the compiler raises
        return REFUSED
    return KEPT


def bytes_kept(fn: Any, inputs: Sequence[Any]) -> int:
    """Return the bytes kept from forward to backward: saved or on ctx, but what calls share."""
    once, again = (tensors_kept(caller(fn), as_tensors(inputs)) for _ in range(2))
    return sum(size for place, size in again.items() if place not in once)


def tensors_kept(call: Any, tensors: Sequence[Any]) -> dict[int, int]:
    """Return the bytes of each piece of memory that the graph of a call holds."""
    import torch

    noted, done = [], set()

    def note(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            noted.append(weakref.ref(value))
        return value

    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        outputs = call(*tensors)
    ahead = [each.grad_fn for each in leaves(outputs)]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in done:
            done.add(node)
            ahead += [other for other, _ in node.next_functions]
            for value in getattr(node, "__dict__", {}).values():
                for each in value if isinstance(value, (tuple, list)) else [value]:
                    note(each)
    HELD.append((outputs, tensors))  # so that the next call's memory is elsewhere
    storages = [each.untyped_storage() for ref in noted if (each := ref()) is not None]
    return {each.data_ptr(): each.nbytes() for each in storages}


HELD: list[Any] = []


def run(call: Any, tensors: Sequence[Any]) -> None:
    """Call, and pull back ones."""
    import torch

    outputs = [each for each in leaves(call(*tensors)) if each.requires_grad]
    torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])


def leaves(outputs: Any) -> Iterator[Any]:
    """Yield the tensors among outputs."""
    import torch

    for each in outputs if isinstance(outputs, (tuple, list)) else [outputs]:
        if isinstance(each, torch.Tensor):
            yield each


def caller(fn: Any) -> Any:
    """Return what is called: the `apply` of a class."""
    import torch

    is_class = isinstance(fn, type) and issubclass(fn, torch.autograd.Function)
    return fn.apply if is_class else fn


def as_tensors(inputs: Sequence[Any]) -> list[Any]:
    """Return inputs with new tensors for arrays; floats are float32, and ask for a gradient."""
    import numpy as np
    import torch

    def made(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.detach().numpy()
        if not isinstance(value, np.ndarray):
            return value
        tensor = torch.from_numpy(value.copy())
        return tensor.float().requires_grad_() if tensor.is_floating_point() else tensor

    return [made(each) for each in inputs]


def read_gains() -> dict[str, dict[str, str]]:
    """Return the committed answers by row."""
    return tomllib.loads(GAINS.read_text(encoding="utf-8")) if GAINS.exists() else {}


def main() -> int:
    from audit import MORE, PROCESSES
    from run import CASES, SECONDS, Task, read_cases, run_rows

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("chosen", nargs="*", help="packages, or rows as module:name")
    parser.add_argument("--update", action="store_true", help="write what is found to the table")
    options = parser.parse_args()
    start, known, wrong = time.perf_counter(), read_gains(), 0
    files = (CASES, MORE)
    rows = read_cases(options.chosen, files)
    task = Task("gain", lambda reason: {"problem": reason})
    found = {}
    for row, answers in run_rows(rows, SECONDS, task, PROCESSES):
        found[row.name] = answers
        changed = answers != known.get(row.name, {}) and "problem" not in answers
        wrong += changed
        print(f"{'! ' if changed else '  '}{row.name}: {answers}", flush=True)
    if options.update:
        known |= found
        lines = ["# Written by `python tests/foreign/gains.py --update`.", ""]
        for row in read_cases(files=files):
            answers = known.get(row.name, {})
            if answers and "problem" not in answers:
                lines.append(f"[{json.dumps(row.name)}]")
                lines += [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in answers.items()]
                lines.append("")
        GAINS.write_text("\n".join(lines), encoding="utf-8")
    minutes = (time.perf_counter() - start) / 60
    print(f"{len(rows)} asked, {wrong} not as in the table, {minutes:.1f} minutes")
    return 1 if wrong and not options.update else 0


if __name__ == "__main__":
    sys.exit(main())
