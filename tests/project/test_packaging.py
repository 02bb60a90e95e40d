"""What is installed, and what an import of it costs: no framework, and no library before it is
needed.
"""

from __future__ import annotations

import ast
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ..harness.hidden import python
from .test_architecture import ROOMS

pytestmark = pytest.mark.anywhere

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ["torch", "jax", "tensorflow", "keras"]
# What the wheel holds: packages, the rooms of the first, and the files that are no source.
SHIPPED = ["multigrad", "multigrad_torch", "multigrad_jax", "multigrad_tensorflow"]
DATA = {
    "multigrad/audit/lock/probes.txt",
    "multigrad/core/functions/shipped.txt",
    "multigrad/core/trace/xp/examples.txt",
}
# Without rules and ops, which may grow. They only fall, but for xg.same, xg.doctor and xg.gate,
# which are 110 KB, for what audits and composites say of what they leave out, which is 15 KB, for
# what messages say to write and for locks, gates and exports by what a module states, which is 20
# KB, for composites by a model's calls, classes compiled once for all batches and near ties in
# gates, which is 50 KB, for numbers that change in compiled code, quantizers held to their
# forwards, and second derivatives in loops, which is 20 KB, for mappings of relevance rules that
# warn, params in locks, and what names of rules and params say, which is 8 KB, and for what code
# reads, the memory of results, exact decisions, methods of the call's library, slices written in
# one pass and short tracebacks, which is 106 KB and six files, and for proofs that are shipped,
# files of version 1, keys of draws and the type of a tensor, which is four files, and for a core
# that stands alone, whose files left what others need to files beside them: 90 files, 190 KB, and
# for what code reads by its own name, strings, patterns and kept methods, and outputs that are
# written to, which is 10 KB, and for what a gate compares beside the inputs, messages of plain data
# and walls by the system, which is four files, 30 KB.
MOST_FILES, MOST_BYTES = 574, 5_134_000
UNCOUNTED = (
    *("multigrad/core/rules/library/", "multigrad/engine/rules/peers"),
    *("multigrad/core/ops/", "multigrad/engine/ops/"),
)
BESIDE = {"..", "_multigrad_rules.pth"}
NEEDED_LATER = ["scipy", "ml_dtypes", "optree", "importlib.metadata", "typer", "matplotlib"]


def loaded_after(code: str, folder: Path) -> set[str]:
    """Run `code` in a fresh interpreter, outside the source folder: the modules loaded at its
    end.
    """
    return set(printed_by(f"{code}\nimport sys; print(*sys.modules)", folder)[-1].split())


def printed_by(code: str, folder: Path) -> list[str]:
    """Run `code` in a fresh interpreter, outside the source folder: the lines that it prints."""
    return python("-c", code, cwd=folder).splitlines()


def list_sources(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*.py")}


def test_import_loads_no_framework_and_nothing_it_does_not_need_yet(tmp_path: Path) -> None:
    brought = loaded_after("import multigrad", tmp_path) - loaded_after("import numpy", tmp_path)
    assert "multigrad" in brought
    assert not brought & {*FRAMEWORKS, *NEEDED_LATER}


def test_an_activation_is_made_before_anything_that_captures_rules_is_loaded(
    tmp_path: Path,
) -> None:
    code = 'import multigrad as xg; act = xg.activation("Heaviside")'
    brought = {name for name in loaded_after(code, tmp_path) if name.startswith("multigrad.")}
    late = (
        "multigrad.core.functions",
        "multigrad.core.rules.specialization",
    )
    assert "multigrad.core.rules.activation" in brought
    assert not {name for name in brought if name.startswith(late)}


def test_an_activation_loads_scipy_only_where_its_rule_computes_with_it(tmp_path: Path) -> None:
    code = """
import numpy as np
import multigrad as xg
act = xg.activation("Heaviside", "triangular")
xg.vjp(act, np.ones(3, np.float32))
"""
    assert "scipy.special" not in loaded_after(code, tmp_path)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        ("np.random.default_rng().normal()", "which gives another generator at each call"),
        ("np.random.rand()", "it draws a number from a generator that no key"),
    ],
)
def test_a_rule_that_is_the_first_to_ask_numpy_for_its_generators_is_no_graph(
    drawn: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "draws.py").write_text(f"""
import warnings
import numpy as np
import multigrad as xg

def rule(ctx, grad_out, tin):
    return grad_out * {drawn}

act = xg.activation("Heaviside", rule)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    xg.vjp(act, np.ones(3, np.float32))
print(*[each.message for each in caught])
""")
    assert said in " ".join(printed_by("import draws", tmp_path))


# What each door that needs a package says without it.
ABSENT = {
    "scipy": "xg.xp.i0e(np.ones(3))",
    "matplotlib": "xg.plot('triangular')",
    "keras": "xg.keras",
    "torch": "xg.Activation('ReLU')",
    "jax": "xg.lower('triangular', 'jax')",
    "tensorflow": "xg.source('triangular', 'tensorflow')",
    "typer": "__import__('multigrad.command').command.main()",
    "multigrad_conformance": "__import__('multigrad.testing').testing.vectors()",
}


