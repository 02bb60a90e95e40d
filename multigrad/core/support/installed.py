"""Versions of installed frameworks and those that backends need, by metadata alone, and how to
install them.

The lower bound is in one place, the metadata of the package that offers the backend: its extra of
the backend's name, or a dependency on the framework. No framework is imported to read it, and
`importlib.metadata` is loaded when it is first needed.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

OWN = "multigrad-rules"  # the distribution whose names no other may take
# Parts of a `Requires-Dist` line (PEP 508), as far as backends need them.
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
EXTRA = r"""extra\s*==\s*["']([^"']+)["']"""
MACHINE = r"""(sys_platform|platform_machine)\s*([!=]=)\s*["']([^"']+)["']"""
LEAST = r"[~>]=\s*([0-9][0-9.]*)"
RELEASE = r"[0-9]+(?:\.[0-9]+)*"


class Requirement(NamedTuple):
    """One requirement of a package.

    Attributes:
        package: the name under which it is installed.
        text: as an installer takes it, "torch>=2.9".
        extra: the extra that asks for it, "" where the package itself does.
        least: the oldest version that will do, "" for any.
    """

    package: str
    text: str
    extra: str
    least: str


def read_requirement(line: str) -> Requirement:
    """Return a `Requires-Dist` line in its parts."""
    text, _, marker = line.partition(";")
    text = text.strip().replace(" (", "").rstrip(")")
    name, extra, minimum = re.match(NAME, text), re.search(EXTRA, marker), re.search(LEAST, text)
    return Requirement(
        name[0] if name else text, text, extra[1] if extra else "", minimum[1] if minimum else ""
    )


def normalized(package: str) -> str:
    # As the package index compares names: PEP 503.
    return re.sub(r"[-_.]+", "-", package).lower()


def read_header(distribution: Any, name: str) -> list[str]:
    """Return the lines of a name in a package's metadata."""
    # `importlib.metadata` reads the description, too, which takes ten times as long.
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    return re.findall(rf"^{name}: *(.*?) *$", text.partition("\n\n")[0], re.MULTILINE)


def find_points(group: str) -> list[Any]:
    """Return the entry points of a group; packages with damaged metadata have none."""
    return [point for point in _read_points() if point.group == group]


@functools.cache
def _read_points() -> list[Any]:
    # Each reading goes through the files of all packages, and to make objects of all that they
    # offer, not only of what names us, takes three times as long.
    from importlib import metadata

    return [point for each in metadata.distributions() for point in _points_of(each)]


def _points_of(distribution: Any) -> list[Any]:
    from importlib import metadata

    try:
        if "multigrad" not in (distribution.read_text("entry_points.txt") or ""):
            return []
        # Python imports the first one on the path, not this one if it is further back.
        return list(metadata.distribution(_name_of(distribution)).entry_points)
    except Exception:  # its metadata is damaged, whatever that raises: it offers nothing
        return []


def package_of(point: Any) -> str:
    """Return the package that declares an entry point, "" where that is not known."""
    try:
        return _name_of(point.dist)
    except (AttributeError, KeyError, TypeError):  # no metadata, or damaged
        return ""


# Cached, because a distribution offers several points, and each would read a file.
@functools.cache
def _name_of(distribution: Any) -> str:
    return next(iter(read_header(distribution, "Name")), "")


@functools.cache
def required_by(package: str) -> tuple[str, ...]:
    """Return the `Requires-Dist` lines of a package.

    Raises:
        PackageNotFoundError: there is no such package.
    """
    from importlib import metadata

    distribution = metadata.distribution(package)
    lines = read_header(distribution, "Requires-Dist")
    if not lines and distribution.read_text("METADATA") is None:  # of an egg
        lines = distribution.requires or []
    return tuple(lines)


def requirements_of(name: str, package: str) -> list[Requirement]:
    """Return a package's requirements, on this system, for the framework imported by this name."""
    from importlib import metadata

    try:
        lines = required_by(package)
    except (metadata.PackageNotFoundError, ValueError, TypeError):
        return []
    rows = [read_requirement(line) for line in lines if _is_of_here(line)]
    in_extra = [row for row in rows if normalized(row.extra) == normalized(name)]
    alike = [row for row in rows if not row.extra and normalized(row.package) == normalized(name)]
    if in_extra or alike:
        return in_extra or alike
    # A framework may be installed under another name than it is imported by.
    provided = {normalized(each) for each in metadata.packages_distributions().get(name, ())}
    return [row for row in rows if not row.extra and normalized(row.package) in provided]


def _is_of_here(line: str) -> bool:
    import platform

    here = {"sys_platform": sys.platform, "platform_machine": platform.machine()}
    # Markers are not parsed: one `or` joins all their comparisons, else they must all hold.
    comparisons = re.findall(MACHINE, line)
    holds = [(here[name] == value) is (sign == "==") for name, sign, value in comparisons]
    return (any if " or " in line else all)(holds) if holds else True


def find_version(name: str, requirements: list[Requirement]) -> str | None:
    """Return a framework's version, from itself or from metadata, or None if unknown."""
    from importlib import metadata

    version = getattr(sys.modules.get(name), "__version__", None)
    if isinstance(version, str):
        return version
    for package in _packages(name, requirements):
        try:
            return metadata.version(package)
        except (metadata.PackageNotFoundError, KeyError, TypeError):
            continue
    return None


def _packages(name: str, requirements: list[Requirement]) -> Iterator[str]:
    from importlib import metadata

    yield from (row.package for row in requirements)
    yield from metadata.packages_distributions().get(name, ())


def install_line(name: str, package: str, requirements: list[Requirement]) -> str:
    """Return the command that installs, or upgrades, a backend's framework.

    It names the framework rather than the extra, so that it is also right in a clone and after an
    installation from a file.
    """
    if requirements:
        return " ".join(["pip install", *(f"'{row.text}'" for row in requirements)])
    return f"see how {package or 'its backend'} says to install {name}"


def why_too_old(name: str, package: str) -> str | None:
    """Return an error message if a framework is older than its backend needs, else None."""
    requirements = requirements_of(name, package)
    requirement = next((row for row in requirements if row.least), None)
    version = find_version(name, requirements) if requirement else None
    if requirement is None or version is None or not is_older(version, requirement.least):
        return None
    line = install_line(name, package, requirements)
    return f"needs {requirement.text}, and {name} {version} is installed: {line}"


def is_older(version: str, least: str) -> bool:
    # A version that cannot be read is not older.
    # Only a release's numbers count, not what follows them.
    match_, bound_match = re.match(RELEASE, version), re.match(RELEASE, least)
    if match_ is None or bound_match is None:
        return False
    pair = [[int(part) for part in each[0].split(".")] for each in (match_, bound_match)]
    width = max(map(len, pair))
    numbers, least_numbers = (each + [0] * (width - len(each)) for each in pair)
    return numbers < least_numbers
