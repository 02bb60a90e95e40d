"""Arguments of captured functions: each is honored or refused, none is taken and forgotten."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

ROOT = Path(__file__).parents[3]
FILES = sorted(
    path
    for pattern in (
        "backends/*/capture*.py",
        "multigrad/engine/capture/*.py",
        "multigrad/keras/dialect*.py",
    )
    for path in ROOT.glob(pattern)
)

# Arguments that may go unread, and why they change no value.
PLACES = "where a tensor lies, and how: a rule stays where its input is"
LABELS = "how TensorFlow's graph or a traceback is labeled"
EXACT = "how exactly or how fast a library computes the same"
ORDER = "the order among equal values, which are the same"
WRITTEN = "record_call writes the result there; of a method it is refused"
BANDS = "it pads bands of several diagonals, which are refused"
TRAINING = "it acts in training alone, which is refused"
OUTSIDE = "a place outside is an error"
WEAK = "a draw takes the dtype of the rule's input, as any constant does"
CHECKED = "what a factor or a solution is not, raises or is NaN in any case"
GRAPHS = "how TensorFlow builds and runs its own loop"
FREED = "when an engine frees what it has recorded"
UNREAD: dict[str, str] = {
    "retain_graph": FREED, "gate_gradients": FREED, "aggregation_method": FREED,
    "only_inputs": "torch reads it no more",
    "check_errors": CHECKED, "check_finite": CHECKED, "validate_args": CHECKED, "debug": CHECKED,
    "overwrite_a": WRITTEN, "overwrite_b": WRITTEN,
    "device": PLACES, "memory_format": PLACES, "non_blocking": PLACES, "order": PLACES,
    "ignored": PLACES, "options": PLACES, "like": PLACES, "stream": PLACES,
    "name": LABELS, "message": LABELS, "assert_msg": LABELS, "_stacklevel": LABELS,
    "validate_indices": LABELS,
    "accuracy": EXACT, "algorithm": EXACT, "precision": EXACT, "precise": EXACT, "optimize": EXACT,
    "series_order": EXACT, "a_is_sparse": EXACT, "b_is_sparse": EXACT, "unroll": EXACT,
    "promote_integers": EXACT, "out_type": EXACT, "shift": EXACT, "sparse": EXACT, "ragged": EXACT,
    "stable": ORDER, "is_stable": ORDER, "kind": ORDER, "sorted": ORDER, "index_type": ORDER,
    "inplace": WRITTEN, "out": WRITTEN,
    "mode": "what a library is set to: some have nothing that changes a dtype",
    "is_weak": "in most libraries no dtype gives way",
    "conjugate": "the tensors of a rule are real",
    "num": "the number of parts is that of the sizes",
    "api_version": "there is one",
    "driver": EXACT, "lapack_driver": EXACT, "lwork": EXACT, "turbo": EXACT, "use_magma": EXACT,
    "implementation": EXACT, "sort_eigenvalues": ORDER,
    "shape_invariants": GRAPHS, "parallel_iterations": GRAPHS, "swap_memory": GRAPHS,
}  # fmt: skip
# The same of one function; "*" for what refuses all calls.
UNREAD_BY: dict[tuple[str, str], str] = {
    ("never", "function"): "it is so of every function", ("always", "function"): "likewise",
    ("itself", "args"): "what says where a value is, and no more",
    ("rand", "dtype"): WEAK, ("randn", "dtype"): WEAK, ("rand_like", "dtype"): WEAK,
    ("randn_like", "dtype"): WEAK, ("normal", "dtype"): WEAK, ("uniform", "dtype"): WEAK,
    ("arange", "dtype"): WEAK, ("linspace", "dtype"): WEAK, ("eye", "dtype"): WEAK,
    ("astype", "copy"): "jax's arrays never change", ("nan_to_num", "copy"): "jax's never change",
    ("asarray", "copy"): "an update of xp's arrays binds the name anew",
    ("identity", "args"): "it has none that matter", ("identity", "kwargs"): "likewise",
    ("take", "fill_value"): OUTSIDE, ("take_along_axis", "fill_value"): OUTSIDE,
    ("to_numpy", "force"): "its tensors are constants",
    ("bincount", "minlength"): "the length is given",
    ("gather", "sparse_grad"): EXACT, ("embedding", "norm_type"): "max_norm is refused",
    ("take", "unique_indices"): EXACT, ("take", "indices_are_sorted"): EXACT,
    **dict.fromkeys(((f, "align") for f in ("diag", "diag_part", "set_diag")), BANDS),
    ("diag_part", "padding_value"): BANDS, ("batch_norm", "momentum"): TRAINING,
    ("instance_norm", "momentum"): TRAINING, ("no_dropout", "p"): TRAINING,
    ("cdist", "compute_mode"): EXACT, ("broadcast_arrays", "subok"): "a symbol has no subclass",
    ("meshgrid", "copy"): "an update of a view is refused",
    ("slogdet", "method"): EXACT, ("scipy_inv", "lower"): "it acts on what is assumed: refused",
    ("triangular_solve", "conjugate_a"): "the tensors of a rule are real",
    ("scipy_eigh", "type"): "it is of a generalized problem, which is refused",
    ("scipy_eigvalsh", "type"): "likewise",
    ("cond", "linear"): "it is of forward mode, and has no effect",
    ("record", "return_indices"): "it is the function that gives them",
    ("undecorated", "args"): "the function itself is taken",
}  # fmt: skip


def functions() -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path, node


def unread(function: ast.FunctionDef) -> list[str]:
    """Return the parameters that a function never reads."""
    given = function.args
    rest = [each for each in (given.vararg, given.kwarg) if each is not None]
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)]
    read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return [name for name in names if name not in read and name not in ("self", "cls")]


def refuses_all(function: ast.FunctionDef) -> bool:
    """Return whether a function does nothing but raise, or has a signature that others
    prescribe.
    """
    body = [
        n
        for n in function.body
        if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
    ]
    return function.name.startswith("__") or not body or isinstance(body[0], ast.Raise)


def test_no_captured_function_forgets_an_argument() -> None:
    forgotten = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}({name})"
        for path, function in functions()
        if not refuses_all(function)
        for name in unread(function)
        if name not in UNREAD
        and (function.name, name) not in UNREAD_BY
        and function.name not in ("set_shape", "is_tensor", "is_keras_tensor")
    ]
    assert not forgotten


@pytest.mark.backends("torch")
@pytest.mark.parametrize("threshold", [0.5, 2, 20.0, -1.0])
@pytest.mark.parametrize("beta", [1.0, 2])
def test_softplus_is_linear_above_its_threshold(
    backend: Any, beta: Any, threshold: Any, F: Any
) -> None:
    def f(x: Any) -> Any:
        return F.softplus(x, beta, threshold)

    x = np.array([-3.0, 0.1, 0.3, 0.6, 1.5, 5.0, 20.5, 30.0])
    assert_as_in("torch", f, x, backend=backend, rtol=1e-15, atol=0)


A = np.array([[1.0, -2.0, 3.0], [-1.0, 0.5, 4.0]], np.float32)
REFUSED: dict[str, Any] = {
    "a dtype in the place of keepdim": lambda a: a.sum(0, np.float64),
    "mean with a dtype by position": lambda a: a.mean(0, np.float32),
    "a method with out": lambda a: a.sum(axis=0, out=a[0]),
    "rounding": lambda a: a.div(2, rounding_mode="nearest"),
    "reshape in another order": lambda a: np.reshape(a, (3, 2), order="F"),
    "casting": lambda a: np.add(a, 1, casting="unsafe"),
    "several quantiles": lambda a: np.quantile(a, [0.1, 0.5]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_is_not_captured_is_refused(name: str) -> None:
    with pytest.raises(xg.TraceError):
        xg.function(REFUSED[name], native=False)(A)
