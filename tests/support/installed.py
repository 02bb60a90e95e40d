"""Distributions of this repository, as an installer leaves them, for other processes."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

TESTS = Path(__file__).parents[1]
CONFORMANCE, TOY = TESTS / "conformance", TESTS / "toy_backend"


def install(source: Path, folder: Path) -> None:
    """Lay a distribution into a folder with its metadata, as `pip install --target` does."""
    described = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    project = described["project"]
    packages = described["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for name in packages:
        shutil.copytree(source / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    metadata = folder / f"{stem}.dist-info"
    metadata.mkdir()
    header = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(header)
    files = [path for name in packages for path in sorted((folder / name).rglob("*.py"))]
    record = [f"{path.relative_to(folder).as_posix()},,\n" for path in files]
    (metadata / "RECORD").write_text("".join(record))
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {where}" for name, where in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
