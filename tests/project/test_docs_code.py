"""The code in README and docs runs, and prints what it promises.

What each block of a page is for, by its language:

- `python`: the blocks of a page are one script, run from top to bottom in a fresh process and an
  empty folder. `print(...)  # text`, or `# text` on the lines below, promises that line exactly.
  With `title="name.py"` the block is also a file in that folder, for commands and imports; with
  the title of a file of the repository it is an excerpt of that file, compared and not run.
- `console`: lines that begin with `$ `. Those of `multigrad` run where they stand among the python
  blocks, and must succeed or say `  # exits with 1`. Other commands are those of COMMANDS; of the
  demo and the bench, which take minutes, the options are looked up.
- the languages of SHOWN are not run: output, data. What reads as code among it, as generated
  source does, must be part of what the page prints.

The imports of a page say which packages it needs, and so which environment runs it.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ..harness.pages import (
    FRAMEWORKS,
    ROOT,
    Block,
    Page,
    blocks_of,
    code_shown,
    commands_of,
    needs,
    not_printed,
    pages,
    promises,
    run_page,
    unkept,
)

SHOWN = {"text", "toml", "ini", "yaml", "json", "html", "bibtex"}
RUN = {"python", "console"}
COMMANDS = (
    r"(python -m )?pip (install|uninstall) .*",
    r"git clone .*",
    r"cd [\w.-]+",
    r"(python -m )?tox( .*)?",
    r"(python -m )?pytest .*",
    r"python tools/bench( --.*)?",
    r"basedpyright",
    r"python(3\.11)? -m venv .*",
    r"ruff (check|format) .*",
    r"([A-Z_]+=\S+ )*(python|torchrun( --\S+( \d+)?)*) (?P<file>[\w/]+\.py).*",
)
OURS = re.compile(r"multigrad [a-z]|python tools/bench|tox run -e (bench|demo) --")
# What each environment of tox.ini has beside its frameworks; a page needs one that has all of its.
EVERYWHERE = {"typer", "rich", "matplotlib", "sklearn"}
BESIDE = {
    frozenset(): {"einops"},
    frozenset({"torch"}): {"keras", "onnx", "onnxruntime"},
    frozenset({"jax"}): {"keras", "flax", "optax"},
    frozenset({"tensorflow"}): {"keras"},
    frozenset({"mlx"}): set(),
}
ALL = {
    "torch", "jax", "tensorflow", "keras", "einops", "flax", "optax", "freegrad", "onnxruntime",
}  # fmt: skip
# Code of other packages as their users have it, which a page begins from.
OF_OTHERS = tuple(
    f"{word} {package}"
    for package in ("snntorch", "spikingjelly", "norse", "zennit", "brevitas", "larq")
    for word in ("import", "from")
)
# What it shows stands in files, which `tox run -e audit` and `tox run -e peers` run.
OF_FILES = {"docs/audited/faults.md", "docs/known_faults.md", "docs/peers/entmax.md"}
MOST_SECONDS = 10.0  # of work on one core, imports left out
PAGES = [page for page in pages() if page.blocks]
FIRST = ("README.md", "docs/index.md")


def is_code(page: Page) -> bool:
    return bool(page.script.strip()) and not needs_others(page)


def needs_others(page: Page) -> bool:
    """Return whether no environment of the tests has what a page needs."""
    needed = needs(page) - EVERYWHERE
    frameworks = frozenset(needed & FRAMEWORKS)
    return not needed <= (frameworks | BESIDE[frameworks] if frameworks in BESIDE else ALL)


def case(page: Page) -> Any:
    marks = [pytest.mark.needs(*sorted(needs(page)))]
    if page.name in FIRST:
        marks.append(pytest.mark.always)
    return pytest.param(page, id=page.name, marks=marks)


@pytest.mark.parametrize("page", [case(page) for page in PAGES if is_code(page)])
def test_a_page_runs_and_prints_what_it_promises(page: Page, tmp_path: Path) -> None:
    done = run_page(page, tmp_path)
    assert done.returncode == 0, f"{page.name}\n{done.errors}"
    assert unkept(page.script, done.printed) == [], page.name
    other = [text for text in not_printed(page, done.printed) if not text.startswith(OF_OTHERS)]
    assert other == [], f"{page.name} shows as output what it does not print"
    if "MULTIGRAD_TIMES" in os.environ:  # as `tox run -e pages` does, with nothing beside
        assert done.seconds <= MOST_SECONDS, f"{page.name} works for {done.seconds:.1f} s"


def test_every_block_is_run_or_is_no_code() -> None:
    other = [
        f"{page.name}:{block.line - 1} {block.language!r}"
        for page in PAGES
        for block in page.blocks
        if block.language not in SHOWN | RUN
    ]
    assert other == []


def test_code_that_is_shown_as_output_stands_on_pages_that_run() -> None:
    shown = {page.name for page in PAGES if code_shown(page)}
    assert shown - OF_FILES <= {page.name for page in PAGES if page.script.strip()}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_no_value_is_left_where_nobody_sees_it(page: Page) -> None:
    for node in ast.walk(ast.parse(page.script)):
        if isinstance(node, ast.Expr):
            seen = isinstance(node.value, ast.Call | ast.Constant | ast.Yield | ast.Await)
            assert seen, f"{page.name}:{node.lineno}: print it, and say what it prints"


def test_no_code_is_written_by_indentation_alone() -> None:
    found = []
    for path in (ROOT / page.name for page in pages()):
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [f"{path.relative_to(ROOT)}:{number}" for number in indented_code(lines)]
    assert found == []


def indented_code(lines: list[str]) -> list[int]:
    """Return the lines that begin a block by four spaces, outside of fences, lists and tabs."""
    found, fenced, within = [], False, False
    for number, line in enumerate(lines, 1):
        before = lines[number - 2] if number > 1 else ""
        if re.match(r" *(```|~~~)", line):
            fenced = not fenced
        elif not fenced and line.strip():
            if not line.startswith(" "):
                within = bool(re.match(r"([-*+]|\d+\.|===|!!!|\?\?\?\+?|<|\[\^|:::) ?", line))
            elif line.startswith("    ") and not before.strip() and not within:
                found.append(number)
    return found


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_command_is_ours_or_one_that_is_known(page: Page) -> None:
    blocks = [block for block in page.blocks if block.language == "console"]
    assert [line for block in blocks for line in not_commands(block)] == []
    for command in page.commands:
        command = command.partition("  #")[0].strip()
        known = [found for each in COMMANDS if (found := re.fullmatch(each, command))]
        assert command.startswith("multigrad ") or known, command
        for file in (found.groupdict().get("file") for found in known):
            titles = {block.title for block in page.blocks}
            assert file is None or file in titles or file == "train.py" or (ROOT / file).is_file()


@pytest.mark.needs("typer", "rich")
def test_every_option_that_a_page_names_exists() -> None:
    import typer

    import bench.command
    import demo.command
    from multigrad.command.app import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {f"multigrad {name}": options_of(command) for name, command in commands.items()}
    options["python tools/bench"] = options_of(typer.main.get_command(bench.command.app))
    options["tox run -e bench --"] = options["python tools/bench"]
    options["tox run -e demo --"] = options_of(typer.main.get_command(demo.command.app))
    lines = [line for page in PAGES for block in page.blocks for line in named_in(block)]
    assert len(lines) > 30
    before = ("CHANGELOG.md", "docs/history.md")
    now = [page.name for page in pages() if page.name not in before]
    whole = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in now)
    inline = {f"multigrad {line}" for line in re.findall(r"`multigrad ([a-z][^`\n]*)`", whole)}
    assert len(inline) > 10
    for line in (*lines, *inline):
        (known,) = (each for name, each in options.items() if f"{line} ".startswith(f"{name} "))
        asked = {word.partition("=")[0] for word in line.split() if word.startswith("--")}
        assert asked - {"--", "--help"} <= known, line


def options_of(command: Any) -> set[str]:
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)}


def named_in(block: Block) -> list[str]:
    """Return the commands of ours in a block, those of a transcript among them."""
    commands = commands_of(block.text) if block.language in ("console", "text") else []
    lines = (line.partition("  #")[0].removeprefix("python -m ") for line in commands)
    return [line for line in lines if OURS.match(line)]


def not_commands(block: Block) -> list[str]:
    """Return the lines of a block that are neither commands nor go on with one."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("$ ")]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_an_excerpt_is_what_stands_in_its_file(page: Page) -> None:
    for block in page.blocks:
        if block.excerpt_of is not None:
            whole = block.excerpt_of.read_text(encoding="utf-8")
            parts = re.split(r"\n\n+", block.text.strip("\n"))
            stale = [part for part in parts if part not in whole]
            assert stale == [], f"copy these lines of {block.excerpt_of} into {page.name} again"


