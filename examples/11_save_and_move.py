"""A rule and a function are saved in one framework and used in another, without their source.

The second half runs in a new process that knows the files alone.
Needs: pip install 'multigrad-rules[torch,jax]', or other two: name them as arguments, first the one
that saves
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import multigrad as xg
from multigrad import xp

X = np.linspace(-2.0, 2.0, 9).astype(np.float32)

LOAD = """
import sys
import numpy as np
import multigrad as xg

folder, framework = sys.argv[1:]
X = np.linspace(-2.0, 2.0, 9).astype(np.float32)
rule, function = xg.load(folder + "/bump.json"), xg.load(folder + "/soft_clip.json")
for name, f in (("rule", xg.activation("Heaviside", rule=rule)), ("function", function)):
    inputs = (X,) if name == "rule" else (X, 0.5)
    print(name, xg.parity(f, *inputs, backends=[framework]).ok, sep=": ")
print(xg.show(rule))
"""


@xg.register("bump")
def bump(ctx, grad_out, tin, width: float = 0.5):
    """A Gaussian window."""
    return grad_out * xp.exp(-((tin / width) ** 2))


def soft_clip(x, limit):
    return limit * xp.tanh(x / limit)


def pass_through(grad_out, x, limit):
    return grad_out, None


def main(saves: str, loads: str) -> None:
    soft = xg.function(soft_clip, pass_through)
    with tempfile.TemporaryDirectory() as folder:
        assert xg.parity(soft, X, 0.5, backends=[saves]).ok
        xg.save(bump, Path(folder) / "bump.json")
        xg.save(soft, Path(folder) / "soft_clip.json")
        for file in sorted(Path(folder).iterdir()):
            print(f"{file.name}: {file.stat().st_size} bytes, saved with {saves}")
        command = [sys.executable, "-c", LOAD, folder, loads]
        print(f"in a new process, on {loads}:", flush=True)
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ("torch", "jax")))
