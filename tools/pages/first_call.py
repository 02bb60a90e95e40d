"""The pages that lead through the code: one first call, file by file, what runs when an activation
first meets a tensor; and the files to read first, which the titles of the 300 lines name.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import multigrad as xg

from .markdown import fill, table

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "multigrad_in_300_lines.py"
INTRODUCTION = """\
After `act = xg.activation("Heaviside", "triangular")`, a first `act(x)` on a torch tensor enters
the {} files below, here in the order in which it enters them, each once, by room, with the first
sentence of its docstring. [Start here](start_here.md#follow-one-call) follows the same call in
six steps.

A second call enters only {}.
"""
PARTS = {  # by the file that begins each
    "core/rules/activation.py": "The rule in force, and its Function",
    "core/functions/function.py": "The call of the Function",
    "core/functions/plain.py": "Capture of the rule, which is the library's: it was proven before",
    "core/lowering/lower.py": "Lowering to torch",
    "multigrad_torch/core/attach/render.py": "Attachment to torch's autograd",
}


def trace_calls() -> dict[str, list[str]]:
    """Return the files that a first and a second call enter."""
    import torch

    x = torch.linspace(-2.0, 2.0, 5, requires_grad=True)
    act = xg.activation("Heaviside", "triangular")
    return {"first": trace(lambda: act(x)), "second": trace(lambda: act(x))}


def trace(step: Callable[[], Any]) -> list[str]:
    """Return the files of ours whose functions a step enters; what an import runs is left out."""
    names: dict[str, None] = {}
    imports: list[FrameType] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "return" and frame in imports:
            imports.clear()
        elif event == "call" and not imports and frame.f_code.co_name == "<module>":
            imports.append(frame)
        elif event == "call" and not imports and path.is_relative_to(ROOT):
            names[path.relative_to(ROOT).as_posix()] = None

    sys.setprofile(note)
    step()
    sys.setprofile(None)  # after an error the process ends
    ours = ("multigrad/", "backends/")  # an environment's own packages may lie below, too
    return [name.partition("/")[2] for name in names if name.startswith(ours)]


def room_of(name: str) -> str:
    parts = name.split("/")
    return "/".join(parts[: 2 if len(parts) > 2 else 1])


def describe(name: str) -> str:
    return f"    - `{name.removeprefix(room_of(name) + '/')}`: {first_sentence(name)}"


def first_sentence(name: str) -> str:
    """Return the first sentence of the docstring of a file or a package."""
    path = ROOT / ("backends" if name.startswith("multigrad_") else "multigrad") / name
    path = path / "__init__.py" if path.is_dir() else path
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = " ".join(docstring.split("\n\n")[0].split()).partition(". ")[0]
    return f"{sentence.rstrip('.:;')}."


def render_start_here() -> str:
    titles = re.findall(r"^# --- (\w+): (.*?)\. Beyond", MODEL.read_text("utf-8"), re.MULTILINE)
    files = [(section, name) for section, names in titles for name in names.split(", ")]
    rows = [(section, f"`{name}`", first_sentence(name)) for section, name in files]
    page = ROOT / "docs" / "start_here.md"
    return fill(page.read_text("utf-8"), table(("section", "file", "what it is"), rows))


def render_first_call() -> str:
    if importlib.util.find_spec("torch") is None:  # in the process it would be a CalledProcessError
        raise ModuleNotFoundError("No module named 'torch'")
    # In a process that has captured nothing yet.
    path = os.pathsep.join(str(ROOT / each) for each in ("", "backends", "tools"))
    own = {"PYTHONPATH": path, "MULTIGRAD_CACHE": "off", "MULTIGRAD_PROVE": "1"}
    command = [sys.executable, "-m", "pages.first_call"]
    calls = json.loads(subprocess.check_output(command, env=os.environ | own, text=True))
    lines, room, parts = [], "", iter(PARTS.items())
    begins, title = next(parts)
    for name in calls["first"]:
        if name == begins:
            lines += ["", f"## {title}", ""]
            room, (begins, title) = "", next(parts, ("", ""))
        if room_of(name) != room:
            room = room_of(name)
            lines.append(f"- **{room}**")
        lines.append(describe(name))
    assert not begins, f"no part of the first call begins with {begins}: see PARTS"
    second = ", ".join(f"`{name}`" for name in calls["second"])
    return "\n".join([INTRODUCTION.format(len(calls["first"]), second), *lines[1:]])


if __name__ == "__main__":
    print(json.dumps(trace_calls()))
