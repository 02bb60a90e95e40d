"""The DIGITS experiment as people run it: a command that trains, prints tables and leaves files."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..harness.hidden import run_without
from ..support.sampling import sample

NAMES = ("numpy", "torch", "jax", "tensorflow", "keras", "freegrad")
RULES = ("true", "d(Linear)", "rectangular", "triangular")
ROWS = [(forward, rule) for forward in ("Logistic", "Heaviside") for rule in RULES]
DEMO = Path(__file__).parents[2] / "examples" / "demo"
EVERYWHERE = pytest.mark.needs("torch", "jax", "tensorflow")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

pytestmark = pytest.mark.needs("typer", "rich", "sklearn", "matplotlib")


def demo_command(*words: object) -> list[str]:
    return [sys.executable, str(DEMO), *map(str, words)]


def invoke_demo(*words: object) -> Any:
    """Run the demo in this process, which saves its start; for NumPy alone."""
    from typer.testing import CliRunner

    from demo.command import app

    return CliRunner().invoke(app, ["--frameworks", "numpy", *map(str, words)])


def run_demo(*words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        demo_command(*words), check=False, capture_output=True, text=True, env=environment
    )


def read_results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def list_installed() -> list[str]:
    """Name the frameworks that the demo must use here."""
    names = [name for name in NAMES if find_spec(name) is not None]
    return [name for name in names if name != "freegrad" or "torch" in names]


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Two epochs of everything in every installed framework: what was printed, and the folder."""
    folder = tmp_path_factory.mktemp("demo") / "figures"
    result = run_demo("--epochs", 2, "--out", folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, folder


@pytest.fixture
def task() -> Any:
    from demo.task import load_task

    return load_task(epochs=3, seed=0)


@EVERYWHERE
def test_every_installed_framework_runs_every_row(everywhere: tuple[str, Path]) -> None:
    runs = read_results(everywhere[1])["runs"]
    for name in list_installed():
        rows = [(run["forward"], run["rule"]) for run in runs if run["framework"] == name]
        # FreeGrad 1.0.1 cannot differentiate its Heaviside without a rule.
        absent = [("Heaviside", "true")] if name == "freegrad" else []
        assert rows == [row for row in ROWS if row not in absent]


def group_runs(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the frameworks' runs of each network."""
    runs = read_results(folder)["runs"]
    return [[run for run in runs if (run["forward"], run["rule"]) == row] for row in ROWS]


def count_differing(runs: list[dict[str, Any]]) -> int:
    """Count the test images that the two most different of these runs label differently."""
    labels = [np.array(run["predictions"]) for run in runs]
    return max(int(np.sum(one != other)) for one in labels for other in labels)


@EVERYWHERE
def test_the_table_has_a_row_for_each_network(everywhere: tuple[str, Path]) -> None:
    printed, folder = everywhere
    lines = [line.split() for line in printed.splitlines()]
    for runs in group_runs(folder):
        row = next(line for line in lines if line[:2] == [runs[0]["forward"], runs[0]["rule"]])
        assert row[2] == str(len(runs))
        accuracies = sorted(f"{run['accuracy']:.4f}" for run in runs)
        assert {row[3], row[-3]} == {accuracies[0], accuracies[-1]}
        if len(runs) > 1:
            assert row[-2] == str(count_differing(runs))
            assert 0 < float(row[-1]) < 1e-6


@EVERYWHERE
def test_the_first_thing_that_is_said_of_the_results_is_whether_they_agree(
    everywhere: tuple[str, Path],
) -> None:
    printed, folder = everywhere
    groups = [group for group in group_runs(folder) if len(group) > 1]
    alike = sum(count_differing(group) == 0 for group in groups)
    said = f"label the same 360 test images alike in {alike} of {len(groups)} networks"
    assert said in " ".join(printed.split())
    assert printed.index("agree: NumPy") < printed.index("hidden units")
    progress = printed[: printed.index("agree: NumPy")].splitlines()
    for name in list_installed():
        count = 7 if name == "freegrad" else 8
        assert sum(line.startswith(f"{name} ") for line in progress) == 1
        assert any(f"{name:<10} {count} networks trained in" in line for line in progress)


def made_up(framework: str, rule: str, wrong: int = 0, gradient: float = 1.0) -> Any:
    """Return a run that labels so many of 360 images differently, with this first gradient."""
    from demo.runs import Configuration, Run

    predictions = np.zeros(360, np.int64)
    predictions[:wrong] = 1
    each = np.array([gradient])
    row = Configuration("Heaviside", rule)
    return Run(framework, row, 0.1, (1.0,), (0.5,), predictions, (each, each, each, each))


def say(*runs: Any) -> str:
    """Return the sentence on these runs."""
    from demo.parity import compare
    from demo.verdict import describe_agreement

    names = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX"}
    return describe_agreement(runs, compare(runs), names)


def test_differences_that_rounding_accounts_for_are_counted() -> None:
    rest = [made_up(name, "triangular") for name in ("numpy", "torch")]
    text = say(*rest, made_up("numpy", "true"), made_up("torch", "true", wrong=3))
    assert text == (
        "Both agree: NumPy and PyTorch label the same 360 test images alike in 1 of 2 networks; "
        "in the rest two differ in at most 3, which rounding accounts for; "
        "their first gradients differ by at most 0e+00."
    )


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"wrong": 4}, "NumPy and JAX label 4 of the 360 test images differently"),
        ({"gradient": 1.00001}, "first gradients differ by 1e-05"),
        ({"gradient": np.nan}, "first gradients differ by nan"),
    ],
)
def test_a_difference_beyond_rounding_is_not_called_agreement(
    other: dict[str, Any], reason: str
) -> None:
    rest = [made_up(name, "triangular") for name in ("numpy", "torch", "jax")]
    text = say(*rest, made_up("numpy", "true"), made_up("jax", "true", **other))
    assert text.startswith("They do not agree: in 1 of 2 networks")
    assert f"Heaviside, true: {reason}" in text


