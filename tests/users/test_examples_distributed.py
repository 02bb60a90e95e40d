"""The examples of `examples/distributed`, each by its own launcher: two devices train to the
weights of one, with a surrogate, a norm of the whole batch and draws by a key.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from ..harness.hidden import run_python

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "distributed"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SHARDED = [
    ("torch", (*TORCHRUN, "torch_ddp.py"), ["DistributedDataParallel", "FSDP2"]),
    ("jax", ("jax_sharded.py",), ["automatic sharding", "shard_map"]),
    ("jax", ("jax_sharded.py", "--processes"), ["automatic sharding", "shard_map"]),
    ("tensorflow", ("tensorflow_two_workers.py",), ["MultiWorkerMirroredStrategy"]),
    ("keras-jax", ("keras_on_jax.py",), ["DataParallel"]),
]
CASES = [
    pytest.param(
        words,
        ways,
        marks=pytest.mark.needs("sklearn", *framework.split("-")),
        id="-".join(word for word in words if word[-3:] == ".py" or word == "--processes"),
    )
    for framework, words, ways in SHARDED
]


@pytest.mark.parametrize(("words", "ways"), CASES)
def test_two_devices_train_to_the_weights_of_one(
    words: tuple[str, ...], ways: list[str], tmp_path: Path
) -> None:
    place = [str(FOLDER / word) if word.endswith(".py") else word for word in words]
    result = run_python(*place, cwd=tmp_path, timeout=110, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line for line in result.stdout.splitlines() if "largest difference" in line]
    assert len(lines) == len(ways)
    for way, line in zip(ways, lines, strict=True):
        assert line.startswith(way)
        first, last, *differences = map(float, re.findall(r"\d+\.\d+(?:e[-+]\d+)?", line))
        assert last < 0.8 * first
        assert max(differences) < 1e-5


@pytest.mark.needs("sklearn")
def test_weights_that_are_not_those_of_one_device_are_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "digits", raising=False)
    digits = import_module("digits")
    one = [2.3, 1.1], [np.zeros((2, 2)), np.ones(3)]
    assert digits.compare("same", one, one)
    assert not digits.compare("moved", one, (one[0], [np.zeros((2, 2)), np.ones(3) + 1e-3]))
    assert not digits.compare("lost", one, ([2.3, np.nan], one[1]))
    assert "moved: loss 2.3000 to 1.1000" in capsys.readouterr().out
