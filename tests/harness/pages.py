"""The pages of the docs as code: their blocks, what these promise to print, and what they need.

A page is run as one script whose lines stand where they stand on the page, so that a traceback
names the page's own line. `run_page.py` is the process that runs it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from . import fresh

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("run_page.py")
# What every installation has, or what stands in one room that needs more than its name says.
OWN = {"numpy", "scipy", "ml_dtypes", "optree", "multigrad"}
ROOMS = {"keras": "keras", "optax": "optax", "compat": "torch"}
# What comes with a package, and is as well in each environment that has it.
BRINGS = {"optax": "jax", "flax": "jax"}
FRAMEWORKS = {"torch", "jax", "tensorflow", "mlx"}
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<language>[\w+-]*)(?P<info>.*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the title behind it, its text, the number of its first line."""

    language: str
    title: str
    text: str
    line: int

    @property
    def excerpt_of(self) -> Path | None:
        """The file of the repository that the title names, of which the block is a part."""
        path = ROOT / self.title
        return path if "/" in self.title and path.is_file() else None


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    blocks: tuple[Block, ...]

    @property
    def script(self) -> str:
        """The page as a script: each piece of code on its own line, all else left blank."""
        lines: list[str] = []
        for block in self.blocks:
            code = code_of(block)
            if code:
                lines += [""] * (block.line - 1 - len(lines))
                lines += code.splitlines()
        return "\n".join(lines) + "\n"

    @property
    def commands(self) -> list[str]:
        """The lines of the page's `console` blocks, without their `$`."""
        texts = [block.text for block in self.blocks if block.language == "console"]
        return [command for text in texts for command in commands_of(text)]


def pages() -> list[Page]:
    paths = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        Page(path.relative_to(ROOT).as_posix(), tuple(blocks_of(path.read_text(encoding="utf-8"))))
        for path in paths
    ]


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page; one that is within a list or a tab is indented."""
    lines = iter(enumerate(text.splitlines(), 1))
    for start, line in lines:
        opened = FENCE.match(line)
        if opened is None:
            continue
        inner = []
        for _, within in lines:
            if within.strip().startswith(opened["fence"]):
                break
            inner.append(within)
        title = re.search(r'title="([^"]*)"', opened["info"])
        dedented = textwrap.dedent("\n".join(inner))
        yield Block(opened["language"], title[1] if title else "", dedented, start + 1)


def commands_of(text: str) -> list[str]:
    """Return the commands of a block; a line may go on after a backslash."""
    joined = text.replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]


def code_of(block: Block) -> str:
    """Return what a block adds to the script: its code, or calls of its commands."""
    if block.language == "python" and block.excerpt_of is None:
        return block.text
    if block.language == "console":
        own = [text for text in commands_of(block.text) if text.startswith("multigrad ")]
        return "; ".join(f"__command__({text!r})" for text in own)
    return ""


# --- what a page needs ----------------------------------------------------------------------------


def needs(page: Page) -> set[str]:
    """Return the packages without which a page cannot run."""
    found = set(imported(ast.parse(page.script)))
    found |= set(re.findall(r"KERAS_BACKEND\W+=?\s*\W?(torch|jax|tensorflow)", page.script))
    for command in page.commands:
        words = re.split(r"[^\w]+", command)
        if words[0] == "multigrad":
            found |= {"typer", "rich"} | (FRAMEWORKS & set(words))
            found |= {"matplotlib"} if words[1] == "plot" else set()
        found -= set(re.findall(r"--out (\w+)\.py", command))  # a module that the page writes
    found -= {block.title.removesuffix(".py") for block in page.blocks}
    found |= {BRINGS[name] for name in found & BRINGS.keys()}
    if "keras" in found and not found & FRAMEWORKS:
        found.add("tensorflow")  # Keras's own default
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the packages that code imports, beside Python's and ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, *rest = name.split(".")
            if package in OWN or package in sys.stdlib_module_names:
                yield from (ROOMS[room] for room in rest[:1] if room in ROOMS and package in OWN)
            else:
                yield package.removeprefix("multigrad_")


# --- what a page promises -------------------------------------------------------------------------


def promises(script: str) -> dict[int, list[str]]:
    """Return the lines that are promised of each `print`, by the number of the line that calls it.

    A promise stands behind the call, or as comments on the lines directly below it.
    """
    lines = script.splitlines()
    found = {}
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
            assert node.end_lineno is not None and node.end_col_offset is not None
            last = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
            below = [line.strip() for line in lines[node.end_lineno :]]
            promised = [last.strip(), *takewhile(lambda line: f"{line} ".startswith("# "), below)]
            found[node.lineno] = [
                line.removeprefix("# ").strip() for line in promised if line.startswith("# ")
            ]
    return {line: texts for line, texts in found.items() if texts}


def unkept(script: str, printed: dict[int, str]) -> list[str]:
    """Return the promised lines that their `print` did not print, in their order."""
    missing = []
    for number, texts in promises(script).items():
        rest = iter([line.strip() for line in printed.get(number, "").splitlines()])
        for text in texts:
            if text not in rest:
                missing.append(f"line {number}: {text!r}, printed {printed.get(number, '')!r}")
                break
    return missing


def not_printed(page: Page, printed: dict[int, str]) -> list[str]:
    """Return the code among a page's output that the page does not print."""
    whole = "".join(printed.values())
    return [each.text for each in code_shown(page) if each.text.strip() not in whole]


def code_shown(page: Page) -> list[Block]:
    """Return the blocks of text that are Python, as what `xg.source` returns is."""
    return [each for each in page.blocks if each.language == "text" and reads_as_code(each.text)]


def reads_as_code(text: str) -> bool:
    """Whether a text is Python that does something."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.Call)
    return any(isinstance(node, kinds) for node in ast.walk(tree))


# --- running one ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a page: its exit code and errors, what each line printed, seconds of work."""

    returncode: int
    errors: str
    printed: dict[int, str]
    seconds: float


def run_page(page: Page, folder: Path) -> Run:
    """Run a page in a process of its own, in a folder that is empty."""
    result, own = folder / "result.json", folder / "empty"
    own.mkdir()
    for block in page.blocks:
        if block.language == "python" and block.title and block.excerpt_of is None:
            (own / block.title).write_text(block.text, encoding="utf-8")
    (folder / "page.py").write_text(page.script, encoding="utf-8")
    words = [str(DRIVER), str(folder / "page.py"), str(result)]
    done = fresh.run(words, needs(page), cwd=own, env=environment(page))
    said = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    printed = {int(line): text for line, text in said.get("printed", {}).items()}
    return Run(done.returncode, done.stderr, printed, said.get("seconds", 0.0))


def environment(page: Page) -> dict[str, str]:
    """Return what a reader's process has: proofs as by default, Keras on the page's framework."""
    own = {key: value for key, value in os.environ.items() if key != "MULTIGRAD_PROVE"}
    frameworks = needs(page) & FRAMEWORKS
    if len(frameworks) == 1:
        own["KERAS_BACKEND"] = next(iter(frameworks))
    elif frameworks:
        own["KERAS_BACKEND"] = "tensorflow"
    return {**own, "COLUMNS": "100"}
