"""Packages that offer a backend and are broken, each in its way: they are listed with what is
wrong, and are in the way of no other.

They are laid into an empty folder as an installer would, and met in other processes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ..harness.hidden import python

RIGHT = """
import numpy as np
from multigrad.backend import Autodiff, Backend, Kernels, Tensors, as_numpy_dtype

def none(*args):
    raise NotImplementedError

def make(name, types, **groups):
    tensors = Tensors(types, as_numpy_dtype, none, none)
    autodiff = Autodiff(none, none, none, none)
    return Backend(name, tensors, Kernels({}, {}), autodiff, **groups)
"""
MARKED = "platform_machine"
FRAMEWORK = '__version__ = "1.4.2"\n\n\nclass Array:\n    pass\n'
# By name: the module of the backend, and what is said of it.
BROKEN = {
    "raises": ("raise RuntimeError('no such device')", "raises RuntimeError: no such device"),
    "leaves": ("import sys; sys.exit(3)", "raises SystemExit: 3"),
    "lacking": ("import not_there", "raises ModuleNotFoundError: No module named 'not_there'"),
    "nameless": ("backends = 1", "raises AttributeError"),
    "nobackend": ("backend = {'name': 'nobackend'}", "is a dict; expected a multigrad.backend.Bac"),
    "misnamed": (
        RIGHT + "backend = make('other', (np.memmap,))",
        "is named 'other', and its entry point 'misnamed'",
    ),
    "nogroup": (
        RIGHT + "backend = make('nogroup', (np.memmap,), compiler=None)",
        "has None for compiler; expected multigrad.backend.Compiler(...)",
    ),
    "greedy": (
        RIGHT + "backend = make('greedy', (object,))",
        "for tensors.types; expected the classes of its tensors",
    ),
    "unread": (
        RIGHT
        + "from multigrad.backend import Compiler\n"
        + "backend = make('unread', (np.memmap,), compiler=Compiler(read_activation=(1,)))",
        "raises AttributeError: 'int' object has no attribute 'is_reading'",
    ),
    "young": (
        RIGHT + "backend = make('young', (np.memmap,))",
        "needs young>=2.0, and young 1.4.2 is installed: pip install 'young>=2.0'",
    ),
    # Nothing but the framework itself says which version it is.
    "unsaid": (
        RIGHT + "import unsaid\nbackend = make('unsaid', (np.memmap,))",
        "needs unsaid>=2.0, and unsaid 1.4.2 is installed: pip install 'unsaid>=2.0'",
    ),
    "twice": (RIGHT + "backend = make('twice', (np.memmap,))", "two packages offer it"),
}


def lay(site: Path, package: str, points: str, requires: str = "", version: str = "1.0") -> None:
    """Write a package's metadata."""
    folder = site / f"{package.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    header = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    (folder / "METADATA").write_text(header + requires)
    (folder / "entry_points.txt").write_text(f"[multigrad.backends]\n{points}\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of the broken packages, and their frameworks."""
    folder = tmp_path_factory.mktemp("site")
    for name, (code, _) in BROKEN.items():
        (folder / f"{name}.py").write_text(FRAMEWORK)
        (folder / f"mg_{name}.py").write_text(code)
        requires = f"Requires-Dist: {name}>=2.0\n" if name in ("young", "unsaid") else ""
        lay(folder, f"mg-{name}", f"{name} = mg_{name}:backend", requires)
    lay(folder, "young", "", version="1.4.2")
    lay(folder, "mg-again", "twice = mg_again:backend")
    lay(folder, "mg-absent", "absent = mg_absent:backend", "Requires-Dist: absent>=0.3\n")
    choices = f"{MARKED} == 'none'", f"{MARKED} != 'none' or {MARKED} == 'none'"
    requires = "".join(
        f"Requires-Dist: marked-{i}>=0.3; ({choice}) and extra == 'marked'\n"
        for i, choice in enumerate(choices)
    )
    lay(folder, "mg-marked", "marked = mg_marked:backend", requires)
    (folder / "gone.py").write_text(FRAMEWORK)
    lay(folder, "mg-gone", "gone = mg_gone:backend")
    lay(folder, "mg-numpy", "numpy = mg_raises:backend")
    return folder


def run_code(site: Path, code: str, *options: str) -> str:
    path = os.pathsep.join([str(site), *sys.path])
    code = f"import numpy as np\nimport multigrad as xg\n{code}"
    return python(*options, "-c", code, cwd=site, PYTHONPATH=path).strip()


def test_each_is_refused_by_name_and_listed_with_what_is_wrong(site: Path) -> None:
    code = f"""
for name in {list(BROKEN)}:
    for ask in (lambda: xg.lower("triangular", name), lambda: xg.source("triangular", name)):
        try:
            ask()
        except xg.BackendNotFound as error:
            print("asked", name, error)
rows = xg.backends(load=True)
assert [row.name for row in rows][0] == "numpy" and rows[0].installed
assert "is used, and not mg_raises:backend of mg-numpy" in rows[0].reason
for row in rows:
    print("listed", row.name, row.installed, row.version, row.reason)
"""
    lines = run_code(site, code).splitlines()
    for name, (_, said) in BROKEN.items():
        asked = [line for line in lines if line.startswith(f"asked {name} backend {name!r} ")]
        assert len(asked) == 2 and all(said in line for line in asked), (name, lines)
        (listed,) = [line for line in lines if line.startswith(f"listed {name} ")]
        assert listed.startswith(f"listed {name} False ") and said in listed, listed
        assert name not in ("young", "unsaid") or " 1.4.2 needs" in listed
    assert "listed absent False None pip install 'absent>=0.3'" in lines
    assert "listed marked False None pip install 'marked-1>=0.3'" in lines


def test_what_can_be_told_without_an_import_is_told_without_one(site: Path) -> None:
    code = """
import sys
for row in xg.backends():
    print(row.name, row.installed, row.version, row.reason)
print({name for name in sys.modules if name.startswith(("mg_", "young", "gone", "twice"))})
"""
    lines = run_code(site, code).splitlines()
    found = {line.split()[0]: line for line in lines}
    assert found["young"].startswith("young False 1.4.2 needs young>=2.0") and lines[-1] == "set()"
    assert "two packages offer it, mg_" in found["twice"]
    assert "gone False" in found["gone"]
    assert "its entry point names mg_gone, which is not there: reinstall mg-gone" in found["gone"]


def test_the_others_work_without_a_word_where_all_of_them_are_imported(site: Path) -> None:
    code = f"""
import importlib
for name in [*{list(BROKEN)}, "gone"]:
    importlib.import_module(name)
x = np.linspace(-1.0, 1.0, 5, dtype=np.float32)
with xg.use("triangular"):
    print(xg.activation("ReLU")(x).tolist())
assert xg.parity("triangular", backends=["numpy"]).ok
import raises
try:
    xg.activation("ReLU", "triangular")(raises.Array())
except xg.BackendNotFound as error:
    print(error)
from multigrad.backend import discovery
def fail(name, point):
    raise AssertionError(f"{{name}} is asked again")
discovery._import_backend = fail
xg.activation("ReLU", "straight_through")(x)
"""
    lines = run_code(site, code, "-W", "error").splitlines()
    assert lines[0] == "[0.0, 0.0, 0.0, 0.5, 1.0]"
    assert "no backend takes a raises.Array: backend 'raises' cannot be loaded" in lines[1]


def test_whoever_hands_over_what_is_of_a_too_old_framework_is_told_the_version(site: Path) -> None:
    code = """
import young
act, x = xg.activation("ReLU", "triangular"), young.Array()
@xg.custom_gradient
def double(x):
    return 2 * x, lambda upstream: upstream
for ask in (
    lambda: act(x),
    lambda: xg.vjp(act, x),
    lambda: double(x),
    lambda: xg.check(double, x),
    lambda: xg.attach(x, {"relu": "triangular"}),
):
    try:
        ask()
    except xg.BackendNotFound as error:
        print(error)
"""
    said = run_code(site, code).splitlines()
    wanted = "needs young>=2.0, and young 1.4.2 is installed: pip install 'young>=2.0'"
    assert [line.endswith(wanted) for line in said] == [True] * 5, said
