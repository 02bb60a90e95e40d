"""Write the gallery: one page of all rules and estimators, with sliders, that works offline.

python tools/write_gallery.py
python tools/write_gallery.py my_rules --out gallery.html
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from multigrad.engine.support.files import write_whole
from pages.gallery.page import render_gallery


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="modules that register rules of yours")
    parser.add_argument("--out", type=Path, default=Path("gallery.html"), help="the page")
    options = parser.parse_args()
    for name in options.modules:
        import_module(name)
    write_whole(options.out, render_gallery())
    print(options.out)


if __name__ == "__main__":
    main()
