"""Draws by compiled code have the bits of plain code, and whatever fails, plain code is there.

Tests that need a C compiler take `compiled` and say so where there is none.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from multigrad.errors import RuleValueError
from multigrad.graph import random as core
from multigrad.graph.random import draws, native
from multigrad.graph.random.native import write_source
from multigrad.graph.support.c_libraries import CLibrary, NoLibraryError, find_command

from ...support.threads import on_threads

DTYPES: tuple[Any, ...] = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
SIZES = (0, 1, 3, 1025, 100_003)
# The second crosses from one high word of the counters to the next, in short runs and in long ones.
KEYS_AND_SHAPES = (
    *(((0xDEADBEEF, 0xFFFFFFFF), (size,)) for size in SIZES),
    (core.PlacedKey((0, 7), (1 << 32) - 700, (9, 5, 300)), (3, 5, 7)),
    (core.PlacedKey((0, 7), (1 << 32) - 700, (9, 40_000)), (2, 39_999)),
    ((7, 0), ()),
)
POSIX = pytest.mark.skipif(os.name == "nt", reason="there is no compiled code on Windows")


def library(setting: str = "on", pays_from: int = 1, source: str = "") -> Any:
    return CLibrary("draws", lambda: source or write_source(), native.bind, pays_from, setting)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory where the first of these tests leaves the library."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def compiled(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The compiled functions, by which everything draws."""
    try:
        find_command()
    except NoLibraryError as error:
        pytest.skip(f"needs a C compiler: {error}")
    monkeypatch.setenv("MULTIGRAD_CACHE", str(cache))
    monkeypatch.setattr(native, "LIBRARY", library())
    assert core.find_kernels(1) is not None, native.LIBRARY.reason
    yield native.LIBRARY


