"""Build the sdist and the wheel, look into both, install each in an empty environment and use it.

`python scripts/check_release.py [FOLDER] [--extras cli,torch]` leaves what it built in FOLDER, and
beside it the distributions that stand in folders of their own; `--sbom FILE` lists what the package
brings along without an extra, as CycloneDX. It needs build, twine, check-wheel-contents and
cyclonedx-bom; `tox run -e release` brings them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Of the sdist: what the tests and the docs need stands at its top, and nothing of a machine.
TOP = {
    "CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "PKG-INFO",
    "README.md", "SECURITY.md", "backends", "constraints.txt", "docs", "examples", "mkdocs.yml",
    "multigrad", "pyproject.toml", "scripts", "tests", "tools", "tox.ini", ".gitignore", ".github",
}  # fmt: skip
ADDED = ("backends/multigrad_mlx", "tests/conformance")
LITTER = re.compile(r"__pycache__|\.py[co]$|\.egg-info|(^|/)\.(git|tox|venv|cache|ci)(/|$)")
USE = """
import numpy as np
import multigrad as xg
x = np.array([-0.5, 0.25, 2.0], np.float32)
y, pullback = xg.vjp(xg.activation("Heaviside", "triangular"), x)
assert pullback(np.ones(3, np.float32))[0].tolist() == [0.5, 0.75, 0.0]
assert "site-packages" in xg.__file__, xg.__file__
"""
VECTORS = "from multigrad.testing import vectors; assert vectors('triangular')['subjects']"


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Run a command in an environment without our paths, and return what it printed."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        cwd=folder,
        env=clean,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def build(out: Path, folder: Path = ROOT) -> tuple[Path, Path]:
    """Build both into a folder, check their metadata, and return (sdist, wheel)."""
    run(sys.executable, "-m", "build", "--outdir", out, folder)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    (sdist,), (wheel,) = out.glob(f"{stem}.tar.gz"), out.glob(f"{stem}-*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    run(sys.executable, "-m", "check_wheel_contents", wheel)
    return sdist, wheel


def packages_of(folder: Path) -> list[str]:
    """Return the packages that a project's wheel has; without a list it is the folder itself."""
    hatch = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    return [Path(each).name for each in hatch["targets"]["wheel"].get("packages", [folder.name])]


def faults_of_wheel(wheel: Path, folder: Path = ROOT) -> list[str]:
    """Return what is wrong with the files of a wheel."""
    names = zipfile.ZipFile(wheel).namelist()
    packages = packages_of(folder)
    wanted = [f"{package}/py.typed" for package in packages]
    faults = [f"{name} is missing" for name in wanted if name not in names]
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    faults += [f"{name} does not belong there" for name in sorted(tops - {*packages})]
    if not any(name.endswith("licenses/LICENSE") for name in names):
        faults.append("the license is missing")
    return faults + [f"{name} is litter" for name in names if LITTER.search(name)]


def faults_of_sdist(sdist: Path) -> list[str]:
    """Return what is wrong with the files of an sdist."""
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    top = {name.partition("/")[0] for name in names}
    faults = [f"{name} is missing" for name in sorted(TOP - top)]
    faults += [f"{name} does not belong there" for name in sorted(top - TOP)]
    return faults + [f"{name} is litter" for name in names if LITTER.search(name)]


def use(package: Path, extras: list[str], folder: Path, code: str = USE) -> None:
    """Install a package in an environment, new unless it is there, and run what README shows."""
    venv.create(folder, with_pip=True)
    bin_ = folder / ("Scripts" if os.name == "nt" else "bin")
    asked = f"{package}[{','.join(extras)}]" if extras else str(package)
    run(bin_ / "python", "-m", "pip", "install", "-c", ROOT / "constraints.txt", asked)
    run(bin_ / "python", "-c", code, folder=folder)
    if "cli" in extras:
        version = run(bin_ / "multigrad", "--version", folder=folder)
        if package.name.split("-")[1].removesuffix(".tar.gz") not in version:
            sys.exit(f"{package.name} says that it is {version}")
        if "triangular" not in run(bin_ / "multigrad", "rules", folder=folder):
            sys.exit("`multigrad rules` lists no rules")
    if "torch" in extras:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        ten_lines = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
        run(bin_ / "python", "-c", ten_lines, folder=folder)


def list_contents(environment: Path, file: Path) -> None:
    """Write what is installed in an environment, but for what installs, as CycloneDX."""
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "uninstall", "--yes", "setuptools", "pip")
    options = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library")
    tool = (sys.executable, "-m", "cyclonedx_py", "environment")
    run(*tool, *options, "--output-reproducible", "--of", "JSON", "-o", file.resolve(), python)


def main() -> None:
    """Do all of it, and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, help="an empty folder for the two files")
    parser.add_argument("--sbom", type=Path, help="a file for what the package brings along")
    parser.add_argument("--extras", default="cli", help="of the second environment: cli,torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch, "dist")
        sdist, wheel = build(out)
        faults = faults_of_sdist(sdist) + faults_of_wheel(wheel)
        added = {each: build(out, ROOT / each)[1] for each in ADDED}
        for each, built in added.items():
            faults += faults_of_wheel(built, ROOT / each)
        if faults:
            sys.exit("\n".join(faults))
        use(sdist, [], Path(scratch, "core"))
        if options.sbom:
            list_contents(Path(scratch, "core"), options.sbom)
        use(wheel, options.extras.split(","), Path(scratch, "extras"))
        use(added["tests/conformance"], [], Path(scratch, "extras"), VECTORS)  # beside the wheel
    print(f"{sdist.name} and {wheel.name} are in order")


if __name__ == "__main__":
    main()
