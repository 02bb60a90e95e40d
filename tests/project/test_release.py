"""What a release is cut from says the same in each place, and is cut by one command."""

from __future__ import annotations

import datetime
import re
import runpy
import shutil
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest

from multigrad.core.support.installed import read_requirement

ROOT = Path(__file__).parents[2]
BACKENDS = ("backends/multigrad_mlx/pyproject.toml",)
ADDED = (*BACKENDS, "tests/conformance/pyproject.toml")
FILES = ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", *ADDED)
DAY = datetime.date(2030, 1, 2)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "cut_release.py"))
cut, notes = SCRIPT["cut"], SCRIPT["notes"]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = r"(?s)(?<=## \[Unreleased\]\n).*?(?=\n## \[)"
    mentioned = re.sub(unreleased, "\n### Added\n\n- A.\n", changelog, count=1)
    (tmp_path / "CHANGELOG.md").write_text(mentioned, encoding="utf-8")
    return tmp_path


def test_a_release_is_written_into_each_file(copied: Path) -> None:
    cut(copied, "7.8.9", DAY)
    for name in ("pyproject.toml", *ADDED):
        project = tomllib.loads((copied / name).read_text())["project"]
        assert project["version"] == "7.8.9"
        assert name not in ADDED or "multigrad-rules==7.8.9" in project["dependencies"]
    citation = (copied / "CITATION.cff").read_text()
    assert "\nversion: 7.8.9\n" in citation and "\ndate-released: 2030-01-02\n" in citation
    changelog = (copied / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [7.8.9] - 2030-01-02\n\n### Added\n\n- A.\n" in changelog


@pytest.mark.parametrize(
    ("version", "said"),
    [("1.0", "'1.0' is no version"), ("v1.0.0", "'v1.0.0' is no version")],
)
def test_what_is_no_version_is_refused(version: str, said: str, copied: Path) -> None:
    before = {name: (copied / name).read_bytes() for name in FILES}
    with pytest.raises(SystemExit, match=said):
        cut(copied, version, DAY)
    assert {name: (copied / name).read_bytes() for name in FILES} == before


def test_a_version_is_cut_once(copied: Path) -> None:
    cut(copied, "7.8.9", DAY)
    with pytest.raises(SystemExit, match=r"a section \[7.8.9\] already"):
        cut(copied, "7.8.9", DAY)
    with pytest.raises(SystemExit, match=r"nothing under \[Unreleased\]"):
        cut(copied, "7.9.0", DAY)


def test_the_notes_are_the_section_of_the_version_with_links_that_work_elsewhere(
    copied: Path,
) -> None:
    mentioned = (copied / "CHANGELOG.md").read_text(encoding="utf-8")
    lines = "- [A](docs/a.md#b), [C](https://c.example)."
    (copied / "CHANGELOG.md").write_text(mentioned.replace("- A.", lines, 1), encoding="utf-8")
    cut(copied, "7.8.9", DAY)
    expected = "- [A](https://h.example/x/blob/v7.8.9/docs/a.md#b), [C](https://c.example)."
    assert notes(copied, "https://h.example/x") == f"### Added\n\n{expected}\n"


def test_the_changelog_has_at_most_60_bullets_for_a_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for section in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        assert len(re.findall(r"^- ", section, re.MULTILINE)) <= 60, section.partition("\n")[0]
    assert f"\n## [{PROJECT['version']}] - " in changelog


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {PROJECT['version']}\n" in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation


def test_what_is_added_is_a_distribution_of_this_version() -> None:
    for name in ADDED:
        project = tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["project"]
        assert project["version"] == PROJECT["version"]
        assert f"multigrad-rules=={PROJECT['version']}" in project["dependencies"]
        assert (ROOT / name).with_name("LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_an_added_backend_has_its_extra_and_its_entry_point() -> None:
    for name in BACKENDS:
        project = tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["project"]
        _, _, backend = project["name"].rpartition("-")
        assert PROJECT["optional-dependencies"][backend] == [project["name"]]
        assert set(project["entry-points"]["multigrad.backends"]) == {backend}
        assert backend not in PROJECT["entry-points"]["multigrad.backends"]


def test_the_oldest_versions_that_are_tested_are_the_lower_bounds() -> None:
    lines = (ROOT / "tests/versions/oldest.txt").read_text(encoding="utf-8").splitlines()
    oldest = dict(line.split("==") for line in lines if line and line[0] != "#")
    extras = PROJECT["optional-dependencies"]
    names = ("torch", "jax", "tensorflow", "keras", "cli", "plot", "scipy")
    asked = [*PROJECT["dependencies"], *(row for name in names for row in extras[name])]
    for name in BACKENDS:
        asked += tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["project"]["dependencies"]
    for row in map(read_requirement, asked):
        if row.least:
            assert re.fullmatch(rf"{re.escape(row.least)}(\.0)*", oldest[row.package]), row


def test_the_workflow_runs_each_python_and_each_environment_of_the_week() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    for version in (row.rpartition(" ")[2] for row in PROJECT["classifiers"] if ":: 3." in row):
        assert f'{{env: py{version.replace(".", "")}-core, python: "{version}"}}' in workflow
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    weekly = [name for name in tox.sections() if tox.get(name, "labels", fallback="") == "weekly"]
    assert "testenv:tables" in weekly
    assert all(f"{{env: {name.partition(':')[2]}," in workflow for name in weekly)
