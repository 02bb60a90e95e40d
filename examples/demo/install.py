"""Install what the demo compares, and say every two seconds how long it has taken."""

import subprocess
import sys
import time
from contextlib import suppress

ASKED = {
    "the frameworks": [".[torch,jax,tensorflow,keras,cli,plot]", "scikit-learn"],
    # freegrad 1.0.1 requires torchvision, which would replace the installed torch.
    "freegrad": ["--no-deps", "freegrad"],
}
EACH = 2.0  # seconds


def install(constraints: str) -> int:
    """Run both at once, since they write different files; return 1 if one of them failed."""
    pip = [sys.executable, "-I", "-m", "pip", "install", "--no-compile", "-q", "-c", constraints]
    start = time.monotonic()
    running = {name: subprocess.Popen([*pip, *words]) for name, words in ASKED.items()}
    while names := [name for name, process in running.items() if process.poll() is None]:
        print(f"installing {' and '.join(names)} ... {time.monotonic() - start:.0f} s", flush=True)
        with suppress(subprocess.TimeoutExpired):
            running[names[0]].wait(EACH)
    return int(any(process.returncode for process in running.values()))


if __name__ == "__main__":
    sys.exit(install(sys.argv[1]))
