"""Run those Keras tests in which frameworks meet, once for each backend of Keras, which it fixes
when it is imported.

What needs no other framework than Keras's own is left to the environments that have one.

All frameworks must be installed. Usage: `python tests/run_keras_beside_others.py [PYTEST OPTIONS]`
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent / "keras"
LAYERS = ("test_bridged_layers_keras.py", "test_custom_gradient_keras.py")
FILES = {
    # The last of them runs Keras on each backend by itself.
    "tensorflow": (*LAYERS, "test_saving_across_keras.py"),
    # It exports with TensorFlow.
    "jax": (*LAYERS, "test_export_keras.py", "test_functions_keras.py"),
    "torch": LAYERS,
}
WORKERS = ("-n", "2", "--dist", "worksteal")
ONCE = ("--once", "--require=keras", "--backends=torch,jax,tensorflow")


def main(options: list[str]) -> int:
    """Run the tests; 1 if any fails."""
    failed = []
    for backend, names in FILES.items():
        print(f"--- Keras on {backend}", flush=True)
        files = [str(TESTS / name) for name in names]
        result = subprocess.run(
            ["pytest", *WORKERS, *ONCE, *options, *files],
            env={**os.environ, "KERAS_BACKEND": backend},
            check=False,
        )
        failed += [backend] if result.returncode else []
    if failed:
        print(f"failed with Keras on {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
