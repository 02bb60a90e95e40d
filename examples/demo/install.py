"""Install what the demo compares, and say every two seconds how long it has taken."""

import subprocess
import sys
import time

ASKED = {
    "the frameworks": [".[torch,jax,tensorflow,keras,cli,plot]", "scikit-learn"],
    # freegrad 1.0.1 requires torchvision, which would replace the installed torch.
    "freegrad": ["--no-deps", "freegrad"],
}
EACH = 2.0  # seconds


def install(name: str, words: list[str], constraints: str) -> None:
    pip = [sys.executable, "-I", "-m", "pip", "install", "--no-compile", "-q", "-c", constraints]
    start = time.monotonic()
    with subprocess.Popen([*pip, *words]) as running:
        while running.poll() is None:
            print(f"installing {name} ... {time.monotonic() - start:.0f} s", flush=True)
            try:
                running.wait(EACH)
            except subprocess.TimeoutExpired:
                continue
    if running.returncode:
        sys.exit(running.returncode)


if __name__ == "__main__":
    for name, words in ASKED.items():
        install(name, words, sys.argv[1])
