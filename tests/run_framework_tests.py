"""Run PyTorch's and JAX's own tests of custom gradients, with each of these converted.

Their tests are not in their packages, and no part of them is kept here: whoever runs this gives the
files. A test that passes as it is and fails converted has a row in `peers/framework_tests.toml`,
with the reason. Usage: `python tests/run_framework_tests.py [ARGUMENT OF PYTEST ...]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

TESTS = Path(__file__).resolve().parent
TABLE = TESTS / "peers" / "framework_tests.toml"
# By framework: the variable with the path of its tests, and the file that is meant.
FILES = {
    "torch": ("MULTIGRAD_PYTORCH_TESTS", "test/test_autograd.py of pytorch"),
    "jax": ("MULTIGRAD_JAX_TESTS", "tests/custom_api_test.py of jax"),
}


def read_table() -> dict[str, dict[str, str]]:
    """Read which tests of each framework are known to fail, with the reasons."""
    return tomllib.loads(TABLE.read_text())


def run(framework: str, file: Path, converts: bool, arguments: list[str]) -> dict[str, str]:
    """Run the tests of a file, and return how each ended."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.txt"
        outcomes.touch()
        words = (framework, "1" if converts else "", str(outcomes), str(file))
        paths = (str(TESTS.parent), *sys.path)  # the plugin is found from the clone
        environment = {
            **os.environ,
            "MULTIGRAD_CONVERTING": os.pathsep.join(words),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-c", os.devnull]
        command += ["-p", "no:cacheprovider", "-p", "tests.peers.converting"]
        command += ["--rootdir", str(file.parent), str(file), *arguments]
        subprocess.run(command, check=False, env=environment, cwd=file.parent)
        lines = [line.rpartition(" ") for line in outcomes.read_text().splitlines()]
        return {name: outcome for name, _, outcome in lines}


def compare(framework: str, file: Path, known: dict[str, str], arguments: list[str]) -> int:
    """Run a file as it is and converted; print what differs from the table, and return how much."""
    plain = run(framework, file, False, arguments)
    converted = run(framework, file, True, arguments)
    passing = [name for name, outcome in plain.items() if outcome == "passed"]
    failed = {name for name in passing if converted.get(name) != "passed"}
    for name in sorted(failed - known.keys()):
        print(f"{framework}: {name} fails where its custom gradients are converted")
    healed = sorted(name for name in known if name in passing and name not in failed)
    for name in healed:
        print(f"{framework}: {name} passes now; take its row out of {TABLE.name}")
    if not passing:
        print(f"{framework}: no test of {file} passes as it is")
    print(f"{framework}: {len(passing) - len(failed)} of {len(passing)} pass converted")
    return len(failed - known.keys()) + len(healed) + (not passing)


def main(arguments: list[str]) -> int:
    table, differences = read_table(), 0
    for framework, (variable, meant) in FILES.items():
        path = os.environ.get(variable)
        if path:
            known = table.get(framework, {})
            differences += compare(framework, Path(path).resolve(), known, arguments)
        else:
            print(f"{framework}: SKIPPED, as no tests are given: {variable}=<{meant}>")
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
