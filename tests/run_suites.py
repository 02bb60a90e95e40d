"""Run the tests where all frameworks are installed, in parts: what needs one framework, Keras on
each of them, what needs several, and FreeGrad's own tests.

Each part has a process of its own, which imports no framework before a test asks for it; and Keras
fixes its backend when it is imported. Two parts run side by side, the longest first: two workers of
one part would each import its frameworks, collect its tests, and trace what its files share. The
one worker is ended by a test that hangs, and the part goes on in another.

Usage: `python tests/run_suites.py [NAME ...] [PYTEST OPTIONS]`; without a name, all. A part by
itself has two workers and shows its tests as they run.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
WORKERS = ("-n", "2", "--dist", "worksteal")
SIDE_BY_SIDE = 2
ALL = "torch,jax,tensorflow"
COMPILING = "--compiling=jax"
FREEGRAD = "freegrad"
OWN = {"jax": (COMPILING, "--require=flax,optax")}
# In this order they begin; then the others, of a minute or two each.
LONGEST = (
    *("torch", "several", "jax", "tensorflow", "kernels-jax"),
    *("keras-torch", "keras-tensorflow", "keras-jax"),
)
# Thousands of small programs are compiled and run once: XLA optimizes none of them; and where the
# numbers of single ops are not what is tested, it emits as it did before it fused.
PLAIN_XLA = "--xla_backend_optimization_level=0"
CHEAP_XLA = f"{PLAIN_XLA} --xla_cpu_use_fusion_emitters=false"
# Where the kernels' numbers are what is tested.
CONFORMANCE = str(HERE / "conformance")
OF_KERNELS = (str(HERE / "capture" / "types" / "test_jax_integers.py"), CONFORMANCE)
LAYERS = ("test_bridged_layers_keras.py", "test_custom_gradient_keras.py")
# The files of Keras's tests in which frameworks meet.
BESIDE_KERAS = {
    "torch": LAYERS,
    # It exports with TensorFlow.
    "jax": (*LAYERS, "saving/test_export_keras.py", "test_functions_keras.py"),
    # The last of them runs Keras on each backend by itself.
    "tensorflow": (*LAYERS, "saving/test_saving_across_keras.py"),
}


# The processor seconds that a part may take, three times what it takes at rest where XLA has
# compiled nothing yet: one that takes more fails.
SECONDS = {
    "several": 660,
    "jax": 710,
    "torch": 1110,
    "tensorflow": 580,
    "keras-torch": 200,
    "keras-tensorflow": 180,
    "keras-jax": 190,
    "kernels-jax": 350,
    "beside-keras-torch": 60,
    "beside-keras-jax": 60,
    "beside-keras-tensorflow": 80,
    FREEGRAD: 20,
}


class Suite(NamedTuple):
    """A run of pytest.

    Attributes:
        name: what it is called on the command line.
        options: what it is given.
        environment: what is set for it.
    """

    name: str
    options: tuple[str, ...]
    environment: dict[str, str]


def suites() -> Iterator[Suite]:
    """Yield what is run, in that order."""
    tests = str(HERE)
    for name in ALL.split(","):
        own = (f"--backends={name}", *OWN.get(name, ()))
        plain, cheap = (
            {"KERAS_BACKEND": name, **({"XLA_FLAGS": flags} if name == "jax" else {})}
            for flags in (PLAIN_XLA, CHEAP_XLA)
        )
        if name == "jax":
            ignored = (f"--ignore={file}" for file in OF_KERNELS)
            yield Suite(name, (*own, *ignored, tests), cheap)
            yield Suite(f"kernels-{name}", (*own, *OF_KERNELS), plain)
        else:
            yield Suite(name, (*own, tests), plain)
        yield Suite(f"keras-{name}", (f"--backends={name}", "--require=keras", tests), cheap)
        files = tuple(str(HERE / "keras" / file) for file in BESIDE_KERAS[name])
        beside = (f"--backends={ALL}", "--require=keras")
        yield Suite(f"beside-keras-{name}", (*beside, *files), cheap)
    packages = "--require=einops,flax,freegrad,ipykernel,keras,nbclient,optax"
    ignored = (f"--ignore={HERE / 'keras'}", f"--ignore={CONFORMANCE}")
    several = (f"--backends=numpy,{ALL}", COMPILING, packages, *ignored)
    yield Suite("several", (*several, tests), {"XLA_FLAGS": CHEAP_XLA})
    yield Suite(FREEGRAD, (), {})


def run(suite: Suite, options: list[str], is_alone: bool) -> bool:
    """Run a suite, and return whether its tests pass; beside another, its output comes at its
    end.
    """
    began = time.monotonic()
    print(f"--- {suite.name}", flush=True)
    workers = WORKERS if is_alone else ("-n", "1")
    command = ["pytest", *workers, "--once", *suite.options, *options]
    if suite.name == FREEGRAD:
        command = [sys.executable, str(HERE / "run_freegrad_suite.py")]
    process = subprocess.Popen(
        command,
        env={**os.environ, **suite.environment},
        stdout=None if is_alone else subprocess.PIPE,
        stderr=None if is_alone else subprocess.STDOUT,
    )
    said = b"" if process.stdout is None else process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = used.ru_utime + used.ru_stime
    is_whole = "MULTIGRAD_TABLES" in os.environ
    most = math.inf if is_whole else SECONDS[suite.name]
    costs = f"{time.monotonic() - began:.0f} s, {seconds:.0f} of at most {most} processor seconds"
    print(f"{said.decode(errors='replace')}--- {suite.name}: {costs}", flush=True)
    return process.returncode == 0 and (bool(options) or seconds <= most)


def main(arguments: list[str]) -> int:
    """Run the suites; 1 if a test fails in any, 2 for a name that is none."""
    rows = {suite.name: suite for suite in suites()}
    options = [each for each in arguments if each.startswith("-")]
    asked = [each for each in arguments if each not in options]
    if asked == ["help"]:
        print(f"suites: {', '.join(rows)}")
        return 0
    unknown = [name for name in asked if name not in rows]
    if unknown:
        print(f"no suite {', '.join(unknown)}; there are {', '.join(rows)}", file=sys.stderr)
        return 2
    names = asked or [*LONGEST, *(name for name in rows if name not in LONGEST)]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        passed = list(pool.map(lambda name: run(rows[name], options, len(names) == 1), names))
    failed = [name for name, is_passed in zip(names, passed, strict=True) if not is_passed]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
