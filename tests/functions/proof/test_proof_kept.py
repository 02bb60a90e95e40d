"""What a process has proven, another need not prove again, if nothing that the verdict rests on has
changed. What is kept is bounded, and damage to it costs another proof and nothing else.
"""

from __future__ import annotations

import importlib
import itertools
import os
import runpy
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import CacheWarning, DisprovedError, NativeRuleWarning
from multigrad.functions.proof import attempt
from multigrad.functions.proof.kept import content, verdicts
from multigrad.functions.recipes import record

SERIAL = itertools.count()
X = np.linspace(-1.7, 2.3, 12, dtype=np.float32).reshape(3, 4)
MINE = """
import functools
import numpy as np
import helpers
from helpers import Slopes, soften
import multigrad as xg

SLOPE = 2.0
TABLE = {"offsets": (0.25, [0.5])}

def make(scale):
    def closed(x):
        return soften(x) * scale
    return closed

scaled = make(3.0)

def forward(x, power=1.0):
    return helpers.bent(x) * SLOPE + scaled(x) + TABLE["offsets"][1][0] + Slopes.steep(x)

def backward(grad_out, x, power=1.0):
    return grad_out * power * x
"""
HELPERS = """
GAIN = 1.5

def bent(x):
    return x * GAIN + x * x

def soften(x):
    return x / (1.0 + x * x)

class Slopes:
    factor = 4.0

    @classmethod
    def steep(cls, x):
        return x * cls.factor
"""
# What changes in the two files: each alone is another function, or may be one.
CHANGES = {
    "a global": ("SLOPE = 2.0", "SLOPE = 2.5"),
    "a value in a container": ("[0.5]", "[0.75]"),
    "what is closed over": ("make(3.0)", "make(3.5)"),
    "a default": ("forward(x, power=1.0)", "forward(x, power=2.0)"),
    "the code": ("grad_out * power * x", "grad_out * x * power"),
    "a helper's code": ("x / (1.0 + x * x)", "x / (x * x + 1.0)"),
    "a helper that is reached through its module": ("x * GAIN + x * x", "x * x + x * GAIN"),
    "what that reads": ("GAIN = 1.5", "GAIN = 1.25"),
    "a class": ("factor = 4.0", "factor = 4.5"),
}


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of verdicts, which is not there yet."""
    monkeypatch.setenv("MULTIGRAD_PROVE", "1")
    monkeypatch.setenv("MULTIGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verdicts, "_warned", set())
    return tmp_path / "cache" / "verdicts" / "proven"


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Callable[[Callable[[], Any]], int]:
    """Count the proofs that are made while a function runs, as if in another process."""
    made: list[Any] = []
    prove = attempt._prove
    monkeypatch.setattr(attempt, "_prove", lambda given: made.append(given) or prove(given))

    def count(run: Callable[[], Any]) -> int:
        monkeypatch.setattr(verdicts, "_known", {})
        monkeypatch.setattr(verdicts, "_environments", {})
        made.clear()
        run()
        return len(made)

    return count


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], Any]]:
    """Write the two files with some text replaced, and give what runs their function."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(before: str = "", after: str = "", dtype: str = "float32") -> Callable[[], Any]:
        for name, text in (("mine", MINE), ("helpers", HELPERS)):
            (tmp_path / f"{name}.py").write_text(text.replace(before, after) if before else text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        mine = importlib.import_module("mine")

        def run() -> Any:
            return gradient(xg.function(mine.forward, mine.backward), X.astype(dtype))

        return run

    return write


def gradient(function: Any, x: Any = X) -> Any:
    y, pull = xg.vjp(function, x)
    return pull(np.ones_like(y))[0]


# --- what is proven again -------------------------------------------------------------------------


def test_what_was_proven_is_not_proven_again(proofs: Any, program: Any, cache: Path) -> None:
    run = program()
    first = run()
    cache.unlink()
    assert proofs(run) == 1
    again = program()
    assert proofs(again) == 0
    np.testing.assert_array_equal(again(), first)
    np.testing.assert_array_equal(first, X)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_is_proven_again(proofs: Any, program: Any, change: str) -> None:
    assert proofs(program()) == 1
    changed = program(*CHANGES[change])
    assert proofs(changed) == 1
    assert proofs(program(*CHANGES[change])) == 0
    assert proofs(program()) == 0


def test_another_dtype_is_proven_for_itself(proofs: Any, program: Any) -> None:
    assert proofs(program()) == 1
    assert proofs(program(dtype="float64")) == 1
    assert proofs(program(dtype="float64")) == 0


@pytest.mark.parametrize("owner", [np, xg])
def test_another_version_proves_for_itself(
    proofs: Any, program: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: Any
) -> None:
    assert proofs(program()) == 1
    if owner is np:
        monkeypatch.setattr(np, "__version__", "99.0")
    else:  # a file of ours is changed, whatever the version says
        (tmp_path / "ours").mkdir()
        (tmp_path / "ours" / "capture.py").touch()
        folders = (*content.own_folders(tuple(content.own_roots())), str(tmp_path / "ours"))
        monkeypatch.setattr(verdicts, "own_folders", lambda roots: folders)
    assert proofs(program()) == 1


def test_a_capture_that_has_become_wrong_is_found(
    proofs: Any, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is a part of what the verdict rests on."""
    assert proofs(program()) == 1
    capture = record.capture_function

    def capture_wrongly(*args: Any, **kwargs: Any) -> Any:
        variant = capture(*args, **kwargs)
        backward = variant.graphs.backward
        wrong = replace(backward, outputs=backward.inputs[:1])
        return replace(variant, graphs=replace(variant.graphs, backward=wrong))

    monkeypatch.setattr(record, "capture_function", capture_wrongly)
    for _ in range(2):  # that it is wrong is not kept
        with pytest.warns(NativeRuleWarning, match="differs from its graph"):
            assert proofs(program()) == 1


def computed(x: Any) -> Any:
    return x * getattr(np, "p" + "i")


def listing(x: Any) -> Any:
    rows: list[Any] = []
    rows.append(x)  # to a list of its own, as far as anybody knows
    return rows[0] * 2.0


def of_generator() -> Any:
    generator = np.random.RandomState(3)
    return lambda x: x * (2.0 if generator is None else 3.0)


@pytest.mark.parametrize("forward", [listing, of_generator()])
def test_what_may_depend_on_more_than_can_be_told_is_always_proven(
    proofs: Any, forward: Any, cache: Path
) -> None:
    for _ in range(2):
        assert proofs(lambda: gradient(xg.function(forward))) == 1
    assert not cache.exists()


class Settings:
    @property
    def scale(self) -> float:
        return float(Path("scale").read_text())


class Configured:
    def __call__(self, x: Any) -> Any:
        return x * Settings().scale


@pytest.mark.parametrize(
    "value", [computed, Configured(), np.frompyfunc(abs, 1, 1), object(), iter([1])]
)
def test_what_cannot_be_told_has_no_digest(value: Any) -> None:
    assert content.digest_of(value) is None


def test_a_file_is_read_again_where_a_branch_hides_it_from_the_capture(
    proofs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Arrays alone take the branch, and what it reads stands in no code."""

    def forward(x: Any) -> Any:
        return x * (Settings().scale if type(x.shape) is tuple else 2.0)

    monkeypatch.chdir(tmp_path)
    Path("scale").write_text("2.0")
    assert proofs(lambda: gradient(xg.function(forward))) == 1
    Path("scale").write_text("3.0")
    with pytest.raises(DisprovedError, match="differs from its graph"):
        proofs(lambda: gradient(xg.function(forward)))


def test_sets_and_names_have_one_digest_in_all_processes() -> None:
    code = """if True:
        from multigrad.functions.proof.kept.content import digest_of
        print(digest_of(lambda x: x in {"a", "b", "c"}, {"x": frozenset("defg")}, 0.0, -0.0))
    """
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    words = [sys.executable, "-c", code]
    found = [subprocess.run(words, env=env, capture_output=True, check=True) for env in seeds]
    assert found[0].stdout == found[1].stdout != b"None\n"
    assert content.digest_of(0.0) != content.digest_of(-0.0)


def test_all_calls_are_proven_where_that_is_asked_for(
    proofs: Any, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proofs(program()) == 1
    monkeypatch.setenv("MULTIGRAD_PROVE", "all")
    assert proofs(program()) == 1


def test_off_keeps_nothing_and_reads_nothing(
    proofs: Any, program: Any, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    assert proofs(program()) == 1
    size = cache.stat().st_size
    monkeypatch.setenv("MULTIGRAD_CACHE", "off")
    assert proofs(program()) == 1
    assert cache.stat().st_size == size


def test_rules_are_kept_with_their_params_and_parts(proofs: Any) -> None:
    def written(scale: float) -> Any:
        def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
            return grad_out * np.exp(-np.abs(tin) * width) * scale

        def run() -> Any:
            name = f"kept {next(SERIAL)}"
            made = xg.register(name)(rule)
            xg.unregister(name)
            return made(None, X, X)

        return run

    assert proofs(written(2.0)) == 1
    assert proofs(written(2.0)) == 0
    assert proofs(written(3.0)) == 1


OF_FRAMEWORKS = {
    "torch": """
        import torch, multigrad as xg
        SCALE = 2.0

        @xg.convert
        class Clipped(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.clone()

            @staticmethod
            def backward(ctx, grad_out):
                return grad_out.clamp(-1, 1) * SCALE * ctx.saved_tensors[0]

        x = torch.ones(3, requires_grad=True)
        Clipped.apply(x).sum().backward()
    """,
    "jax": """
        import jax, jax.numpy as jnp, multigrad as xg
        SCALE = 2.0

        @jax.custom_vjp
        def clipped(x):
            return x * 1.0

        clipped.defvjp(lambda x: (clipped(x), x), lambda x, g: (jnp.clip(g, -1, 1) * SCALE * x,))
        clipped = xg.convert(clipped)
        jax.grad(lambda x: clipped(x).sum())(jnp.ones(3))
    """,
    "tensorflow": """
        import tensorflow as tf, multigrad as xg
        SCALE = 2.0

        @xg.convert
        @tf.custom_gradient
        def clipped(x):
            return tf.identity(x), lambda g: tf.clip_by_value(g, -1, 1) * SCALE * x

        x = tf.ones(3)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = clipped(x)
        tape.gradient(y, x)
    """,
}


@pytest.mark.parametrize(
    "text", [pytest.param(t, marks=pytest.mark.needs(n), id=n) for n, t in OF_FRAMEWORKS.items()]
)
def test_custom_gradients_of_frameworks_are_kept(proofs: Any, text: str, tmp_path: Path) -> None:
    own, changed = tmp_path / "own.py", tmp_path / "changed.py"
    own.write_text(textwrap.dedent(text))
    changed.write_text(textwrap.dedent(text.replace("SCALE = 2.0", "SCALE = 3.0")))
    assert proofs(lambda: runpy.run_path(str(own))) > 0
    assert proofs(lambda: runpy.run_path(str(own))) == 0
    assert proofs(lambda: runpy.run_path(str(changed))) > 0


# --- the file -------------------------------------------------------------------------------------


def test_only_its_owner_can_read_the_file_and_no_name_stands_in_it(
    proofs: Any, program: Any, cache: Path
) -> None:
    proofs(program())
    assert "mine" not in cache.read_text()
    if os.name != "nt":
        assert cache.stat().st_mode & 0o777 == 0o600
        assert cache.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["cut", "edited", "binary", "empty"])
def test_a_damaged_file_is_said_once_and_proven_again(
    proofs: Any, program: Any, cache: Path, damage: str
) -> None:
    assert proofs(program()) == 1
    text = cache.read_bytes()
    first = b"0" if text[1:2] != b"0" else b"1"
    damaged = {"cut": text[:40], "edited": text[:1] + first + text[2:], "binary": bytes(range(256))}
    cache.write_bytes(damaged.get(damage, b""))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert proofs(program()) == 1
        assert proofs(program()) == 0  # it was written anew
    # A line that was edited stands for something else, which nobody asks for.
    is_seen = damage in ("cut", "binary")
    assert ["damaged lines" in str(each.message) for each in said] == [True] * is_seen


@pytest.mark.skipif(os.name == "nt", reason="modes of files say nothing on Windows")
@pytest.mark.parametrize("which", ["file", "folder"])
def test_what_others_can_write_is_not_believed(
    proofs: Any, program: Any, cache: Path, which: str
) -> None:
    assert proofs(program()) == 1
    (cache if which == "file" else cache.parent).chmod(0o777)
    with pytest.warns(CacheWarning, match="others may write into .*: type chmod go-w"):
        assert proofs(program()) == 1


def full(*args: Any, **kwargs: Any) -> Any:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("how", ["full", "no folder"])
def test_where_nothing_can_be_written_a_warning_says_why_once(
    proofs: Any, program: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    if how == "full":
        monkeypatch.setattr(verdicts, "_append", full)
    else:
        (tmp_path / "file").touch()
        monkeypatch.setenv("MULTIGRAD_CACHE", str(tmp_path / "file" / "cache"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert proofs(program()) == 1
        assert proofs(program()) == 1
    kept = [str(each.message) for each in said if "is not kept" in str(each.message)]
    assert len(kept) == 1
    assert kept[0].endswith("All else works; MULTIGRAD_CACHE=off keeps nothing and says nothing")


def test_the_file_stays_small_and_the_oldest_go(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(verdicts, "MOST", 20)
    monkeypatch.setattr(verdicts, "_known", {})
    keys = [f"{n:064x}" for n in range(100)]
    for key in keys:
        verdicts.keep(key)
        assert cache.stat().st_size <= 21 * verdicts.LINE
    monkeypatch.setattr(verdicts, "_known", {})
    kept = [key for key in keys if verdicts.is_kept(key)]
    assert kept == keys[-len(kept) :]
    assert len(kept) >= 10


def test_many_writers_at_once_lose_nothing(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(verdicts, "_known", {})
    keys = [f"{n:064x}" for n in range(400)]
    code = "import sys; from multigrad.functions.proof.kept.verdicts import keep\n"
    code += "for n in range(int(sys.argv[1]), 400, 4): keep(f'{n:064x}')"
    words = [[sys.executable, "-c", code, str(n)] for n in (0, 1)]
    processes = [subprocess.Popen(each, env=dict(os.environ)) for each in words]
    threads = [
        threading.Thread(target=lambda n=n: [verdicts.keep(key) for key in keys[n::4]])
        for n in (2, 3)
    ]
    for thread in threads:
        thread.start()
    for each in (*threads, *processes):
        each.join() if isinstance(each, threading.Thread) else each.wait()
    kept, damaged = verdicts.read_keys(cache)
    assert damaged == 0
    assert sorted(kept) == keys
