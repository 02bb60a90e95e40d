"""Write the tables of the documentation from what they describe; a page that describes a framework
that is not installed stays as it is, and is named.

python tools/write_pages.py
python tools/write_pages.py --backend mlx
"""

from __future__ import annotations

import argparse
from pathlib import Path

from multigrad.command.options import prepare_environment
from stopping import run

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(";")[0])
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder of the pages")
    parser.add_argument("--backend", help="write the page of this backend alone")
    options = parser.parse_args()
    prepare_environment()
    if options.backend:
        from pages.backend_docs import write_backend_page

        print(write_backend_page(options.backend, options.out))
        return
    from pages.docs import PAGES, render_readme, write_docs

    for line in write_docs(options.out):
        print(line)
    if options.out == DOCS:
        readme = DOCS.parent / "README.md"
        readme.write_text(render_readme(readme.read_text("utf-8")), encoding="utf-8")
    print(f"{len(PAGES)} pages: those that are not named are as they were")


if __name__ == "__main__":
    run(main)
