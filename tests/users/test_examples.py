"""Each example runs as a newcomer would run it, in a process of its own, and shows what it says it
shows.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from ..harness import fresh

pytestmark = pytest.mark.anywhere

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALL = ("torch", "jax", "tensorflow")
INSTALLED = [name for name in ALL if find_spec(name)]
PACKAGES = ("torch", "jax", "tensorflow", "keras", "optax", "flax", "sklearn.datasets")


def run_example(name: str, folder: Path, *options: str) -> str:
    """Run one example outside the source folder; its output, once it has ended well."""
    path = EXAMPLES / name
    shared = path.with_name("frameworks.py")  # of the examples in that folder
    text = path.read_text(encoding="utf-8") + (shared.read_text() if shared.is_file() else "")
    named = [package for package in PACKAGES if package in text]
    result = fresh.run([str(path), *options], named, cwd=folder)
    assert result.returncode == 0, result.stderr
    return result.stdout


def read_numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+(?:e[-+]\d+)?", line)]


def find_line(output: str, start: str) -> str:
    return next(line for line in output.splitlines() if line.startswith(start))


@pytest.mark.needs("torch")
def test_pytorch_example_shows_gradients_that_only_the_rules_explain(tmp_path: Path) -> None:
    output = run_example("01_pytorch.py", tmp_path)
    assert read_numbers(find_line(output, "ReLU, its own derivative")) == [0, 0, 0, 1, 1]
    jammed = read_numbers(find_line(output, "ReLU, rectangular_jam"))
    assert jammed[0] == jammed[4] == 0
    assert all(0 < value < 1 for value in jammed[1:4])
    threshold = read_numbers(find_line(output, "ReLU, noisy_threshold"))[-5:]
    assert max(abs(value) for value in threshold[:3]) < 0.3
    assert min(threshold[3:]) > 0.7
    clipped = read_numbers(find_line(output, "Linear, clip_then_noise"))
    assert all(abs(value - 5**-0.5) < 0.06 for value in clipped)


@pytest.mark.needs("jax", "optax", "sklearn")
def test_jax_example_trains_step_functions(tmp_path: Path) -> None:
    output = run_example("02_jax_optax.py", tmp_path)
    _, accuracy = read_numbers(find_line(output, "epoch 10"))
    assert accuracy > 0.85


@pytest.mark.needs("tensorflow", "sklearn")
def test_tensorflow_example_trains_with_three_rules(tmp_path: Path) -> None:
    output = run_example("03_tensorflow.py", tmp_path)
    accuracies = [read_numbers(line)[1] for line in output.splitlines() if "accuracy" in line]
    assert len(accuracies) == 3
    assert min(accuracies) > 0.85
    # The rules' gradients differ, so a step that kept the first rule's trace would repeat its
    # numbers.
    losses = {read_numbers(line)[0] for line in output.splitlines() if "loss" in line}
    assert len(losses) == 3


def installed_keras_backends() -> list[str]:
    chosen = os.environ.get("KERAS_BACKEND")
    return [chosen] if chosen else INSTALLED


@pytest.fixture(params=ALL)
def keras_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A framework that Keras runs on."""
    if request.param not in installed_keras_backends():
        pytest.skip(f"{request.param} not installed, or KERAS_BACKEND names another")
    monkeypatch.setenv("KERAS_BACKEND", request.param)
    return request.param


@pytest.mark.needs("keras", "sklearn")
def test_keras_example_fits_and_rebuilds(keras_backend: str, tmp_path: Path) -> None:
    output = run_example("04_keras.py", tmp_path)
    assert f"on {keras_backend}" in output
    (accuracy,) = read_numbers(find_line(output, "test accuracy"))
    assert accuracy > 0.85
    assert output.splitlines()[-1].endswith("True")


def test_parity_example_finds_the_same_numbers_everywhere(tmp_path: Path) -> None:
    output = run_example("05_parity.py", tmp_path)
    rows = output.splitlines()[2:]
    names = output.splitlines()[1].split()
    assert len(rows) == 6
    for row in rows:
        differences = read_numbers(row)
        assert len(differences) == len(names)
        assert all(difference < 1e-6 for difference in differences)
    assert set(names) == set(INSTALLED)


