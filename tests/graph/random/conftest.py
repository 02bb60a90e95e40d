"""The random functions of the backend under test."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from multigrad.engine import random as core


@pytest.fixture
def kernels(backend: Any) -> ModuleType:
    if backend.name == "numpy":
        return core
    return importlib.import_module(f"multigrad_{backend.name}.kernels.random")