def test_an_environment_has_what_a_page_needs() -> None:
    assert [page.name for page in PAGES if needs_others(page)] == []


# --- the reader of blocks itself ------------------------------------------------------------------

SAMPLE = """# Title

```python
x = 1
print(x)  # 1
```

=== "torch"

    ```python title="mine.py"
    print(
        "a\\nb",
    )
    # b
    # no line of it
    ```

```console
$ multigrad rules \\
    --json
```
"""


def test_blocks_are_read_with_their_lines_and_promises_with_their_prints() -> None:
    page = Page("sample.md", tuple(blocks_of(SAMPLE)))
    languages = [(block.language, block.title, block.line) for block in page.blocks]
    assert languages == [("python", "", 4), ("python", "mine.py", 11), ("console", "", 19)]
    lines = page.script.splitlines()
    assert (lines[3], lines[10]) == ("x = 1", "print(")
    assert lines[18] == "__command__('multigrad rules      --json')"
    assert promises(page.script) == {5: ["1"], 11: ["b", "no line of it"]}
    assert unkept(page.script, {5: "1\n", 11: "a\nb\n"}) == [
        "line 11: 'no line of it', printed 'a\\nb\\n'"
    ]
    assert len(unkept(page.script, {5: "1.0\n", 11: "b\nno line of it"})) == 1
    assert needs(page) == {"typer", "rich"}


