"""Says how the suite is run where its options are not known."""

from __future__ import annotations

import pytest

PLUGIN = "multigrad.testing.plugin"


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(PLUGIN):
        raise pytest.UsageError(
            f"the conformance suite needs its plugin: pytest -p {PLUGIN} "
            f"--pyargs multigrad.testing.conformance --backends=NAME"
        )
