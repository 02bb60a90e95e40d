"""Install what the demo compares and is not there yet, one after the other, so that one sees it."""

import subprocess
import sys
from importlib.util import find_spec

ASKED = {
    "torch": ["multigrad-rules[torch]"],
    "jax": ["multigrad-rules[jax]"],
    "tensorflow": ["multigrad-rules[tensorflow]"],
    "keras": ["multigrad-rules[keras]"],
    # freegrad 1.0.1 requires torchvision, which would replace the installed torch.
    "freegrad": ["--no-deps", "freegrad"],
}

if __name__ == "__main__":
    pip = [sys.executable, "-I", "-m", "pip", "install", "--no-compile", "-c", sys.argv[1]]
    for module, words in ASKED.items():
        if find_spec(module) is None:
            print(f"installing {module} ...", flush=True)
            subprocess.run([*pip, *words], check=True)
