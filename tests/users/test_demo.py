"""The DIGITS experiment as people run it: a command that trains, prints tables and leaves files."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..harness.hidden import run_python, run_without

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
    return run_python(DEMO, *words, COLUMNS="200")


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
def test_every_installed_framework_runs_every_row_and_records_each_epoch(
    everywhere: tuple[str, Path],
) -> None:
    runs = read_results(everywhere[1])["runs"]
    for name in list_installed():
        rows = [(run["forward"], run["rule"]) for run in runs if run["framework"] == name]
        # FreeGrad 1.0.1 cannot differentiate its Heaviside without a rule.
        absent = [("Heaviside", "true")] if name == "freegrad" else []
        assert rows == [row for row in ROWS if row not in absent]
    for run in runs:
        assert len(run["losses"]) == len(run["accuracies"]) == 2
        assert len(run["predictions"]) == 360
        assert run["accuracy"] == run["accuracies"][-1]
        assert run["losses"][1] < run["losses"][0]
        assert run["seconds"] > 0
    for name in ("learning-curves.png", "gradient-shapes.png"):
        assert (everywhere[1] / name).read_bytes().startswith(PNG_SIGNATURE)
        assert str(everywhere[1] / name) in everywhere[0]


def group_runs(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the frameworks' runs of each network."""
    runs = read_results(folder)["runs"]
    return [[run for run in runs if (run["forward"], run["rule"]) == row] for row in ROWS]


def count_differing(runs: list[dict[str, Any]]) -> int:
    """Count the test images that the two most different of these runs label differently."""
    labels = [np.array(run["predictions"]) for run in runs]
    return max(int(np.sum(one != other)) for one in labels for other in labels)


@EVERYWHERE
def test_the_table_has_a_row_for_each_network_and_a_sentence_says_whether_they_agree(
    everywhere: tuple[str, Path],
) -> None:
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
    groups = [group for group in group_runs(folder) if len(group) > 1]
    alike = sum(count_differing(group) == 0 for group in groups)
    said = f"label the same 360 test images alike in {alike} of {len(groups)} networks"
    assert said in " ".join(printed.split())
    explained = "true the unit's own derivative d(Linear) 1, the derivative of a straight line"
    assert explained in " ".join(printed.split())


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


@pytest.mark.always
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


def test_options_choose_rules_and_epochs_and_quick_networks_have_learned(tmp_path: Path) -> None:
    result = invoke_demo("--rules", "true, triangular,true", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    results = read_results(tmp_path)
    assert [run["rule"] for run in results["runs"]] == ["true", "triangular"] * 2
    assert results["settings"]["epochs"] == 10
    assert results["settings"]["learning_rate"] == 0.3
    accuracies = {(run["forward"], run["rule"]): run["accuracy"] for run in results["runs"]}
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


@pytest.mark.always
def test_a_framework_whose_process_ends_leaves_the_others_results(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("import os\nos._exit(7)\n")
    words = ("--frameworks", "numpy,tensorflow", "--rules", "true", "--epochs", 1)
    found = os.pathsep.join([str(tmp_path), *sys.path])
    done = run_python(DEMO, *words, "--out", tmp_path, PYTHONPATH=found)
    assert done.returncode == 1, done.stdout + done.stderr
    results = read_results(tmp_path)
    assert [run["framework"] for run in results["runs"]] == ["numpy"] * 2
    assert [(gap["framework"], gap["failed"]) for gap in results["gaps"]] == [
        ("tensorflow", True)
    ] * 2
    assert "tensorflow: its process ended with code 7" in " ".join(done.stdout.split())


def test_an_interrupt_that_gets_lost_is_known_and_prints_no_traceback() -> None:
    code = """if True:
        import gc, signal
        from multigrad.command.options import Interruption

        def callback(phase, info):
            gc.callbacks.remove(callback)
            signal.raise_signal(signal.SIGINT)

        with Interruption() as interruption:
            gc.callbacks.append(callback)
            gc.collect()
        print(interruption.requested)
    """
    done = run_python("-c", code)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.skipif(os.name == "nt", reason="an interrupt is sent in another way on Windows")
@pytest.mark.anywhere
@pytest.mark.parametrize("framework", [pytest.param(n, marks=pytest.mark.needs(n)) for n in NAMES])
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
    gradients = in_numpy.train(exact, "Logistic", None, lambda *told: None)
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
