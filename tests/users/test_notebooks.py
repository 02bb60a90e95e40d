"""The notebooks of the tutorials: each is what its Markdown gives, runs, and prints what is
promised.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ..harness.pages import promises

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
MAKE = "python docs/_build/notebooks.py"


def load_maker() -> Any:
    path = ROOT / "docs" / "_build" / "notebooks.py"
    spec = importlib.util.spec_from_file_location("notebooks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maker = load_maker()


def read_markdown(name: str) -> str:
    return (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")


def read_notebook(name: str) -> dict[str, Any]:
    return json.loads((TUTORIALS / f"{name}.ipynb").read_text(encoding="utf-8"))


def broken_promises(notebook: dict[str, Any]) -> list[str]:
    """Return the lines that a cell promises and did not print, in their order."""
    missing = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and not cell["source"].startswith(("%", "!")):
            lines = [
                line.strip()
                for output in cell["outputs"]
                if output["output_type"] == "stream"
                for line in "".join(output["text"]).splitlines()
            ]
            rest = iter(lines)
            texts = [text for each in promises(cell["source"]).values() for text in each]
            missing += [text for text in texts if text not in rest]
    return missing


@pytest.mark.parametrize("name", maker.NOTEBOOKS)
def test_a_notebook_is_what_its_markdown_gives(name: str) -> None:
    cells = [(cell["cell_type"], cell["source"]) for cell in read_notebook(name)["cells"]]
    assert cells == maker.make_cells(read_markdown(name)), f"type: {MAKE} {name}"


@pytest.mark.parametrize("name", maker.NOTEBOOKS)
def test_a_notebook_shows_what_it_promises_and_no_error(name: str) -> None:
    notebook = read_notebook(name)
    assert broken_promises(notebook) == [], f"type: {MAKE} {name}"
    kinds = {
        output["output_type"]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
        for output in cell["outputs"]
    }
    assert kinds <= {"stream", "display_data", "execute_result"}


@pytest.mark.parametrize("name", maker.NOTEBOOKS)
def test_a_page_offers_its_notebook(name: str) -> None:
    assert f'href="{name}.ipynb"' in read_markdown(name)


@pytest.mark.parametrize("path", sorted(TUTORIALS.glob("*.md")), ids=lambda path: path.stem)
def test_a_picture_is_saved_by_the_code_of_the_page_that_shows_it(path: Path) -> None:
    markdown = path.read_text(encoding="utf-8")
    shown = re.findall(r"\(pictures/([\w.]+)\)", markdown)
    assert (path.stem in maker.WITH_PICTURES) == bool(shown)
    for picture in shown:
        assert f'savefig("{picture}"' in maker.script_of(markdown)
        assert (TUTORIALS / "pictures" / picture).stat().st_size <= 60_000


@pytest.mark.needs("torch", "jax", "tensorflow", "nbclient", "ipykernel")
@pytest.mark.parametrize("name", maker.NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTIGRAD_PROVE", raising=False)  # as a reader's kernel has it
    done = maker.run_notebook(maker.make_notebook(maker.make_cells(read_markdown(name))), tmp_path)
    assert broken_promises(done) == []


SAMPLE = """# Title

Text with [a link](../page.md#there) and [one out](https://example.org).

```python title="mine.py"
x = 1
```

```console
$ multigrad show mine:x
```

```text
output
```

```python
import matplotlib
matplotlib.use("Agg")  # draw into files
print(x)  # 1
```

![a picture](pictures/x.png)
"""


def test_blocks_become_cells_and_the_rest_text() -> None:
    assert maker.make_cells(SAMPLE) == [
        ("markdown", "# Title\n\nText with a link and [one out](https://example.org)."),
        ("code", "%%writefile mine.py\nx = 1"),
        ("code", "%run -i mine.py"),
        ("code", "!multigrad show mine:x"),
        ("markdown", "```text\noutput\n```"),
        ("code", "print(x)  # 1"),
    ]
