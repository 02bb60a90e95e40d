"""Save and load: the same rule in another process, without its source, on every framework."""

from __future__ import annotations

import inspect
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.rules.rule_names import OWN

from ...conftest import find_backend
from ...data.releases import write as releases
from ...harness import fresh
from ...harness.traced import Traced

xp = xg.xp
Tensor = Any
ROOT = Path(__file__).parents[3]
X = np.linspace(-2.0, 2.5, 12, dtype=np.float32).reshape(3, 4)
G = np.cos(X)


@pytest.fixture(scope="module")
def mine() -> Any:
    """Rules of a user's own, in a module that no other process can import."""
    return releases.load_mine()


def every_rule(mine: Any) -> dict[str, Any]:
    library = [(name, xg.get(name)) for name in xg.rules()]  # other tests register their own
    composed = xg.compose("clip_norm", xg.compose(mine.two_draws, "noise"), mine.two_draws)
    return {
        **{name: rule for name, rule in library if rule.__module__.startswith(OWN)},
        **{name: xg.compose(getattr(mine, name)) for name in releases.RULES if name != "needs"},
        "composed": composed.with_params(sigma=0.3),
        "bound": xg.get("rectangular").with_params(a=-0.1),
    }


def compute(backend: Any, rule: Any) -> str:
    """What a rule gives on a framework, bare and under a step, in hexadecimal digits."""
    bare = backend.numpy(rule(None, backend.array(G), backend.array(X), key=7))
    digits = bare.tobytes().hex()
    document = json.dumps(rule.to_dict())
    act = xg.activation("Heaviside", rule)
    # Whose gradients a lowered rule gives, which has to hold for any input.
    if backend.name == "numpy":
        if document.count('"facts"') != document.count('"facts": {}'):
            return digits
        act = xg.lower(rule, "numpy", forward="Heaviside")
    if '"key"' not in document:
        digits += "".join(each.tobytes().hex() for each in backend.vjp(act, X, G))
    return digits


def compute_in_folder(folder: str, name: str) -> None:
    """Load every document of a folder and print what each gives; runs in a process of its own."""
    for file in sorted(Path(folder).glob("*.json")):
        print(file.stem, compute(find_backend(name), xg.load(file)))
    # By their documents alone:
    assert (
        "multigrad.core.rules.library" not in sys.modules and "written_by_users" not in sys.modules
    )


