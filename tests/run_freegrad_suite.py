"""Run FreeGrad's own test suite with `freegrad` replaced by `multigrad`: what its users wrote must
go on working.

The tests come from FreeGrad's source distribution, fetched into a folder outside the sources; no
part of them is kept in the project. Usage: `python tests/run_freegrad_suite.py [FOLDER]` (a
temporary one by default).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"


def download(folder: Path) -> Path:
    """Fetch the source distribution of the pinned FreeGrad into `folder`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", "freegrad", "--constraint", str(CONSTRAINTS), "--dest", str(folder)]
    subprocess.run([*command, "freegrad"], check=True, stdin=subprocess.DEVNULL)
    (archive,) = folder.glob("freegrad-*.tar.gz")
    return archive


def read_tests(archive: Path) -> dict[str, str]:
    """Read the regular `.py` files directly under the archive's `tests` folder: file name ->
    text.
    """
    texts: dict[str, str] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if member.isfile() and path.suffix == ".py" and path.parts[1:-1] == ("tests",):
                stream = tar.extractfile(member)
                assert stream is not None
                texts[path.name] = stream.read().decode()
    return texts


def write_tests(texts: dict[str, str], folder: Path) -> None:
    """Write the tests with the import replaced, and a configuration of their own beside them."""
    for name, text in texts.items():
        (folder / name).write_text(re.sub(r"\bfreegrad\b", "multigrad", text))
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")


def main(arguments: list[str]) -> int:
    parent = Path(arguments[0]).resolve() if arguments else None
    if parent:
        parent.mkdir(parents=True, exist_ok=True)
    workspace = Path(tempfile.mkdtemp(prefix="freegrad-suite-", dir=parent))
    try:
        texts = read_tests(download(workspace))
        if not any(name.startswith("test_") for name in texts):
            print("FreeGrad's source distribution holds no tests", file=sys.stderr)
            return 1
        tests = workspace / "tests"
        tests.mkdir()
        write_tests(texts, tests)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tests)]
        return subprocess.run(command, check=False, cwd=tests).returncode
    finally:
        shutil.rmtree(workspace)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
