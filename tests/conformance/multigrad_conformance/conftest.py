"""Says how the suite is run where its options are not known."""

from __future__ import annotations

import pytest

from . import plugin

PLUGIN = plugin.__name__
# Each backend by its row alone, whatever the tests around the suite make of that name.
backend = plugin.backend


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(PLUGIN):
        raise pytest.UsageError(
            f"the conformance suite needs its plugin: pytest -p {PLUGIN} "
            f"--pyargs multigrad_conformance --backends=NAME"
        )