def read_elsewhere(tests: str, folder: Path, backend: Any) -> dict[str, str]:
    """Return what the documents of a folder give in a process of its own, by their names."""
    code = (
        f"import sys; sys.path.insert(0, 'tests/conformance'); "
        f"from tests.rules.saving.{tests} import *; "
        f"compute_in_folder({str(folder)!r}, {backend.name!r})"
    )
    done = fresh.run(["-c", code], [backend.name], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.filterwarnings("ignore")
def test_every_rule_gives_the_same_in_another_process_without_its_source(
    backend: Any, mine: Any, tmp_path: Path
) -> None:
    rules = {f"{i:02}": rule for i, rule in enumerate(every_rule(mine).values())}
    for name, rule in rules.items():
        xg.save(rule, tmp_path / f"{name}.json")
    found = read_elsewhere("test_saving", tmp_path, backend)
    assert found == {name: compute(backend, rule) for name, rule in rules.items()}


def test_every_rule_comes_back_as_the_same_document(mine: Any) -> None:
    for rule in every_rule(mine).values():
        document = rule.to_dict()
        assert list(document)[:2] == ["format", "version"]
        assert xg.from_dict(json.loads(json.dumps(document))).to_dict() == document


def test_a_loaded_rule_has_the_name_the_doc_and_the_params(mine: Any) -> None:
    rule = xg.get(xg.compose(mine.window).parts[0])
    loaded = xg.from_dict(rule.to_dict())
    assert loaded.name == "window"
    assert loaded.__doc__ == "A window, hard or soft; 'sum' adds what is inside."
    assert loaded.params == rule.params == {"width": 0.75, "hard": True, "mode": "sum"}
    assert repr(loaded.signature) == repr(rule.signature)


def test_floats_may_be_set_in_what_is_loaded(mine: Any) -> None:
    rule = xg.get(xg.compose(mine.window).parts[0])
    loaded = xg.from_dict(rule.to_dict())
    for width in (0.2, 1.5):
        assert loaded(None, G, X, width=width).tobytes() == rule(None, G, X, width=width).tobytes()
    bound = loaded.with_params(width=0.2)
    assert bound(None, G, X).tobytes() == rule(None, G, X, width=0.2).tobytes()


def test_other_params_keep_the_value_they_were_saved_with(mine: Any) -> None:
    rule = xg.get(xg.compose(mine.window).parts[0])
    soft = xg.from_dict(rule.with_params(hard=False).to_dict())
    assert soft(None, G, X).tobytes() == rule(None, G, X, hard=False).tobytes()
    with pytest.raises(xg.TraceError, match=r"saved with hard=True.*with_params\(hard=False\)"):
        xg.from_dict(rule.to_dict())(None, G, X, hard=False)


def test_a_param_on_which_a_rule_branches_keeps_its_value(mine: Any) -> None:
    rule = xg.get(xg.compose(mine.by_value).parts[0])
    loaded = xg.from_dict(rule.to_dict())
    assert loaded(None, G, X).tobytes() == rule(None, G, X).tobytes()
    with pytest.raises(xg.TraceError, match=r"saved with slope=2\.0, which cannot be 0\.5"):
        loaded(None, G, X, slope=0.5)
    with_half = xg.from_dict(rule.with_params(slope=0.5).to_dict())
    assert with_half(None, G, X).tobytes() == G.tobytes()


def test_a_rule_that_looks_at_rank_or_dtype_is_saved_for_each(mine: Any) -> None:
    rank, dtype = (xg.from_dict(xg.compose(f).to_dict()) for f in (mine.by_rank, mine.by_dtype))
    for axes in range(1, 7):
        x = np.ones((1,) * axes, np.float32)
        assert rank(None, x, x) == sum(range(1, axes + 1))
    for name, factor in (("float16", 3), ("float32", 2), ("float64", 3)):
        x = np.ones(2, name)
        np.testing.assert_array_equal(dtype(None, x, x), x * factor)
    with pytest.raises(
        xg.TraceError, match="not saved for an input of ndim 9, but for ndim 0; ndim 1"
    ):
        rank(None, np.ones((1,) * 9), np.ones((1,) * 9))


def test_a_rule_that_compares_a_dtype_with_a_text_is_told_where_dtypes_equal_none(
    backend: Any, mine: Any
) -> None:
    ones = backend.array(np.ones(2, np.float32))

    def by_name(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * 2 if tin.dtype == xp.float32 else grad_out * 3

    assert backend.numpy(xg.compose(by_name)(None, ones, ones)).tolist() == [2, 2]
    assert backend.numpy(xg.compose(mine.by_dtype)(None, ones, ones)).tolist() == [2, 2]
    registered = xg.register(f"test by_dtype on {backend.name}")(mine.by_dtype)
    if backend.name == "torch":
        with pytest.warns(Warning, match="differs from its graph.*runs as written, on torch only"):
            assert backend.numpy(registered(None, ones, ones)).tolist() == [3, 3]
    else:
        assert backend.numpy(registered(None, ones, ones)).tolist() == [2, 2]


def test_a_rule_that_looks_at_lengths_cannot_be_saved() -> None:
    def by_length(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * 2 if tin.shape[0] > 3 else grad_out

    with pytest.raises(xg.TraceError, match=r"one graph per shape .*Use x.shape\[i\] only in"):
        xg.compose(by_length).to_dict()


def test_a_rule_without_a_graph_cannot_be_saved(tmp_path: Path) -> None:
    def bare(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out if float(tin.sum()) > 0 else -grad_out

    native = xg.register("bare", native=True)(bare)
    for rule in (native, xg.compose("scale", native)):
        with pytest.raises(xg.TraceError, match=r"native=True.*no graph to save"):
            xg.save(rule, tmp_path / "bare.json")
    with pytest.raises(xg.TraceError, match=r"test_saving.py:\d+\) .*into a Python number"):
        xg.save(bare, tmp_path / "bare.json")
    assert list(tmp_path.iterdir()) == []


def test_a_param_without_a_value_has_to_be_bound_unless_it_is_a_float() -> None:
    def needs(ctx: Any, grad_out: Tensor, tin: Tensor, slope: float, power: int) -> Tensor:
        return grad_out * slope**power

    rule = xg.get(xg.compose(needs).parts[0])
    with pytest.raises(
        xg.TraceError, match=r"without a value for param 'power'.*with_params\(power="
    ):
        rule.to_dict()
    loaded = xg.from_dict(rule.with_params(power=3).to_dict())
    assert loaded.params == {"slope": inspect.Parameter.empty}
    np.testing.assert_allclose(loaded(None, G, X, slope=2.0), G * 8)


def test_without_tin_a_rule_is_saved_where_it_works() -> None:
    def needs_tin(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * tin

    loaded = xg.from_dict(xg.compose(needs_tin).to_dict())
    with pytest.raises(xg.TraceError, match="saved for use with tin, not without"):
        loaded(None, G, None)
    clip = xg.from_dict(xg.get("clip_norm").to_dict())
    assert clip(None, G, None).tobytes() == xg.get("clip_norm")(None, G, None).tobytes()


@pytest.mark.needs("jax")
def test_a_rule_written_with_jax_is_saved() -> None:
    import jax.numpy as jnp

    def lifted(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * jnp.maximum(tin, 0.5)

    loaded = xg.from_dict(xg.compose(lifted).to_dict())
    np.testing.assert_array_equal(loaded(None, G, X), G * np.maximum(X, 0.5))
    with pytest.raises(xg.TraceError, match="saved for use with tin, not without"):
        loaded(None, G, None)


def test_what_stands_for_a_function_is_called_as_it_is() -> None:
    function = xg.from_dict(xg.get("triangular").to_dict()).function
    expected = xg.get("triangular")(None, G, X, width=2.0)
    assert function(None, G, X, width=2.0).tobytes() == expected.tobytes()
    assert pickle.loads(pickle.dumps(function)) is function


def test_a_loaded_rule_works_wherever_rules_do() -> None:
    loaded = xg.from_dict(xg.get("triangular").to_dict())
    act = xg.activation("Heaviside", loaded, params={"width": 2.0})
    assert act(X).tobytes() == np.heaviside(X, 0).astype(np.float32).tobytes()
    with xg.use(loaded, params={"width": 3.0}):
        assert xg.activation("Heaviside")(X).shape == X.shape
    both = xg.compose(loaded, "scale", loaded)
    expected = xg.compose("triangular", "scale", "triangular")
    assert both(None, G, X, width=2.0).tobytes() == expected(None, G, X, width=2.0).tobytes()
    assert "def backward" in xg.source(loaded, "numpy")
    assert "width: weak float" in xg.show(loaded)
    grads = xg.apply_to_gradients({"w": G}, xg.from_dict(xg.get("clip_norm").to_dict()))
    assert np.linalg.norm(grads["w"]) == pytest.approx(1)


def test_a_loaded_rule_is_registered_only_when_asked_for() -> None:
    loaded = xg.from_dict({**xg.get("triangular").to_dict(), "name": "tent"})
    assert "tent" not in xg.rules()
    xg.register("tent")(loaded)
    assert xg.get("tent")(None, G, X).tobytes() == loaded(None, G, X).tobytes()
    assert xg.get("tent").to_dict()["name"] == "tent"


def test_loaded_rules_pickle_by_their_data(mine: Any) -> None:
    for rule in every_rule(mine).values():
        loaded = xg.from_dict(rule.to_dict())
        again = pickle.loads(pickle.dumps(loaded))
        assert again.to_dict() == loaded.to_dict()


def test_two_rules_of_one_document_share_their_code() -> None:
    document = xg.get("arctan").to_dict()
    first, second = xg.from_dict(document), xg.from_dict(document)
    assert first.bound_rule().token == second.bound_rule().token


def test_draws_go_on_counting_in_a_composed_rule(mine: Any) -> None:
    rule = xg.compose(mine.two_draws, "noise", mine.two_draws)
    loaded = xg.compose(*(xg.from_dict(part.to_dict()) for part in rule._resolved_parts()))
    assert loaded(None, G, X, key=5).tobytes() == rule(None, G, X, key=5).tobytes()
    assert (
        xg.from_dict(rule.to_dict())(None, G, X, key=5).tobytes()
        == rule(None, G, X, key=5).tobytes()
    )


def test_the_promise_of_first_order_is_saved() -> None:
    rule = xg.register("promised", first_order=True)(xg.get("clip_norm").function)
    assert xg.from_dict(rule.to_dict()).first_order is True


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize("is_ours", [True, False], ids=["xg.jit", "by itself"])
def test_loaded_rules_compile(backend: Any, is_ours: bool) -> None:
    act = xg.activation("Heaviside", xg.from_dict(xg.get("arctan").to_dict()))
    traced = Traced(backend, act, is_ours)
    expected = xg.get("arctan")(None, np.ones_like(X), X)
    np.testing.assert_allclose(traced.gradient(X), expected, rtol=1e-6)


def test_what_a_composition_binds_reaches_its_parts_in_a_document(backend: Any) -> None:
    def repeated(ctx: Any, grad_out: Any, tin: Any, n: int = 3, width: float = 1.0) -> Any:
        for _ in range(n if width < 2 else n + 1):
            grad_out = grad_out * 0.5
        return grad_out

    inner = xg.compose("scale", repeated).with_params(n=1)
    rule = xg.from_dict(xg.compose(inner, "straight_through").with_params(width=3.0).to_dict())
    found = rule(None, backend.array(G), backend.array(X), s=8.0)
    np.testing.assert_array_equal(backend.numpy(found), G * 2)
