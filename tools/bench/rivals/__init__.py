"""The hand-written rivals, one file per framework; `python tools/bench --show` prints them."""

from __future__ import annotations

from pathlib import Path


def read_source(backend: str) -> str:
    """Return the source of a framework's rivals, also where the framework is not installed."""
    return Path(__file__).with_name(f"in_{backend}.py").read_text(encoding="utf-8")