def test_without_extras_rules_run_and_each_missing_package_is_a_sentence_with_its_install_line(
    tmp_path: Path,
) -> None:
    code = f"""
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda cls, name, *rest: (
        None if name.partition(".")[0] in {sorted(ABSENT)} else find(name, *rest)
    )
)
sys.stderr = sys.stdout
import numpy as np
import multigrad as xg

@xg.register("my_window")
def my_window(ctx, grad_out, tin, width: float = 1.0):
    return grad_out * (abs(tin) < width)

spike = xg.activation("Heaviside", rule="my_window", params={{"width": 1.5}})
y, pullback = xg.vjp(spike, np.linspace(-2, 2, 5))
assert pullback(np.ones(5))[0].tolist() == [0, 1, 1, 1, 0]
xg.vjp(xg.function(lambda x: xg.xp.lgamma(x) * xg.xp.ndtri(x)), np.full(3, 0.3))
for door in {list(ABSENT.values())}:
    try:
        eval(door)
    except BaseException as error:
        if not isinstance(error, SystemExit):
            print(str(error).replace("\\n", " "))
"""
    lines = printed_by(code, tmp_path)
    assert len(lines) == len(ABSENT)
    for package, line in zip(ABSENT, lines, strict=True):
        name = package.replace("_", "-")
        assert re.search(rf"(?i){name}.*pip install .*'{name}", line), line


def test_assertions_for_other_suites_load_no_pytest(tmp_path: Path) -> None:
    assert not loaded_after("import multigrad.testing", tmp_path) & {"pytest", "hypothesis"}


def test_surrogates_of_other_packages_load_none_of_them_and_no_framework(tmp_path: Path) -> None:
    packages = ["snntorch", "spikingjelly", "norse"]
    modules = [*packages, "snntorch.surrogate", "spikingjelly.surrogate"]
    code = "; ".join(f"import multigrad.compat.{name}" for name in modules)
    assert not loaded_after(code, tmp_path) & {*FRAMEWORKS, *packages}


def test_a_rule_on_numpy_arrays_loads_no_framework(tmp_path: Path) -> None:
    code = """
import numpy as np
import multigrad as xg
x = np.linspace(-1.0, 1.0, 5, dtype=np.float32)
with xg.use("triangular"):
    assert xg.activation("ReLU")(x).tolist() == [0.0, 0.0, 0.0, 0.5, 1.0]
y, pullback = xg.lower("triangular", "numpy", forward="Heaviside").vjp(x)
assert xg.show("triangular")
"""
    assert not loaded_after(code, tmp_path) & set(FRAMEWORKS)


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_a_backend_loads_its_own_framework_alone(backend: Any, tmp_path: Path) -> None:
    code = f"""
import sys
import {backend.name}
own = set(sys.modules)
import multigrad as xg
assert xg.source("triangular", {backend.name!r})
print(sorted(set(sys.modules) - own))
"""
    brought = ast.literal_eval(printed_by(code, tmp_path)[-1])
    assert f"multigrad_{backend.name}" in brought
    assert not set(brought) & set(FRAMEWORKS)


def test_entry_points_name_the_four_backends() -> None:
    found = {point.name: point for point in metadata.entry_points(group="multigrad.backends")}
    assert {"numpy", "torch", "jax", "tensorflow"} <= set(found)
    assert found["numpy"].load().name == "numpy"


def test_distribution_and_module_agree_on_the_version() -> None:
    import multigrad

    assert multigrad.__version__ == metadata.version("multigrad-rules")


def shipped_files() -> set[str]:
    """Return the files that users get: those of the wheel that is installed, or that a build of
    the folders behind an editable install would hold.
    """
    files = {path.as_posix() for path in metadata.files("multigrad-rules") or ()}
    if not any(name.startswith("multigrad/") for name in files):
        files |= {
            f"{folder.name}/{path.relative_to(folder).as_posix()}"
            for folder in map(installed_folder, SHIPPED)
            for path in folder.rglob("*")
            if path.is_file()
        }
    return {name for name in files if "__pycache__" not in name and ".dist-info/" not in name}


def installed_folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is not installed"
    return Path(spec.origin).parent


def test_what_is_installed_is_what_users_import() -> None:
    files = {name for name in shipped_files() if name.partition("/")[0] in SHIPPED}
    folders = {name.split("/")[1] for name in files if name.startswith("multigrad/")}
    rooms = {name.partition(".")[0] for name in ROOMS} - {"errors", "schedule"}
    assert {name for name in folders if "." not in name} == rooms | {"command"}
    beside = {name for name in files if not name.endswith((".py", ".pyi", "/py.typed"))}
    assert beside == DATA


def test_what_is_installed_only_shrinks() -> None:
    shipped = [name for name in shipped_files() if name.partition("/")[0] in SHIPPED]
    files = [name.split("/", 1) for name in shipped if not name.startswith(UNCOUNTED)]
    size = sum((installed_folder(top) / rest).stat().st_size for top, rest in files)
    advice = f"take out as much as came, or raise what {Path(__file__).name} allows, and say why"
    assert len(shipped) <= MOST_FILES, advice
    assert size <= MOST_BYTES, advice


def test_nothing_else_is_installed() -> None:
    """The command is a file of the environment's own, beside the packages."""
    tops = {name.partition("/")[0] for name in shipped_files()}
    assert {top for top in tops if top not in SHIPPED and top not in BESIDE} == set()


def test_every_source_folder_is_installed() -> None:
    """A folder that the build leaves out works in an editable install and fails for everyone
    else.
    """
    for package in SHIPPED:
        source = next(
            path for path in (ROOT / package, ROOT / "backends" / package) if path.is_dir()
        )
        assert list_sources(installed_folder(package)) == list_sources(source)
