"""Run a page's script: `run_page.py SCRIPT RESULT`, in a process of its own, in the working folder.

What each line of the script prints is written to RESULT, with the seconds that the script worked,
imports left out. Code finds itself in `__main__` and its source in `linecache`, as any script does.
"""

from __future__ import annotations

import ast
import io
import json
import os
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, ModuleType


class Recorder(io.TextIOWrapper):
    """Standard output that also notes what each line of one file writes."""

    def __init__(self, path: str) -> None:
        super().__init__(sys.stdout.buffer, encoding="utf-8", write_through=True)
        self.path = path
        self.printed: defaultdict[int, str] = defaultdict(str)

    def write(self, text: str) -> int:
        frame = sys._getframe(1)
        if frame.f_code.co_filename == self.path:
            self.printed[frame.f_lineno] += text
        return super().write(text)


def run_command(text: str) -> None:
    """Run a command of ours as a shell would; it ends with 0, or as its comment says."""
    command, _, comment = text.partition("  # exits with ")
    words = shlex.split(command, comments=True)[1:]
    done = call_command(words)
    if done.returncode != int(comment or 0) or "Traceback" in done.stderr:
        raise SystemExit(f"$ {text}\nexits with {done.returncode}\n{done.stdout}\n{done.stderr}")


def call_command(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "multigrad.cli", *words],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def pieces(path: Path) -> list[tuple[bool, CodeType]]:
    """Return a script's statements, each with whether it is an import."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [
        (
            isinstance(node, ast.Import | ast.ImportFrom),
            compile(ast.Module([node], []), str(path), "exec", dont_inherit=True),
        )
        for node in body
    ]


def main() -> None:
    path, result = Path(sys.argv[1]), Path(sys.argv[2])
    work = pieces(path)
    sys.path[0] = ""
    sys.path.append(str(Path(__file__).parents[1] / "conformance"))  # has the test vectors
    sys.argv = [str(path)]
    script = sys.modules["__main__"] = ModuleType("__main__")
    names = vars(script)
    names.update(__file__=str(path), __command__=run_command)
    recorder = sys.stdout = Recorder(str(path))
    seconds = 0.0
    for is_import, code in work:
        start = time.process_time()
        exec(code, names)  # noqa: S102
        seconds += 0.0 if is_import else time.process_time() - start
    text = json.dumps({"printed": recorder.printed, "seconds": seconds})
    result.write_text(text, encoding="utf-8")


main()
