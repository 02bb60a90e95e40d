"""Lint the prose of the documentation: `python tests/check_prose.py [FILE ...]`.

proselint reads what is left of README, the changelog and the pages without their code. PHRASES are
looked for in the pages, and in docstrings and comments of the packages: words that CONTRIBUTING's
section "How we write" replaces. Prints each finding as `file:line`; exits with 1 if there is one.
"""

from __future__ import annotations

import io
import re
import sys
import time
import tokenize
from collections.abc import Iterator
from pathlib import Path

try:
    from proselint.checks import __register__
    from proselint.config import DEFAULT, Config
    from proselint.registry import CheckRegistry
    from proselint.tools import LintFile
except ModuleNotFoundError as error:
    sys.exit(f"{error}; type: pip install -c constraints.txt proselint")

ROOT = Path(__file__).parents[1]
# Quotes and symbols are those of code, "né" is not meant by "ne", and a title may repeat a word of
# the text below it; PHRASES has a word that is written twice in a line.
OFF = ("typography", "misc.preferred_forms", "lexical_illusions")
CONFIG: Config = {"max_errors": 1000, "checks": {**DEFAULT["checks"], **dict.fromkeys(OFF, False)}}
# The history keeps its words, and CONTRIBUTING quotes the phrases.
WITHOUT_PHRASES = ("CONTRIBUTING.md", "history.md")
# Code and markup; each piece becomes a word of the same length, so that a finding keeps its line.
NOT_PROSE = re.compile(
    r"^ *(```|~~~).*?^ *\1[^\n]*$|<!--.*?-->|<[^>\n]+>|^:::.*?$|^ {4,}\w+: .*?$|^--8<--.*?$"
    r"|`+[^`]+`+|\]\([^)]*\)|https?://\S+",
    re.MULTILINE | re.DOTALL,
)
PHRASES = {
    r"any more\b": "no longer",
    r"as it stands|just as it is\b": "unchanged",
    r"at hand\b": "available",
    r"beside (it|that|them|each other)\b": "next to, compared with",
    r"for want of": "because there is no",
    r"hands? (it |them )?(on|along)\b": "pass",
    r"in (the|its|their) place of|in (its|their) stead": "instead of",
    r"\b(in|out)side of\b": "inside, outside",
    r"in silence|without a word\b": "silently",
    r"\bis let\b|\bare let\b": "may, is allowed to",
    r"\bis to be had\b|\bto be had\b": "is available",
    r"\bmend(s|ed)?\b": "fix",
    r"\bshall\b": "should, must",
    r"\bso is what\b|\bso does what\b": "a noun as the subject",
    r"stands? (behind|below|above|beside|there|here|in)\b": "is",
    r"the (house|door)\b": "the package, the public module",
    r"\bwhat has none\b|\bwho(ever)? has\b": "a noun as the subject",
    r"\b(?P<twice>[a-z]{2,}) (?P=twice)\b": "the word once",
}
HOUSE = re.compile("|".join(f"(?P<p{i}>{each})" for i, each in enumerate(PHRASES)), re.IGNORECASE)


def pages() -> list[Path]:
    """Return the files that are read, in order."""
    names = ("README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
    sources = (path for room in ("multigrad", "backends") for path in (ROOT / room).rglob("*.py"))
    return [*(ROOT / name for name in names), *sorted((ROOT / "docs").rglob("*.md")), *sources]


def words_of(source: str) -> str:
    """Return the docstrings and comments of a module, each in its lines."""
    kept = [""] * (source.count("\n") + 1)
    starts = True
    for each in tokenize.generate_tokens(io.StringIO(source).readline):
        if each.type == tokenize.COMMENT or (each.type == tokenize.STRING and starts):
            for line, words in enumerate(each.string.split("\n"), each.start[0] - 1):
                kept[line] += words
        if each.type not in (tokenize.COMMENT, tokenize.NL):
            starts = each.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return "\n".join(kept)


def prose_of(text: str) -> str:
    """Return a text with a made-up word for each piece of code and markup, and the same lines."""
    counter = iter(range(sys.maxsize))

    def hide(found: re.Match[str]) -> str:
        name = f"Q{next(counter)}" if "\n" not in found[0] else ""
        letters = iter(name + " " * len(found[0]))
        return "".join(each if each == "\n" else next(letters) for each in found[0])

    return NOT_PROSE.sub(hide, text)


def findings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each finding in a file."""
    text = path.read_text(encoding="utf-8")
    is_source = path.suffix == ".py"
    prose = re.sub("`[^`\n]*`", "Q", words_of(text)) if is_source else prose_of(text)
    for result in [] if is_source else LintFile(path.name, prose).lint(CONFIG):
        yield result.pos[0] - 1, f"{result.check_result.check_path}: {result.check_result.message}"
    if path.name in WITHOUT_PHRASES:
        return
    for found in HOUSE.finditer(prose):
        better = list(PHRASES.values())[int((found.lastgroup or "p0")[1:])]
        yield prose.count("\n", 0, found.start()) + 1, f"'{found[0]}': write {better}"


def main(files: list[str]) -> int:
    """Print the findings and return the exit code."""
    begin = time.perf_counter()
    CheckRegistry().register_many(__register__)
    paths = [Path(each).resolve() for each in files] or pages()
    count = 0
    for path in paths:
        for line, words in sorted(findings(path)):
            print(f"{path.relative_to(ROOT)}:{line}: {words}")
            count += 1
    seconds = time.perf_counter() - begin
    print(f"{len(paths)} files, {count} findings, read in {seconds:.1f} s")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
