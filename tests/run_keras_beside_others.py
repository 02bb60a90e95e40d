"""Run those Keras tests in which frameworks meet, once for each backend of Keras, which it fixes when it is imported.

All frameworks must be installed. Usage: `python tests/run_keras_beside_others.py [PYTEST OPTIONS]`
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent / "keras"
FILES = (
    "test_bridged_layers_keras.py",
    "test_custom_gradient_keras.py",
    "test_export_keras.py",
    "test_functions_keras.py",
)
BACKENDS = ("tensorflow", "jax", "torch")


def main(options: list[str]) -> int:
    """Run the tests; 1 if any fails."""
    failed = []
    for backend in BACKENDS:
        print(f"--- Keras on {backend}", flush=True)
        files = [str(TESTS / name) for name in FILES]
        if backend == BACKENDS[0]:  # it runs Keras on each backend by itself
            files.append(str(TESTS / "test_saving_across_keras.py"))
        result = subprocess.run(
            ["pytest", "-n", "2", "--require=keras,torch,jax,tensorflow", *options, *files],
            env={**os.environ, "KERAS_BACKEND": backend},
            check=False,
        )
        failed += [backend] if result.returncode else []
    if failed:
        print(f"failed with Keras on {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
