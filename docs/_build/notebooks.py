"""The notebooks and pictures of the tutorials, made of the tutorials' Markdown.

`python docs/_build/notebooks.py` runs each page in a kernel and writes the notebook beside it, and
the pictures that its code saves, which the page shows. The Markdown is what is written by hand;
`tests/users/test_notebooks.py` says when a notebook is not what it gives.

Needs: pip install nbclient ipykernel, and what the page imports.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parents[1] / "tutorials"
EXPLAINED = ("straight_through", "surrogate_gradient")
NOTEBOOKS = ("from_freegrad_or_snntorch", "from_custom_gradients", *EXPLAINED)
WITH_PICTURES = ("from_freegrad_or_snntorch", "explain_a_model", *EXPLAINED)
FENCE = re.compile(r"^```(?P<language>[\w+-]*)(?P<info>.*)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:)[^)]*\)")  # to another page of the site
SHOWN_ELSEWHERE = re.compile(r"^(!\[.*\]\(.*\)|<p class=\"notebook\">.*)\n", re.MULTILINE)
# A notebook draws below its cells by itself.
INTO_FILES = re.compile(r'^(import matplotlib|matplotlib\.use\("Agg"\).*)\n', re.MULTILINE)

Cell = tuple[str, str]
"""A kind, "markdown" or "code", and its source."""


def make_cells(markdown: str) -> list[Cell]:
    """Return the cells of a page: its code blocks and commands, and the text between them."""
    cells: list[Cell] = []
    text, end = "", 0
    for block in FENCE.finditer(markdown):
        text += markdown[end : block.start()]
        end = block.end()
        code = list(code_of(block))
        if not code:
            text += block[0]
            continue
        cells += [("markdown", as_text(text)), *(("code", source) for source in code)]
        text = ""
    cells.append(("markdown", as_text(text + markdown[end:])))
    return [(kind, source) for kind, source in cells if source]


def code_of(block: re.Match[str]) -> Iterator[str]:
    """Yield the cells of a block: none if it is not run, two if it is a file as well."""
    if block["language"] == "python":
        source = INTO_FILES.sub("", block["text"]).strip("\n")
        title = re.search(r'title="([^"]+)"', block["info"])
        if title is None:
            yield source
        else:
            yield f"%%writefile {title[1]}\n{source}"
            yield f"%run -i {title[1]}"
    elif block["text"].startswith("$ multigrad "):
        yield block["text"].replace("$ ", "!", 1).strip("\n")


def as_text(markdown: str) -> str:
    """Return text without links to pages that do not lie beside a notebook."""
    return LINK.sub(r"\1", SHOWN_ELSEWHERE.sub("", markdown)).strip("\n")


def make_notebook(cells: list[Cell]) -> dict[str, Any]:
    """Return a notebook that was not run."""
    return {
        "cells": [make_cell(number, *cell) for number, cell in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def make_cell(number: int, kind: str, source: str) -> dict[str, Any]:
    """Return a cell; its id is its place, so that a change of one leaves the others."""
    cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source}
    return cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}


def run_notebook(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a notebook with its outputs; an error in a cell is an error here."""
    import nbclient
    import nbformat

    done = nbformat.from_dict(notebook)
    # On a busy machine a kernel starts slowly, and what it printed comes after the 4 seconds for
    # which nbclient waits by default, and is then lost.
    patience = {"timeout": 300, "startup_timeout": 300, "iopub_timeout": 300}
    client = nbclient.NotebookClient(
        done, kernel_name="python3", coalesce_streams=True, **patience
    )
    client.execute(cwd=str(folder))
    for cell in done.cells:
        cell.metadata = {}  # times
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    return done


def script_of(markdown: str) -> str:
    """Return the code of a page."""
    found = (block for block in FENCE.finditer(markdown) if block["language"] == "python")
    return "\n".join(block["text"] for block in found)


def draw_pictures(name: str) -> None:
    """Run a page's code, and keep the pictures that it saves and the page shows."""
    markdown = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "page.py").write_text(script_of(markdown), encoding="utf-8")
        subprocess.run([sys.executable, "page.py"], cwd=folder, check=True)
        for picture in re.findall(r"\(pictures/([\w.]+)\)", markdown):
            shutil.copy(Path(folder) / picture, TUTORIALS / "pictures" / picture)
            print(f"drawn: {TUTORIALS / 'pictures' / picture}")


def write_notebook(name: str) -> None:
    """Run a page as a notebook, and write it beside the page."""
    markdown = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        done = run_notebook(make_notebook(make_cells(markdown)), Path(folder))
    path = TUTORIALS / f"{name}.ipynb"
    text = json.dumps(done, indent=1, ensure_ascii=False, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"written: {path}")


def main(names: list[str]) -> None:
    for name in names or sorted({*NOTEBOOKS, *WITH_PICTURES}):
        if name in WITH_PICTURES:
            draw_pictures(name)
        if name in NOTEBOOKS:
            write_notebook(name)


if __name__ == "__main__":
    main(sys.argv[1:])
