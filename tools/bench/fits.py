"""What a layer costs in `fit`: a process for each framework that Keras runs on, since Keras fixes
it at import.

What the processes say to each other is one JSON document each way; `runners/on_keras.py` is what
runs there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from multigrad.command.options import prepare_environment
from multigrad.errors import MultigradError

from .cases import Effort
from .results import Contest, read_row

LAST_LINES = 3


@dataclass(frozen=True, slots=True)
class Workload:
    """A classifier with two activations, and the batches of an epoch."""

    features: int = 64
    units: int = 256
    batch: int = 128
    batches: int = 20


WORKLOAD = Workload()


def measure_fits(
    backend: str,
    guests: Sequence[str],
    threads: int,
    effort: Effort,
    versions: dict[str, str],
    workload: Workload = WORKLOAD,
) -> Contest:
    """Run `runners/on_keras.py` on a framework, in its own process, and note Keras's version."""
    prepare_environment()
    request = {
        "guests": list(guests),
        "threads": threads,
        "effort": asdict(effort),
        "workload": asdict(workload),
    }
    reply = exchange(request, {"PYTHONPATH": os.pathsep.join(sys.path), "KERAS_BACKEND": backend})
    versions["keras"] = reply["version"]
    return read_row(Contest, reply["contest"])


def exchange(request: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the process's answer; an interrupt, which reaches this process alone, ends it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "reply.json"
        command = [
            sys.executable,
            "-m",
            f"{__package__}.runners.on_keras",
            json.dumps(request),
            str(path),
        ]
        process = subprocess.run(
            command,
            check=False,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if process.returncode != 0:
            said = process.stderr.strip().splitlines()[-LAST_LINES:]
            raise MultigradError(
                f"the process ended with code {process.returncode}: {' / '.join(said)}"
            )
        return json.loads(path.read_text(encoding="utf-8"))
