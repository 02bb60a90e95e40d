"""A third party's backend: an entry point and a folder of the usual files are enough, and the suite
tells right from wrong.

`toy_backend` is such a package. It is laid into an empty folder as an installer would, and used in
other processes.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..harness.hidden import run_python
from ..support.installed import CONFORMANCE, TOY, install

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "multigrad_conformance")
SUITE = (*PYTEST, "--backends=toy")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, and the suite that its author installs."""
    folder = tmp_path_factory.mktemp("site")
    install(TOY, folder)
    install(CONFORMANCE, folder)
    return folder


def run(site: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the toy package installed, away from the sources."""
    return run_python(*arguments, cwd=site, timeout=600, **environment, PYTHONPATH=str(site))


def run_code(site: Path, code: str) -> str:
    """Run code after a few imports: what it prints."""
    prelude = "import numpy as np\nimport multigrad as xg\n"
    done = run(site, "-c", prelude + code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_listed_without_being_imported(site: Path) -> None:
    code = """
import sys
(row,) = [row for row in xg.backends() if row.name == "toy"]
print(row.installed, row.version, row.reason, {"toy", "multigrad_toy"} & set(sys.modules))
"""
    assert run_code(site, code) == "True 0.1.0 None set()"


def test_rules_activations_functions_and_vjps_run_on_its_arrays(site: Path) -> None:
    code = """
import toy
x = np.linspace(-2, 2, 9, dtype=np.float32)
g = np.full(9, 0.5, np.float32)
expected = g * np.maximum(1 - np.abs(x) / np.float32(1.5), 0)

bare = xg.get("triangular")(None, toy.Array(g), toy.Array(x), width=1.5)
assert isinstance(bare, toy.Array)
np.testing.assert_allclose(bare.numpy(), expected, rtol=1e-6)

act = xg.activation("Heaviside")
with xg.use("triangular", params={"width": 1.5}):
    y, pullback = xg.vjp(act, toy.Array(x))
    np.testing.assert_array_equal(act(toy.Array(x)).numpy(), x > 0)
(gradient,) = pullback(toy.Array(g))
assert isinstance(y, toy.Array) and isinstance(gradient, toy.Array)
np.testing.assert_array_equal(y.numpy(), x > 0)
np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-6)

@xg.custom_gradient
def log1pexp(x):
    e = xg.xp.exp(x)
    return xg.xp.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))

y, pullback = xg.vjp(log1pexp, toy.Array(np.array([0.0, 100.0], np.float32)))
assert pullback(toy.Array(np.ones(2, np.float32)))[0].numpy().tolist() == [0.5, 1.0]

native = xg.lower("triangular", "toy", forward="Heaviside")
y, pullback = native.vjp(toy.Array(x), 1.5)
np.testing.assert_allclose(pullback(toy.Array(g)).numpy(), expected, rtol=1e-6)
assert xg.parity("triangular", backends=["toy"]).ok
assert xg.parity(log1pexp, x, backends=["toy"]).ok
print(xg.source("triangular", "toy", forward="Heaviside"))
"""
    source = run_code(site, code)
    assert source.startswith("def triangular_under_Heaviside(tin, width=1.0):")
    assert "def pullback(grad_out):" in source


def test_an_op_that_it_lacks_is_refused_with_its_reason(site: Path) -> None:
    code = """
import ml_dtypes
import toy
xp = xg.xp

def outer(ctx, grad_out, tin):
    return grad_out * xp.sum(xp.einsum("i,j->ij", tin, tin))

def gamma(ctx, grad_out, tin):
    return grad_out * xp.lgamma(tin)

half, x = (toy.Array(np.ones(3, dtype)) for dtype in (ml_dtypes.bfloat16, "float32"))
for refused in (
    lambda: xg.lower(outer, "toy"),
    lambda: xg.activation("ReLU", outer)(x),
    lambda: xg.vjp(lambda x: xp.einsum("i,j->ij", x, x), x),
    lambda: xp.einsum("i,j->ij", x, x),
    lambda: xg.lower(gamma, "toy").vjp(half),
):
    try:
        refused()
    except xg.UnsupportedOp as error:
        print(error)
"""
    *rules, called, half = run_code(site, code).splitlines()
    words = r"rule '\S+' \(<string>:\d+\) uses einsum, which toy lacks: toy 0.1 has no einsum"
    assert [bool(re.fullmatch(words, line)) for line in rules] == [True] * 3
    assert called == "einsum is not available on toy: toy 0.1 has no einsum"
    assert "uses lgamma, which toy lacks for bfloat16: toy 0.1 has no such kernel" in half


@pytest.mark.backends("numpy")
def test_it_passes_the_conformance_suite(backend: Any, site: Path) -> None:
    done = run(site, *SUITE)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    passed = int(done.stdout.split(" passed")[0].rsplit(maxsplit=1)[-1])
    assert passed > 2000
    assert "failed" not in done.stdout.splitlines()[-1]


@pytest.mark.backends("numpy")
def test_the_suite_fails_where_one_of_its_ops_is_off_by_a_thousandth(
    backend: Any, site: Path
) -> None:
    for op in ("tanh", "sum"):
        done = run(site, *SUITE, "-k", op, "--no-header", MULTIGRAD_TOY_BREAKS=op)
        failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
        assert done.returncode == 1, done.stdout[-5000:] + done.stderr
        forward = f"test_every_op_gives_what_its_row_means[toy-{op}]"
        assert any(forward in line for line in failed)
        assert any("test_vjps" in line for line in failed)


def test_the_suite_says_how_to_run_it_where_its_plugin_is_missing(site: Path) -> None:
    done = run(site, *PYTEST, "-p", "no:multigrad_conformance.plugin")
    assert done.returncode != 0
    assert "pytest -p multigrad_conformance.plugin --pyargs multigrad_conformance" in done.stderr


def test_a_backend_that_is_not_there_is_a_usage_error(site: Path) -> None:
    done = run(site, *PYTEST, "--backends=tyo")
    assert done.returncode == 4
    assert "--backends: no backend ['tyo']; there are ['numpy'," in done.stderr


@pytest.mark.needs("torch")
def test_it_runs_inside_of_another_framework_without_a_word_about_it(site: Path) -> None:
    said = run_code(
        site,
        """
import torch
from multigrad.engine.rules.opaque import call_activation
act = xg.activation("Heaviside", rule="triangular")
x = torch.tensor([-0.5, 0.25, 2.0], requires_grad=True)
y = call_activation(act.forward, act.in_force(), x, "toy")
y.sum().backward()
print(y.tolist(), x.grad.tolist())
""",
    )
    assert said.strip() == "[0.0, 1.0, 1.0] [0.5, 0.75, 0.0]"