@pytest.fixture
def empty_cache(compiled: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory for a library that is made anew."""
    monkeypatch.setenv("MULTIGRAD_CACHE", str(tmp_path))
    return tmp_path


def bits(draw: np.ndarray) -> tuple[Any, ...]:
    return draw.dtype, draw.shape, draw.tobytes()


# --- the same bits ---


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_compiled_draws_are_the_plain_ones(compiled: Any, dtype: Any) -> None:
    for key, shape in KEYS_AND_SHAPES:
        assert bits(core.uniform(key, shape, dtype)) == bits(draws.uniform(key, shape, dtype))
        assert bits(core.normal(key, shape, dtype)) == bits(draws.normal(key, shape, dtype))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_torch_draws_the_same_with_the_library_and_without(
    compiled: Any, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    import torch

    from multigrad_torch.kernels.random import normal_like, uniform_like

    def draw_all() -> list[Any]:
        cases = [*KEYS_AND_SHAPES, (torch.tensor([7, 4_000_000_000]), (5,)), ((0, 7), (300_001,))]
        likes = [(key, torch.empty(shape, dtype=getattr(torch, dtype))) for key, shape in cases]
        return [draw(key, x) for key, x in likes for draw in (uniform_like, normal_like)]

    with_it = draw_all()
    monkeypatch.setattr(native, "LIBRARY", library("off"))
    for ours, plain in zip(with_it, draw_all(), strict=True):
        assert ours.dtype == plain.dtype
        assert torch.equal(ours, plain)


@pytest.mark.needs("torch")
def test_transforms_traces_and_modes_of_torch_draw_the_same(compiled: Any) -> None:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from multigrad_torch.kernels.random import normal_like

    key, x = (0, 7), torch.zeros(1000)
    with torch.inference_mode():  # what it leaves behind serves draws outside of it
        inferred = normal_like(key, x)
    expected = normal_like(key, x)
    assert torch.equal(inferred, expected)
    rows = torch.func.vmap(lambda row: row + normal_like(key, row))(torch.zeros(2, 1000))
    assert torch.equal(rows, torch.stack([expected, expected]))
    gradient = torch.func.grad(lambda x: (x * normal_like(key, x)).sum())(x)
    assert torch.equal(gradient, expected)
    traced = make_fx(lambda x: x + normal_like(key, x))(x)
    assert torch.equal(traced(x), expected)
    kept = torch.jit.trace(lambda x: x + normal_like(key, x), x, check_trace=False)
    assert torch.equal(kept(x), expected)
    assert torch.equal(kept(x), expected)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        assert normal_like(key, torch.empty(1000)).shape == (1000,)


@pytest.mark.needs("tensorflow")
def test_tensorflow_draws_the_same_with_the_library_and_without(
    compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    from multigrad_tensorflow.kernels.random import normal_like, uniform_like

    def draw_all() -> list[bytes]:
        likes = [
            tf.zeros(shape, tf.as_dtype(dtype)) for shape in ((3,), (70, 1001)) for dtype in DTYPES
        ]
        each = (uniform_like, normal_like)
        return [draw((0, 7), x).numpy().tobytes() for x in likes for draw in each]

    with_it = draw_all()
    monkeypatch.setattr(native, "LIBRARY", library("off"))
    assert with_it == draw_all()


def test_threads_draw_at_once_what_one_draws(compiled: Any) -> None:
    expected = [core.normal((0, n), (50_001,), "float32") for n in range(8)]
    drawn: dict[int, np.ndarray] = {}

    def draw(n: int) -> None:
        drawn[n] = core.normal((0, n), (50_001,), "float32")

    on_threads(draw, *range(8))
    assert all(bits(drawn[n]) == bits(expected[n]) for n in range(8))


# --- when a compiler starts ---


def test_few_draws_start_no_compiler(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = library("auto", pays_from=1_000_000, source="/* another */\n" + write_source())
    monkeypatch.setattr(native, "LIBRARY", fresh)
    core.normal((0, 7), (1000,), "float32")
    assert fresh.thread is None
    assert not fresh.is_settled


def test_while_the_compiler_runs_plain_code_draws(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    fresh = library("auto")
    monkeypatch.setattr(native, "LIBRARY", fresh)
    before = core.normal((0, 7), (1000,), "float32")
    fresh.wait()
    assert fresh.bound is not None
    assert bits(core.normal((0, 7), (1000,), "float32")) == bits(before)
    kept = [*empty_cache.rglob("*.so")]
    assert [stat.S_IMODE(path.stat().st_mode) & 0o077 for path in kept] == [0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_draws_though_its_parents_compiler_runs(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    fresh = library("auto")
    monkeypatch.setattr(native, "LIBRARY", fresh)
    expected = bits(core.normal((0, 7), (1000,), "float32"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax and Python warn of forks beside threads
        child = os.fork()
    if not child:
        is_same = bits(core.normal((0, 7), (1000,), "float32")) == expected
        os._exit(0 if is_same else 1)
    assert os.waitpid(child, 0)[1] == 0
    fresh.wait()


# --- what can fail ---


def draw_plainly(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw by a library that cannot be had."""
    monkeypatch.setattr(native, "LIBRARY", library)
    for _ in range(2):
        drawn = core.normal((0, 7), (100,), "float32")
        assert bits(drawn) == bits(draws.normal((0, 7), (100,), "float32"))
    assert library.bound is None


@POSIX
def test_without_a_compiler_plain_code_draws_and_only_who_asked_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_plainly(library("auto"), monkeypatch)
    with pytest.warns(RuntimeWarning, match="no C compiler .*cc: install gcc or clang") as told:
        draw_plainly(library("on"), monkeypatch)
    assert len(told) == 1


@POSIX
def test_a_compiler_that_fails_is_named_with_what_it_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'out of disk' >&2\nexit 1\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("MULTIGRAD_CACHE", str(tmp_path / "cache"))
    with pytest.warns(RuntimeWarning, match=r"cc .* failed: out of disk"):
        draw_plainly(library("on"), monkeypatch)


@POSIX
def test_code_that_draws_other_numbers_is_not_used(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    wrong = write_source().replace("0x1bd11bda", "0x1bd11bdb")
    with pytest.warns(RuntimeWarning, match="draws other numbers than plain code"):
        draw_plainly(library("on", source=wrong), monkeypatch)


def test_a_damaged_file_is_made_again(empty_cache: Path) -> None:
    assert library().get(1) is not None
    (path,) = empty_cache.rglob("*.so")
    content = path.read_bytes()
    path.unlink()  # this process runs it
    path.write_bytes(content[: len(content) // 2])
    assert library().get(1) is not None
    (again,) = empty_cache.rglob("*.so")
    assert again.stat().st_size > len(content) // 2


def test_a_file_that_others_can_write_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    assert library().get(1) is not None
    (path,) = empty_cache.rglob("*.so")
    path.chmod(0o666)
    monkeypatch.setenv("CC", str(empty_cache / "no compiler"))
    fresh = library("auto")
    assert fresh.get(1) is None


def test_a_directory_that_cannot_be_had_costs_the_keeping_alone(
    compiled: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MULTIGRAD_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match="compiled, but not kept"):
        assert library().get(1) is not None
    monkeypatch.setenv("MULTIGRAD_CACHE", "off")
    assert library().get(1) is not None


def test_the_variable_switches_it_off_and_takes_three_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MULTIGRAD_NATIVE", "off")
    fresh = library("")
    draw_plainly(fresh, monkeypatch)
    assert fresh.reason == "MULTIGRAD_NATIVE=off"
    monkeypatch.setenv("MULTIGRAD_NATIVE", "yes")
    with pytest.raises(RuleValueError, match="MULTIGRAD_NATIVE is on, off or auto, got 'yes'"):
        library("").get(1)
