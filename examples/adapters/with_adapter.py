"""Run a package's own tests as installed, and again with an adapter of this folder.

    python examples/adapters/with_adapter.py module:context TESTS ...

Fails if either run has a failure; so a line of ours can break none of their tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module

import pytest


class Adapted:
    """A plugin of pytest that keeps the adapter's block open around all tests."""

    def __init__(self, adapter: str) -> None:
        module, _, name = adapter.partition(":")
        self.block = getattr(import_module(module), name)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[object]:
        with self.block():
            return (yield)


def main(adapter: str, *tests: str) -> int:
    """Return 0 if all tests pass twice, else pytest's status."""
    options = ["-q", "-n0", "-p", "no:cacheprovider", "-c", "/dev/null", "--noconftest", *tests]
    return int(pytest.main(options) or pytest.main(options, plugins=[Adapted(adapter)]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