@pytest.mark.needs("torch")
def test_speed_example_measures_all_rivals_at_both_sizes(tmp_path: Path) -> None:
    output = run_example("06_speed.py", tmp_path, "--quick")
    for rival in ("hand-written", "multigrad"):
        rows = [line for line in output.splitlines() if line.strip().startswith(rival)]
        assert len(rows) == 2
        assert all(min(read_numbers(row)) > 0 for row in rows)


def test_memory_example_counts_less_than_by_hand_where_less_is_enough(tmp_path: Path) -> None:
    installed = [name for name in ("torch", "jax") if find_spec(name)]
    if not installed:
        pytest.skip("neither torch nor jax is installed")
    output = run_example("07_memory.py", tmp_path)
    size = 1_000_000
    kept = {"window": size, "reversed": 0, "loudness": 4, "bell": 4 * size}
    for rule, ours in kept.items():
        counts = [int(word.replace(",", "")) for word in find_line(output, rule).split()[1:]]
        assert counts == [4 * size, ours] * len(installed)
    assert "kept = and(ge(tin, -0.5), le(tin, 0.5)): 1 byte per element" in output


@pytest.mark.needs("torch")
def test_in_place_example_gives_the_same_numbers_everywhere(tmp_path: Path) -> None:
    lines = run_example("08_in_place_and_constants.py", tmp_path).splitlines()[1:]
    rows = {line[:12].strip(): read_numbers(line) for line in lines}
    assert set(rows) == {"as it is", "numpy", *INSTALLED}
    for numbers in rows.values():
        assert numbers == pytest.approx(rows["as it is"], abs=2e-5)
    assert len(set(rows["as it is"])) > 5


@pytest.mark.needs("torch")
def test_a_class_keeps_its_bits_on_every_framework(tmp_path: Path) -> None:
    output = run_example("09_any_class.py", tmp_path)
    lines = [line for line in output.splitlines() if line.startswith((*ALL, "numpy"))]
    assert len(lines) == 1 + len(INSTALLED)
    assert all(line.endswith("equal bit for bit") for line in lines)
    assert "class ClampTowardsInside" in output


def test_one_custom_gradient_is_one_at_a_hundred_everywhere(tmp_path: Path) -> None:
    lines = run_example("10_custom_gradient.py", tmp_path).splitlines()
    assert sum(line.endswith("0.500000 0.731059 1.000000") for line in lines) >= 2
    assert all("nan" in line for line in lines if " naive " in line)
    assert not any("nan" in line for line in lines if " naive " not in line)
    assert any("the gradient is the true one" in line for line in lines)


@pytest.mark.parametrize(
    ("saves", "loads"),
    [
        pytest.param("torch", "jax", marks=pytest.mark.needs("torch", "jax")),
        pytest.param("jax", "torch", marks=pytest.mark.needs("torch", "jax")),
        ("numpy", "numpy"),
    ],
)
def test_a_saved_rule_and_function_move_to_another_process(
    saves: str, loads: str, tmp_path: Path
) -> None:
    output = run_example("11_save_and_move.py", tmp_path, saves, loads)
    assert "rule: True" in output
    assert "function: True" in output
    assert "bump(grad_out: T[...], tin: T[...]" in output


def test_the_check_tells_the_paper_from_what_has_lost_its_square(tmp_path: Path) -> None:
    output = run_example("12_check_a_surrogate.py", tmp_path)
    assert "superspike: the paper" in output
    assert "superspike_without_its_square: NOT the paper" in output
    assert "worst at x" in output


@pytest.mark.needs("jax", "optax", "flax", "sklearn")
def test_flax_network_of_binary_neurons_learns_under_a_rule_for_its_gradients(
    tmp_path: Path,
) -> None:
    output = run_example("13_optax_flax.py", tmp_path)
    _, accuracy = read_numbers(find_line(output, "epoch 10"))
    assert accuracy > 0.9
    assert "what the first layer sends: [0.0, 1.0]" in output
    assert "updates that saw the rule: 220" in output


