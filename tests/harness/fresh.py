"""Fresh processes that need not import a framework again, which takes seconds.

A server imports packages and computes nothing; each process that is asked for is a fork of it. It
begins where a script stands after these imports, and has imported nothing of multigrad. What asks
when a package is imported needs a process from the start: `hidden.python`.

This file is also the server: `python fresh.py PACKAGE ...` reads one job a line.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MOST = 5  # servers at a time
# They begin threads when they are imported, and a fork may wait for one for ever.
THREADED = frozenset({"onnxruntime", "tensorflow"})


def run(
    words: Sequence[str],
    imports: Iterable[str],
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    timeout: int = 110,
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` (a file, or `-c CODE`) after imports of those packages that are there."""
    environment = dict(os.environ) if env is None else env
    packages = tuple(sorted(name for name in imports if find_spec(name)))
    if not THREADED.isdisjoint(packages):
        return subprocess.run(
            [sys.executable, *words],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    keras = environment.get("KERAS_BACKEND", "") if "keras" in packages else ""
    process = server(packages, keras)
    assert process.stdin is not None and process.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        said = [str(Path(folder, name)) for name in ("stdout", "stderr")]
        job = {
            "words": list(words),
            "said": said,
            "cwd": str(cwd or Path.cwd()),
            "env": environment,
            "timeout": timeout,
        }
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"the server of {packages} has ended"
        texts = [Path(file).read_text(encoding="utf-8", errors="replace") for file in said]
    return subprocess.CompletedProcess(list(words), int(line), *texts)


def check(script: str, *imports: str) -> None:
    """Run an indented script that begins with these imports, and assert that it ends well."""
    done = run(["-c", textwrap.dedent(script)], imports)
    assert done.returncode == 0, done.stderr


@functools.lru_cache(maxsize=1)
def servers() -> dict[tuple[Any, ...], subprocess.Popen[str]]:
    """Return the servers that run, the one that was asked last at the end."""
    found: dict[tuple[Any, ...], subprocess.Popen[str]] = {}
    atexit.register(lambda: [each.communicate() for each in found.values()])
    return found


def server(packages: tuple[str, ...], keras: str) -> subprocess.Popen[str]:
    """Return a server, which ends when its input does; of a few, as each takes memory."""
    known = servers()
    process = known.pop((packages, keras), None) or start(packages, keras)
    known[packages, keras] = process
    if len(known) > MOST:
        known.pop(next(iter(known))).communicate()
    return process


def start(packages: tuple[str, ...], keras: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *packages],
        env={**os.environ, "KERAS_BACKEND": keras} if keras else None,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def serve(packages: list[str]) -> dict[str, Any] | None:
    """Fork for each job, and tell its exit code; return the job in its process, else None."""
    for name in packages:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return json.loads(line)
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    return None


def become(job: dict[str, Any]) -> None:
    """Make of this process what a shell would have started, and run its code."""
    signal.alarm(job["timeout"])
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    for number, name in enumerate([os.devnull, *job["said"]]):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    first, *rest = job["words"]
    sys.modules.pop("__main__")
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        main = sys.modules["__main__"] = type(sys)("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))  # noqa: S102
    else:
        sys.argv, sys.path[0] = job["words"], str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    asked = serve(sys.argv[1:])
    if asked is not None:
        become(asked)