def test_a_network_that_a_framework_has_not_trained_is_not_counted_for_it() -> None:
    two = [made_up(name, rule) for name in ("numpy", "torch") for rule in ("true", "triangular")]
    text = say(*two, made_up("jax", "true"))
    assert text.startswith("All three agree: NumPy, PyTorch and JAX (in 1 of 2) label")


@EVERYWHERE
def test_a_run_records_each_epoch_and_its_last_predictions(everywhere: tuple[str, Path]) -> None:
    for run in read_results(everywhere[1])["runs"]:
        assert len(run["losses"]) == len(run["accuracies"]) == 2
        assert len(run["predictions"]) == 360
        assert run["accuracy"] == run["accuracies"][-1]
        assert run["losses"][1] < run["losses"][0]
        assert run["seconds"] > 0


@EVERYWHERE
def test_all_frameworks_take_the_same_first_step(everywhere: tuple[str, Path]) -> None:
    parity = read_results(everywhere[1])["parity"]
    assert [(row["forward"], row["rule"]) for row in parity] == ROWS
    for row in parity:
        assert row["reference"] == "numpy"
        for difference in row["to_reference"]:
            assert difference["gradient"] <= 4e-6 * row["largest_gradient"]
            assert difference["predictions"] <= 1


@EVERYWHERE
@pytest.mark.weekly
def test_after_a_whole_training_the_frameworks_agree_on_the_test_images(tmp_path: Path) -> None:
    # `rectangular` is the hardest rule: at its edges a rounding error can switch a gradient off.
    result = run_demo("--rules", "rectangular", "--out", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    results = read_results(tmp_path)
    worst = {row["forward"]: row["worst"]["predictions"] for row in results["parity"]}
    assert worst["Logistic"] <= 1
    assert worst["Heaviside"] <= 3
    # FreeGrad 1.0.1's five seeds: .953 +- .006 with Logistic, .963 +- .005 with Heaviside.
    for run in results["runs"]:
        assert run["accuracy"] > (0.929 if run["forward"] == "Logistic" else 0.943)


@EVERYWHERE
def test_the_pictures_are_written(everywhere: tuple[str, Path]) -> None:
    for name in ("learning-curves.png", "gradient-shapes.png"):
        assert (everywhere[1] / name).read_bytes().startswith(PNG_SIGNATURE)
        assert str(everywhere[1] / name) in everywhere[0]


def test_without_any_framework_it_runs_on_numpy_alone(tmp_path: Path) -> None:
    result = run_without([*NAMES[1:], "mlx"], "examples/demo", "--epochs", 1, "--out", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    runs = read_results(tmp_path)["runs"]
    assert [(run["framework"], run["forward"], run["rule"]) for run in runs] == [
        ("numpy", *row) for row in ROWS
    ]
    assert "Nothing to compare" in result.stdout


def test_the_seed_decides_the_numbers(tmp_path: Path) -> None:
    losses = []
    for index, seed in enumerate((5, 5, 6)):
        folder = tmp_path / str(index)
        words = ("--rules", "triangular", "--epochs", 2, "--seed", seed, "--out", folder)
        assert invoke_demo(*words).exit_code == 0
        losses.append([run["losses"] for run in read_results(folder)["runs"]])
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_options_choose_frameworks_rules_and_epochs(tmp_path: Path) -> None:
    result = invoke_demo("--rules", "true, triangular,true", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    results = read_results(tmp_path)
    assert [run["rule"] for run in results["runs"]] == ["true", "triangular"] * 2
    assert results["settings"]["epochs"] == 10
    assert results["settings"]["learning_rate"] == 0.3


def test_the_quick_networks_have_learned(tmp_path: Path) -> None:
    assert invoke_demo("--quick", "--out", tmp_path).exit_code == 0
    runs = read_results(tmp_path)["runs"]
    accuracies = {(run["forward"], run["rule"]): run["accuracy"] for run in runs}
    # With the derivative of Heaviside, which is zero, the hidden layer stays as it was drawn.
    assert accuracies.pop(("Heaviside", "true")) < 0.85
    assert min(accuracies.values()) > 0.84


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--frameworks", "numpy,torhc"), "did you mean 'torch'"),
        (("--rules", "triangluar"), "did you mean 'triangular'"),
        (("--epochs", "0"), "epochs"),
        (("--seed", "-1"), "seed"),
    ],
)
def test_a_wrong_option_is_an_error_before_anything_is_trained(
    tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    folder = tmp_path / "out"
    result = invoke_demo(*words, "--out", folder)
    assert result.exit_code == 2
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert not folder.exists()


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    occupied = tmp_path / "out"
    occupied.write_text("mine")
    result = invoke_demo("--out", occupied)
    assert result.exit_code == 2
    assert str(occupied) in result.stderr
    assert occupied.read_text() == "mine"


def test_a_framework_that_is_not_installed_names_its_install_line(tmp_path: Path) -> None:
    result = run_without(
        ["jax"], "examples/demo", "--frameworks", "numpy,jax", "--out", tmp_path / "out"
    )
    assert result.returncode == 2
    assert "pip install 'jax>=" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("module", ["sklearn", "matplotlib"])
def test_without_its_packages_it_names_the_line_that_installs_them(module: str) -> None:
    result = run_without([module], "examples/demo", "--frameworks", "numpy")
    assert result.returncode == 2
    assert "python -m tox run -e demo" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_broken_framework_does_not_cost_the_others_their_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "site" / "tensorflow"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('libbroken.so: cannot open')\n")
    path = os.pathsep.join(filter(None, [str(broken.parent), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    words = ("--frameworks", "tensorflow,numpy", "--rules", "true", "--epochs", 1)
    result = run_demo(*words, "--out", tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    results = read_results(tmp_path)
    assert [run["framework"] for run in results["runs"]] == ["numpy", "numpy"]
    assert {gap["framework"] for gap in results["gaps"] if gap["failed"]} == {"tensorflow"}
    assert "tensorflow failed" in result.stdout
    assert "libbroken.so" in result.stdout


def test_an_import_that_takes_long_is_named_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "site" / "tensorflow"
    slow.mkdir(parents=True)
    (slow / "__init__.py").write_text("import time\ntime.sleep(5)\nraise OSError('slow')\n")
    path = os.pathsep.join(filter(None, [str(slow.parent), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    words = ("--frameworks", "tensorflow", "--rules", "true", "--epochs", 1, "--out", tmp_path)
    printed = run_demo(*words).stdout
    seconds = [0, *map(int, re.findall(r"importing tensorflow \.\.\. (\d+) s", printed)), 5]
    assert len(seconds) > 3
    assert max(np.diff(seconds)) <= 3


def test_an_interrupt_that_gets_lost_is_known_and_prints_no_traceback() -> None:
    code = """if True:
        import gc, signal
        from multigrad.look.command.options import Interruption

        def callback(phase, info):
            gc.callbacks.remove(callback)
            signal.raise_signal(signal.SIGINT)

        with Interruption() as interruption:
            gc.callbacks.append(callback)
            gc.collect()
        print(interruption.requested)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.skipif(os.name == "nt", reason="an interrupt is sent in another way on Windows")
@pytest.mark.anywhere
@pytest.mark.parametrize(
    "framework", [pytest.param(n, marks=pytest.mark.needs(n)) for n in sample(NAMES, 1 / 3)]
)
def test_an_interrupt_keeps_what_is_finished(framework: str, tmp_path: Path) -> None:
    command = demo_command("--frameworks", f"numpy,{framework}", "--epochs", 30, "--out", tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        heard = []
        for line in process.stdout:
            heard.append(line)
            if line.startswith(b"training " + framework.encode()):
                process.send_signal(signal.SIGINT)
                break
        heard.append(process.stdout.read())
        code = process.wait()
    printed = b"".join(heard).decode()
    assert code == 130, printed
    assert "Traceback" not in printed
    results = read_results(tmp_path)
    assert results["interrupted"]
    finished = [] if framework == "numpy" else ["numpy"] * 8
    names = [run["framework"] for run in results["runs"]]
    assert names[: len(finished)] == finished
    assert len(names) < len(finished) + 8
    assert all(len(run["losses"]) == 30 for run in results["runs"])
    assert "Interrupted: " in printed
    if finished:
        assert (tmp_path / "learning-curves.png").read_bytes().startswith(PNG_SIGNATURE)
        assert f"{results['runs'][0]['accuracy']:.4f}" in printed


def test_the_split_is_freegrads(task: Any) -> None:
    assert task.train_x.shape == (1437, 64)
    assert task.test_x.shape == (360, 64)
    assert task.train_x.dtype == np.float32
    assert task.train_x.min() == 0.0
    assert task.train_x.max() == 1.0


def test_each_epoch_shows_every_image_once_in_another_order(task: Any) -> None:
    from demo.task import batches

    sizes = [len(labels) for _, labels in batches(task, task.orders[0])]
    assert sizes == [64] * 22 + [29]
    assert all(sorted(order) == list(range(1437)) for order in task.orders)
    assert not np.array_equal(task.orders[0], task.orders[1])


def test_numpy_gradients_are_those_of_the_loss(task: Any) -> None:
    from demo.task import first_batch
    from demo.training import in_numpy

    exact = dataclasses.replace(
        task,
        train_x=task.train_x.astype(np.float64),
        weights=tuple(weight.astype(np.float64) for weight in task.weights),
    )
    gradients = in_numpy.first_gradients(exact, "Logistic", None)
    x, labels = first_batch(exact)

    def compute_loss(weights: Any) -> float:
        first, second, third, fourth = weights
        logits = 1 / (1 + np.exp(-(x @ first + second))) @ third + fourth
        chosen = logits[np.arange(len(labels)), labels]
        return float(np.mean(np.log(np.exp(logits).sum(1)) - chosen))

    generator = np.random.default_rng(0)
    for place, weight in enumerate(exact.weights):
        direction = generator.standard_normal(weight.shape)
        shifted = [list(exact.weights), list(exact.weights)]
        shifted[0][place] = weight + 1e-5 * direction
        shifted[1][place] = weight - 1e-5 * direction
        slope = (compute_loss(shifted[0]) - compute_loss(shifted[1])) / 2e-5
        assert np.sum(gradients[place] * direction) == pytest.approx(slope, rel=1e-6, abs=1e-9)