# On each backend tests/keras asks for the same of layers: `tox run -e pages` runs these on all.


@pytest.mark.needs("keras", "sklearn")
@pytest.mark.usefixtures("keras_backend")
def test_keras_example_trains_the_same_in_whichever_framework_a_layer_runs(tmp_path: Path) -> None:
    output = run_example("keras_layers/switch_backends.py", tmp_path)
    rows = [read_numbers(line) for line in output.splitlines() if "largest difference" in line]
    assert len(rows) == 2 + len(INSTALLED)
    for accuracy, difference, _ in rows:
        assert accuracy > 0.8
        assert difference < 1e-4  # after 75 steps in which a rounded sum may fall on the other side
    (other,) = read_numbers(find_line(output, "under another rule"))
    assert other != rows[0][0]


@pytest.mark.needs("keras", "sklearn")
@pytest.mark.usefixtures("keras_backend")
def test_keras_example_anneals_the_width_in_every_batch(tmp_path: Path) -> None:
    output = run_example("keras_layers/anneal_a_surrogate.py", tmp_path)
    rows = [read_numbers(line) for line in output.splitlines() if line.startswith("epoch")]
    steps = [23 * epoch - 1 for epoch in range(1, 13)]  # 1437 images in batches of 64
    for (width, _), step in zip(rows, steps, strict=True):
        assert width == pytest.approx(max(4.0 * 0.5 ** (step / 60), 0.25), abs=1e-3)
    (accuracy,) = read_numbers(find_line(output, "test accuracy"))
    assert accuracy > 0.9


@pytest.mark.needs("keras", "sklearn")
def test_keras_example_moves_a_model_with_its_rule_to_another_backend(tmp_path: Path) -> None:
    installed = installed_keras_backends()
    saves, loads = installed[0], installed[-1]
    output = run_example("keras_layers/save_and_load.py", tmp_path, saves, loads)
    (saved,) = read_numbers(find_line(output, f"saved on {saves}"))
    (loaded,) = read_numbers(find_line(output, f"loaded on {loads}"))
    (trained,) = read_numbers(find_line(output, f"trained on {loads}"))
    assert saved == pytest.approx(loaded, abs=2e-3)
    assert min(saved, trained) > 0.9
    assert "'bump' is registered here: False" in output
    assert "bump(grad_out: T[...], tin: T[...]" in output


@pytest.mark.needs("torch", "sklearn", "matplotlib")
def test_heat_maps_lie_on_the_digits_and_leave_the_network_as_it_was(tmp_path: Path) -> None:
    output = run_example("14_heat_maps.py", tmp_path, "--quick")
    on_ink = {
        name: read_numbers(find_line(output, name))[0]
        for name in ("the gradient", "guided backprop", "epsilon plus", "epsilon gamma box")
    }
    # Where there is no ink the input is zero, of which z-plus is a multiple.
    assert on_ink["epsilon plus"] > 0.9 > max(on_ink["the gradient"], on_ink["guided backprop"])
    assert len(set(on_ink.values())) == 4
    assert "zbox(low=0.0, high=1.0, stabilizer=1e-06) (merged with 0)" in output
    for line in [line for line in output.splitlines() if "largest difference" in line]:
        assert read_numbers(line)[0] < 1e-4
    assert "as it was: True" in output
    assert (tmp_path / "heat_maps.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("deep_equilibrium", 1e-9),
        ("sparsemax", 1e-12),
        ("sinkhorn", 1e-9),
        ("quadratic_program", 1e-6),  # of the differences that it is compared with
    ],
)
def test_an_implicit_layer_has_its_gradient_everywhere(
    name: str, most: float, tmp_path: Path
) -> None:
    output = run_example(f"implicit/{name}.py", tmp_path)
    rows = [line for line in output.splitlines() if " from " in f" {line}"]
    for framework in ("numpy", *INSTALLED):
        own = [line for line in rows if framework in line]
        assert own
        assert all(float(line.split()[-1]) < most for line in own)
