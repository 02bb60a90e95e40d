"""C compiled by the system's compiler, and loaded.

Not with -ffast-math: it changes bits, and what GCC links with it makes a process flush subnormals.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=gnu11", "-x", "c")
# No product and sum in one, whose bits differ; no look at what C keeps besides results.
EXACT = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
COMPILERS = ("cc", "gcc", "clang")
PATIENCE = 120  # seconds


class CompilationError(Exception):
    """Why there is no compiled code, in a few words."""


def find_compiler() -> list[str]:
    """Return the command of the compiler: $CC, or the first that is there.

    Raises:
        CompilationError: there is none.
    """
    chosen = shlex.split(os.environ.get("CC", ""))
    if chosen:
        return chosen
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return [path]
    raise CompilationError(f"no C compiler: none of {', '.join(COMPILERS)} is on the PATH")


def compile_c(source: str) -> ctypes.CDLL:
    """Return the library that a source of C is compiled to.

    Raises:
        CompilationError: there is no compiler, or it fails.
    """
    command = find_compiler()
    try:
        with tempfile.TemporaryDirectory(prefix="multigrad-", ignore_cleanup_errors=True) as folder:
            path = Path(folder, "kernels.so")
            done = subprocess.run(
                [*command, *FLAGS, *EXACT, "-", "-o", str(path), "-lm"],
                input=source,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            if done.returncode:
                words = next(iter(done.stderr.strip().splitlines()), f"exit {done.returncode}")
                raise CompilationError(f"the C compiler {command[0]!r} failed: {words}")
            return ctypes.CDLL(str(path))  # its file may go, where it is loaded
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CompilationError(f"the C compiler {command[0]!r} failed: {error}") from error
