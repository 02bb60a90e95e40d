"""Counts which names of the libraries' tables programs use: `tests/project/names_used.toml`.

    python tools/names record FOLDER [CORPUS ...]   run programs and write down what they use
    python tools/names write FOLDER                 write the data of it
    python tools/names unused                       the same data, once rows have come or gone

`unused` keeps the rows of libraries that are not installed; the others need all frameworks, and a
corpus what `tests/foreign` and `tests/peers` ask for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT)]
os.environ.setdefault("KERAS_BACKEND", "torch")

from names import record, rows

TESTS = ("-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", "--maxfail=1000")
ALL = "--backends=torch,jax,tensorflow"
EVERYDAY = "from names.everyday import main; main({!r})"
# The published gradients that are audited and not converted elsewhere.
AUDITED = """
import sys
sys.path.insert(0, "tests/foreign")
import run
for _ in run.run_rows(run.read_cases((), (run.HERE / "audit_cases.toml",)), 120): pass
"""
# By corpus: what is run with Python.
CORPORA: dict[str, list[tuple[str, ...]]] = {
    "published": [("tests/foreign/run.py", "--seconds=600"), ("-c", AUDITED)],
    "everyday": [
        *(("-c", EVERYDAY.format(name)) for name in rows.LIBRARIES),
        (*TESTS, ALL, "tests/capture/types/test_everyday_idioms.py"),
        (*TESTS, ALL, "tests/capture/types/test_idioms_of_packages.py"),
    ],
    "rules": [(*TESTS, ALL, "tests/rules/library/test_freegrad_rules.py")],
    "docs": [(*TESTS, ALL, "tests/project/test_docs_code.py", "tests/users/test_readme.py")],
    "examples": [(*TESTS, ALL, "tests/users/test_examples.py", "tests/users/test_experiments.py")],
    "models": [
        (*TESTS, "--backends=torch", "tests/models"),
        (*TESTS, "--backends=jax,tensorflow", "--compiling=jax", "tests/models/override"),
        (*TESTS, "--backends=torch", "--require=keras", "tests/keras/attach"),
    ],
    "peers": [(*TESTS, ALL, "tests/peers"), ("tests/run_freegrad_suite.py",)],
}
SITE = "import sys; sys.path.insert(0, {!r}); import record; del sys.path[0]; record.install()\n"


def run(folder: Path, corpora: list[str]) -> None:
    """Run programs, in each process of which what they use is written down."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as site:
        Path(site, "sitecustomize.py").write_text(SITE.format(str(Path(__file__).parent)))
        paths = (site, str(ROOT), str(ROOT / "backends"), str(ROOT / "tools"))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        environment[record.FOLDER] = str(folder.resolve())
        for corpus in corpora or CORPORA:
            environment[record.CORPUS] = corpus
            for words in CORPORA[corpus]:
                print(corpus, *words, flush=True)
                subprocess.run([sys.executable, *words], check=False, cwd=ROOT, env=environment)


def main(words: list[str]) -> str | None:
    if words[:1] == ["record"] and words[1:]:
        run(Path(words[1]), words[2:])
    elif words[:1] == ["write"] and len(words) == 2:
        rows.DATA.write_text(rows.describe(rows.gather(Path(words[1]))), encoding="utf-8")
    elif words == ["unused"]:
        rows.DATA.write_text(rows.describe_again(), encoding="utf-8")
    else:
        return str(__doc__)
    if words[0] != "record":
        print(f"wrote {rows.DATA.relative_to(ROOT)}; a new row is unused until recorded")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
