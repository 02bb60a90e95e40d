"""`python -m multigrad.testing.conformance --backends=NAME`: the suite with its plugin."""

from __future__ import annotations

import sys

import pytest

from .conftest import PLUGIN

sys.exit(pytest.main(["-p", PLUGIN, "--pyargs", "multigrad.testing.conformance", *sys.argv[1:]]))
