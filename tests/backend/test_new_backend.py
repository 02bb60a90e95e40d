"""`multigrad new-backend`: what it writes is in order from the start, and fails the suite with a
list of what is left to do.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
from pathlib import Path

import pytest

from multigrad.core import ops

from ..support.installed import CONFORMANCE, install, tomllib

MULTIGRAD = (sys.executable, "-m", "multigrad.cli")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "multigrad_conformance")
SUITE = (*PYTEST, "--backends=mylib")


def run(*command: str, folder: Path, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    paths = [str(site)] if site else []
    return subprocess.run(
        command,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *sys.path])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new package, and metadata as an editable install leaves it."""
    folder = tmp_path_factory.mktemp("here")
    done = run(*MULTIGRAD, "new-backend", "mylib", folder=folder)
    assert done.returncode == 0, done.stderr
    package = folder / "multigrad-mylib"
    assert f"next: python -m pip install -e {package.name}" in done.stdout
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    metadata = package / "multigrad_mylib-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\n")
    point = project["entry-points"]["multigrad.backends"]["mylib"]
    (metadata / "entry_points.txt").write_text(f"[multigrad.backends]\nmylib = {point}\n")
    return package


def test_it_has_the_usual_files_and_they_compile(written: Path) -> None:
    assert compileall.compile_dir(written, quiet=1)
    names = {path.name for path in (written / "multigrad_mylib").glob("*") if path.is_file()}
    assert names == {
        "__init__.py", "attach.py", "bridge.py", "differences.py", "ops.py", "py.typed",
    }  # fmt: skip


@pytest.mark.needs("ruff")
def test_it_passes_the_linter_at_once(written: Path) -> None:
    for command in (("check",), ("format", "--check")):
        done = run(sys.executable, "-m", "ruff", *command, "--no-cache", ".", folder=written)
        assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_listed_and_the_suite_ends_with_a_list_by_op(written: Path) -> None:
    install(CONFORMANCE, written)
    done = run(sys.executable, *SUITE, folder=written.parent, site=written)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the backend 'mylib' is not written yet" in done.stdout
    assert "1 error in" in done.stdout  # nothing else was tried
    todo = done.stdout.partition("what is left to do")[2]
    assert "[ ] install the framework: `import mylib` finds nothing" in todo
    for field in ("tensors.types", "tensors.to_numpy", "autodiff.render", "autodiff.attach"):
        assert f"[ ] {field}: " in todo
    listed = todo.replace(",", " ").split()
    to_write = [op.name for op in ops.CALLABLE_OPS if op.symbol is None]
    assert [name for name in to_write if name not in listed] == []
    assert len(done.stdout.splitlines()) < 90


def test_ops_without_a_row_are_skipped_and_listed_once_the_fields_are_written(
    written: Path, tmp_path: Path
) -> None:
    # What is written so far is NumPy's own, on a class of arrays that it does not take for its own.
    package = tmp_path / "multigrad_mylib"
    package.mkdir()
    (tmp_path / "mylib.py").write_text("import numpy\nclass Array(numpy.ndarray): ...\n")
    (package / "__init__.py").write_text(
        """
from dataclasses import replace
import mylib
import numpy as np
from multigrad.backend import Kernels, ops
from multigrad.core.lowering.reference.backend import backend as reference

backend = replace(
    reference,
    name="mylib",
    tensors=replace(reference.tensors, types=(mylib.Array,)),
    kernels=Kernels(rows={ops.EXP: np.exp}, unsupported={ops.LOG: "mylib has no log"}),
)
"""
    )
    install(CONFORMANCE, tmp_path)
    for file in written.glob("multigrad_mylib-*/*"):
        (tmp_path / file.parent.name).mkdir(exist_ok=True)
        (tmp_path / file.parent.name / file.name).write_text(file.read_text())
    chosen = ("-k", "lowered_or_listed and (exp or log or tanh or add)", "--tb=line")
    done = run(sys.executable, *SUITE, *chosen, folder=tmp_path, site=tmp_path)
    todo = done.stdout.partition("what is left to do")[2].replace(",", " ").split()
    assert done.returncode == 1 and "tanh" in todo
    assert not {"exp", "log", "add"} & set(todo)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torch", "there is a backend 'torch' already"),
        ("2x", "'2x' is no name to import a framework by"),
        ("class", "'class' is no name to import a framework by"),
        ("my-lib", "'my-lib' is no name to import a framework by"),
        ("mlx.core", "a backend of mlx.core is named 'mlx'"),
        ("../up", "is no name to import a framework by"),
        ("json", "'json' is a module of another kind"),
        ("keras", "keras runs on the other frameworks"),
    ],
)
def test_a_name_that_no_backend_can_have_is_refused(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multigrad.errors import MultigradError
    from multigrad_conformance.new_backend import write_package

    monkeypatch.chdir(tmp_path)
    with pytest.raises(MultigradError, match=said):
        write_package(name, None)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "multigrad-mylib").mkdir()
    done = run(*MULTIGRAD, "new-backend", "mylib", folder=tmp_path)
    assert done.returncode == 2
    assert "multigrad-mylib exists, and nothing is written over; name another" in done.stderr
    assert not list((tmp_path / "multigrad-mylib").iterdir())