def test_what_is_printed_elsewhere_keeps_no_promise(tmp_path: Path) -> None:
    text = "```python\nprint(1)\nprint(2)  # 1\n```\n"
    page = Page("sample.md", tuple(blocks_of(text)))
    done = run_page(page, tmp_path)
    assert done.returncode == 0, done.errors
    assert unkept(page.script, done.printed) == ["line 3: '1', printed '2\\n'"]


def test_a_page_that_fails_says_where(tmp_path: Path) -> None:
    page = Page("sample.md", tuple(blocks_of("text\n\n```python\nassert 1 == 2\n```\n")))
    done = run_page(page, tmp_path)
    assert done.returncode == 1
    assert re.search(r'page.py", line 4.*\n.*assert 1 == 2', done.errors)


def test_a_command_that_fails_must_be_said_to(tmp_path: Path) -> None:
    text = "```console\n$ multigrad rules --no-such-option{}\n```\n"
    for number, (comment, code) in enumerate([("", 1), ("  # exits with 2", 0)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        page = Page("sample.md", tuple(blocks_of(text.format(comment))))
        assert run_page(page, folder).returncode == code


def test_code_by_indentation_is_found() -> None:
    text = "text\n\n    code\n\n- item\n\n    its text\n\n```text\n\n    shown\n```\n"
    assert indented_code(text.splitlines()) == [3]
