"""What type checkers say of users' scripts: nothing of a right one, the line of each mistake."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from ..harness.hidden import run_python

RIGHT = """
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

import multigrad as xg
from multigrad import xp

Array = npt.NDArray[np.float64]


@xg.register("users_types", ranges={"width": "> 0"})
def mine(ctx: object, grad_out: Array, tin: Array, width: float = 1.0) -> Array:
    return grad_out * xp.exp(-xp.abs(tin) / width)


rule: xg.Rule = mine.with_params(width=2.0)
found: xg.Rule = xg.get("triangular")
chain: xg.Rule = xg.compose("clip_norm", mine)
x: Array = np.linspace(-1, 1, 5, dtype=np.float64)
act = xg.activation("Heaviside", rule="triangular", params={"width": 2.0}, at_zero=1.0)
y: Array = act(x)
for name in xg.activations():
    xg.activation(name)
for other in (xg.activation("sigmoid", mine), xg.activation(np.tanh), xg.activation("leaky_relu")):
    y = other(x)

with xg.use("triangular", scope="activations"):
    act(x)
with xg.use(mine, {"width": 2.0}, scope=("activations", "params"), key=7):
    act(x)


@xg.use("clip_norm", scope="params")
def step(weights: Array, count: int) -> Array:
    return weights * np.float64(count)


stepped: Array = step(x, 3)


@xg.custom_gradient
def scaled(x: Array, by: float) -> tuple[Array, Callable[[Array], tuple[Array, None]]]:
    def grad(upstream: Array) -> tuple[Array, None]:
        return xp.minimum(upstream, 1.0), None

    return xp.maximum(x, by), grad


@xg.custom_gradient(native=False)
def passed(x: Array) -> tuple[Array, Callable[[Array], Array]]:
    def grad(upstream: Array) -> Array:
        return upstream

    return x, grad


y = scaled(x, 2.0)
y = passed(x)


def forward(x: Array, limit: float) -> Array:
    return xp.clip(x, 0.0, limit)


def backward(grad_out: Array, x: Array, limit: float) -> tuple[Array, None]:
    return grad_out, None


clipped = xg.function(forward, backward)
kept: xg.Function = clipped
y = clipped(x, 1.0)
out, pullback = xg.vjp(clipped, x, 1.0)
y = out
gradients = pullback(np.ones_like(out))
report = xg.check(clipped, x, 2.0)
ok: bool = report.ok and xg.parity("triangular", backends=["numpy"]).ok
xg.save(mine, "mine.json")
loaded = xg.load("mine.json")
if isinstance(loaded, xg.Rule):
    loaded.with_params(width=1.0)
xg.from_dict(mine.to_dict())


@xg.jit
def fast(x: Array) -> Array:
    return x


@xg.jit(framework="jax", static_argnums=1)
def faster(x: Array, n: int) -> Array:
    return x


y = faster(fast(x), 2)
clipped_gradients: dict[str, Array] = xg.apply_to_gradients({"w": x}, "clip_norm")
text: str = xg.show("triangular") + xg.source("triangular", "numpy", forward="Heaviside")
xg.lower("triangular", "someone_elses_backend")
versions: list[str | None] = [row.version for row in xg.backends()]
names: list[str] = xg.rules()
width = xg.schedule.linear(2.0, 0.5, steps=1000)
width.step()
xg.use("triangular", {"width": width})
composite = xg.composites.epsilon_plus(canonize=True)
xg.attribution.epsilon(0.25)
y = xg.estimators.ste_round(x)
y = xg.estimators.lsq(x, 0.5, bits=4)
y = mine.under("Heaviside")(x)
y = mine.factor(x, width=2.0)
y = x * xp.where(x > 0, 1.0, 0.5)
overridden: Array = xg.override(forward, {"clip": "guided"})(x, 1.0)
version: str = xg.__version__
rules = (xg.transforms.triangular, xg.optax.apply_rule, xg.testing.assert_gradients)
rooms = (xg.wrappers.Activation, xg.Activation)
layers = (xg.keras.Activation, xg.keras.Anneal, xg.compat.snntorch.surrogate)
"""
# Each line is a mistake.
WRONG = """
import multigrad as xg
from multigrad import xp
xg.typo  # wrong
xg.activation("Heavyside")  # wrong
xg.Activation("Heavyside")  # wrong
xg.use("triangular", scope="activation")  # wrong
xg.use("triangular", scope=("activations", "param"))  # wrong
xg.use("triangular", parms={})  # wrong
xg.get("triangular").widht  # wrong
xg.get("triangular").with_parms(width=1.0)  # wrong
xg.get("triangular").under("Heavyside")  # wrong
xg.lower("triangular", backend=3)  # wrong
xg.source("triangular", "numpy", forward="Heavyside")  # wrong
xg.rules().widths  # wrong
xg.backends()[0].instaled  # wrong
xp.sigmod  # wrong
xg.estimators.ste_rnd  # wrong
xg.estimators.lsq(1.0, 1.0, bitz=4)  # wrong
xg.schedule.linera  # wrong
xg.composites.epsilon_pls  # wrong
xg.attribution.epsilom  # wrong
xg.optax.apply_rle  # wrong
xg.hook.attach_hooks  # wrong
xg.functional.vpj  # wrong
xg.testing.assert_gradint  # wrong
xg.transforms.triangluar  # wrong
xg.wrappers.Activatoin  # wrong
xg.keras.Aneal  # wrong
xg.compat.sntorch  # wrong
xg.compat.snntorch.surrogate.fast_sigmod  # wrong
xg.check("triangular").okay  # wrong
xg.parity("triangular").row  # wrong
xg.activation("ReLU").forwards  # wrong
"""
CHECKERS = ("basedpyright", "mypy")


def check(checker: str, folder: Path) -> set[str]:
    """Return "file:line" of what a checker complains of, in its strict mode."""
    files = sorted(path.name for path in folder.glob("*.py"))
    if checker == "mypy":
        command = ["mypy", "--strict", "--follow-imports=silent", "--cache-dir=/dev/null", *files]
    else:
        settings = {"typeCheckingMode": "strict", "include": files, "reportUnusedExpression": False}
        settings["reportMissingModuleSource"] = False
        (folder / "pyrightconfig.json").write_text(json.dumps(settings))
        command = [checker, "--pythonpath", sys.executable]
    run = run_python("-m", *command, cwd=folder, timeout=300)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found = re.findall(r"(\w+\.py):(\d+).*error:(.*)", run.stdout)
    print(run.stdout)
    return {f"{file}:{line}" for file, line, _ in found}


@pytest.mark.needs("basedpyright", "mypy")
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_right_script_passes_and_each_mistake_is_told(checker: str, tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    rows = enumerate(WRONG.split("\n"), 1)
    assert check(checker, tmp_path) == {f"wrong.py:{n}" for n, row in rows if "# wrong" in row}
