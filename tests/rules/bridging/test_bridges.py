"""An activation of one framework inside of another: the same numbers, the same draws, and memory
that is safe.

What each host adds (compilers, transforms, derivatives of derivatives) is in
test_bridges_<host>.py; Functions are in test_bridges_functions.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.core.lowering.forwards import find_forward
from multigrad.engine.functions.known_forms import capture_example
from multigrad.engine.rules.guest_function import borrow, lend
from multigrad.engine.rules.opaque import call_activation, find_plain_functions, make_guest_function
from multigrad.errors import BackendNotFound, GradientError, MultigradError, NativeRuleWarning

from ...conftest import BACKENDS
from ...written.hosts_and_guests import (
    both_modes,
    bridged,
    every_guest_of,
    every_host,
    every_pair,
    hosts_of_torch,
    pull,
)

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
POINTS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1e-30, -1e-30, 1e30]
EDGES = np.array(POINTS, np.float32), np.arange(1.0, len(POINTS) + 1, dtype=np.float32)


def reference(
    forward: str, rule: Any, params: dict[str, Any], x: Array, cotangent: Array
) -> tuple[Array, Array]:
    """Give the output and the gradient on NumPy."""
    y, pullback = xg.vjp(xg.activation(forward, rule=rule, params=params), x)
    return y, pullback(cotangent)[0]


def data(dtype: Any = np.float32, shape: tuple[int, ...] = (5, 7)) -> tuple[Array, Array]:
    """Give an input and a cotangent."""
    generator = np.random.default_rng(0)
    x, cotangent = (np.asarray(generator.normal(size=shape), dtype) for _ in range(2))
    return x, cotangent


def assert_same(found: Array, expected: Array) -> None:
    """Check that numbers are the same: within 4 eps of the largest one; their dtype and shape
    too.
    """
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    wide = expected.astype(np.float64)
    bound = 4 * float(ml_dtypes.finfo(expected.dtype).eps) * max(1.0, np.abs(wide).max(initial=0.0))
    np.testing.assert_allclose(found.astype(np.float64), wide, rtol=0, atol=bound)


CASES: dict[str, tuple[str, Any, dict[str, Any], tuple[Array, Array]]] = {
    "triangular": ("Heaviside", "triangular", {"width": 2.0}, data()),
    "clip_norm": ("ReLU", "clip_norm", {"max_norm": 0.5}, data()),
    "Tanh": ("Tanh", None, {}, data()),
    "Linear": ("Linear", None, {}, data()),
    **{np.dtype(dtype).name: ("ReLU", "triangular", {}, data(dtype)) for dtype in DTYPES},
}
EXACT: dict[str, tuple[str, tuple[Array, Array]]] = {
    **{str(shape): ("rectangular", data(shape=shape)) for shape in [(), (1,), (0,), (3, 0, 2)]},
    **{f"edges {rule}": (rule, EDGES) for rule in ("rectangular", "d(ReLU)")},
}


@every_pair
@both_modes
@pytest.mark.parametrize(("forward", "rule", "params", "given"), CASES.values(), ids=CASES)
def test_output_and_gradient_are_those_of_the_reference_in_every_float_dtype(
    host: str, guest: str, compiled: bool, forward: str, rule: Any, params: Any, given: Any
) -> None:
    found = pull(host, bridged(guest, forward, rule, params), *given, compiled)
    for each, expected in zip(found, reference(forward, rule, params, *given), strict=True):
        assert_same(each, expected)


@every_pair
@both_modes
@pytest.mark.parametrize(("rule", "given"), EXACT.values(), ids=EXACT)
def test_masks_are_exact_at_edges_and_of_scalars_and_empty_tensors(
    host: str, guest: str, compiled: bool, rule: str, given: Any
) -> None:
    found = pull(host, bridged(guest, "Heaviside", rule), *given, compiled)
    for each, expected in zip(found, reference("Heaviside", rule, {}, *given), strict=True):
        np.testing.assert_array_equal(each, expected, strict=True)


@every_pair
@both_modes
@pytest.mark.parametrize("rule", ["full_jam", "rectangular_jam"])
def test_draws_under_a_key_are_those_of_the_reference(
    host: str, guest: str, compiled: bool, rule: str
) -> None:
    x, cotangent = data()
    with xg.use(rule, key=(3, 2**32 - 1)):
        application = xg.activation("ReLU").in_force()
        forward = find_forward("ReLU")
        found = pull(
            host, lambda x: call_activation(forward, application, x, guest), x, cotangent, compiled
        )[1]
    with xg.use(rule, key=(3, 2**32 - 1)):
        expected = reference("ReLU", None, {}, x, cotangent)[1]
    np.testing.assert_array_equal(found, expected)


@every_pair
@pytest.mark.needs("torch", "tensorflow")
def test_without_a_key_the_host_draws_as_for_itself(host: str, guest: str) -> None:
    import tensorflow as tf
    import torch

    if host == "jax":
        with pytest.raises(MultigradError, match="needs a key on jax"):
            pull(host, bridged(guest, "ReLU", "full_jam"), *data(), compiled=False)
        return
    drawn = []
    for f in (bridged(guest, "ReLU", "full_jam"), xg.activation("ReLU", rule="full_jam")):
        torch.manual_seed(5)
        tf.random.set_seed(5)
        drawn.append(pull(host, f, *data(), compiled=False)[1])
    np.testing.assert_array_equal(*drawn)


@every_pair
@both_modes
def test_a_param_may_be_a_tensor_of_the_host(host: str, guest: str, compiled: bool) -> None:
    x, cotangent = data()
    width = BACKENDS[host].array(np.float32(1.5))
    f = bridged(guest, "Heaviside", "triangular", {"width": width})
    gradient = pull(host, f, x, cotangent, compiled)[1]
    expected = reference("Heaviside", "triangular", {"width": 1.5}, x, cotangent)[1]
    assert_same(gradient, expected)


@every_pair
def test_a_rule_that_looks_at_its_input_runs(host: str, guest: str) -> None:
    def by_rank(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * tin.ndim

    x, cotangent = data()
    gradient = pull(host, bridged(guest, "ReLU", by_rank), x, cotangent, compiled=True)[1]
    np.testing.assert_array_equal(gradient, cotangent * 2)


@hosts_of_torch
def test_a_rule_that_is_not_captured_runs_as_it_is_in_the_guest(host: str) -> None:
    def branching(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * 2 if float(tin.sum()) > 0 else grad_out * 3

    x = cotangent = np.ones(4, np.float32)
    f = bridged("torch", "ReLU", branching)
    with pytest.warns(NativeRuleWarning, match="runs as written"):
        assert_same(pull(host, f, x, cotangent, compiled=False)[1], cotangent * 2)
    assert_same(pull(host, f, -x, cotangent, compiled=True)[1], cotangent * 3)


@every_pair
def test_what_a_native_rule_writes_to_is_its_own(host: str, guest: str) -> None:
    @xg.register(f"overwriting_{host}_{guest}", native=True)
    def overwriting(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        if guest in ("numpy", "torch"):
            tin *= 0
            grad_out += 1
        return grad_out + tin

    x, cotangent = data()
    seen: list[Tensor] = []
    f = bridged(guest, "Linear", overwriting)

    def noted(tin: Tensor) -> Tensor:
        seen.append(tin)
        return f(tin)

    BACKENDS[host].vjp(noted, x, cotangent)
    if host != "jax":  # there it is a tracer
        np.testing.assert_array_equal(BACKENDS[host].numpy(seen[0]), x)
    given = BACKENDS[host].array(x)
    np.testing.assert_array_equal(BACKENDS[host].numpy(f(given)), x)
    np.testing.assert_array_equal(BACKENDS[host].numpy(given), x)


# --- memory ---------------------------------------------------------------------------------------


def address(tensor: Tensor) -> int:
    """Give where a tensor's memory begins."""
    if hasattr(tensor, "data_ptr"):
        return int(tensor.data_ptr())
    if hasattr(tensor, "unsafe_buffer_pointer"):
        return int(tensor.unsafe_buffer_pointer())
    if not isinstance(tensor, np.ndarray):
        tensor = np.from_dlpack(tensor)
    return int(tensor.__array_interface__["data"][0])


def aligned(size: int) -> Array:
    """Give ones whose memory begins at a multiple of 64 bytes."""
    memory = np.ones(size + 16, np.float32)
    start = -address(memory) % 64 // 4
    return memory[start : start + size]


@every_pair
def test_aligned_memory_is_read_where_it_is(host: str, guest: str) -> None:
    if host == "torch":
        import torch

        x = torch.from_numpy(aligned(1000))
    else:
        x = BACKENDS[host].array(np.ones(1000, np.float32))
        x = x + 1  # of the framework's own making
    seen = borrow(load_backend(guest), lend(load_backend(host), x))
    assert address(seen) == address(x)


@every_pair
def test_memory_of_ones_own_is_a_copy(host: str, guest: str) -> None:
    x = BACKENDS[host].array(np.ones(1000, np.float32))
    seen = borrow(load_backend(guest), lend(load_backend(host), x), own=True)
    assert address(seen) != address(x)


@every_host
def test_numpy_as_a_guest_cannot_write_to_the_host(host: str) -> None:
    x = BACKENDS[host].array(np.ones(8, np.float32))
    seen = borrow(load_backend("numpy"), lend(load_backend(host), x))
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 2


@pytest.mark.needs("torch")
@every_guest_of("torch")
@pytest.mark.parametrize("layout", ["misaligned", "strided", "transposed", "expanded"])
def test_memory_that_does_not_fit_is_copied(guest: str, layout: str) -> None:
    import torch

    base = torch.from_numpy(aligned(4096)).reshape(64, 64).cumsum(0)
    x = {
        "misaligned": base.flatten()[1:],  # TensorFlow would end the process
        "strided": base[:, ::3],
        "transposed": base.T,
        "expanded": base[:1].expand(5, 64),
    }[layout].requires_grad_()
    y = bridged(guest, "Tanh")(x)
    y.backward(torch.ones_like(x))
    assert x.grad is not None
    torch.testing.assert_close(y, torch.tanh(x))
    torch.testing.assert_close(x.grad, 1 - torch.tanh(x.detach()) ** 2)


@every_pair
@pytest.mark.parametrize(
    "rule", ["triangular", "rectangular", "clip_norm", "full_jam", "d(Linear)"]
)
def test_captured_code_writes_to_nothing_of_the_host(host: str, guest: str, rule: str) -> None:
    act = xg.activation("ReLU", rule=rule)
    with xg.use(rule, key=1):
        application = act.in_force()
    x, cotangent = (BACKENDS[host].array(each) for each in data())
    lent = [lend(load_backend(host), each) for each in (x, cotangent)]
    assert application is not None
    function = xg.get(rule).under(act.forward.name)
    leaves = (x, *application.values)
    variant = capture_example(function, *leaves)
    plain_functions = find_plain_functions(function, variant, load_backend(guest))
    guest_function = make_guest_function(
        function, variant, plain_functions, load_backend(guest), leaves
    )
    if plain_functions.is_random:
        lent.insert(1, lend(load_backend("numpy"), np.array([1, 2], np.uint32)))
    guest_function.run(lent[:-1])
    _, pull_back = guest_function.record(lent[:-1])
    for _ in range(2):
        pull_back(lent[-1:])
        guest_function.gradients(lent[:-1], lent[-1:])
    for tensor, before in zip((x, cotangent), data(), strict=True):
        np.testing.assert_array_equal(BACKENDS[host].numpy(tensor), before)


@every_pair
def test_threads_do_not_meet(host: str, guest: str) -> None:
    f = bridged(guest, "Heaviside", "triangular")
    generator = np.random.default_rng(1)
    inputs = [generator.normal(size=100_000).astype(np.float32) for _ in range(6)]
    expected = [reference("Heaviside", "triangular", {}, x, x)[1] for x in inputs]

    def work(i: int) -> bool:
        found = [BACKENDS[host].vjp(f, inputs[i], inputs[i])[1] for _ in range(25)]
        return all(np.allclose(each, expected[i], rtol=0, atol=1e-6) for each in found)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


# --- bad input ------------------------------------------------------------------------------------


@every_host
def test_a_guest_that_does_not_exist_is_said(host: str) -> None:
    with pytest.raises(BackendNotFound, match=r"no backend named 'jaxx'; did you mean 'jax'"):
        bridged("jaxx", "ReLU")(BACKENDS[host].array(data()[0]))


@every_pair
def test_integers_are_refused_under_a_rule(host: str, guest: str) -> None:
    with pytest.raises(GradientError, match="got a tensor of dtype int32"):
        bridged(guest, "ReLU", "triangular")(BACKENDS[host].array(np.arange(3, dtype=np.int32)))


@every_pair
@both_modes
def test_an_error_in_the_guest_keeps_its_words(host: str, guest: str, compiled: bool) -> None:
    @xg.register(f"failing_{host}_{guest}", native=True)
    def failing(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        raise ValueError("out of cheese")

    with pytest.raises(Exception, match="out of cheese") as caught:
        pull(host, bridged(guest, "ReLU", failing), *data(), compiled)
    assert f"failing_{host}_{guest}" in str(caught.value)
    assert f"failed in {guest}" in str(caught.value)


@every_pair
def test_a_gradient_of_another_shape_is_refused(host: str, guest: str) -> None:
    @xg.register(f"reducing_{host}_{guest}", native=True)
    def reducing(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out[:1]

    with pytest.raises(GradientError, match="returned a gradient of shape"):
        pull(host, bridged(guest, "ReLU", reducing), *data(), compiled=False)


@every_pair
@both_modes
def test_a_second_derivative_is_refused(host: str, guest: str, compiled: bool) -> None:
    x, cotangent = data()
    f = bridged(guest, "Tanh")

    def first(x: Tensor) -> Tensor:
        return xg.vjp(f, x)[1](cotangent)[0]

    assert_same(
        BACKENDS[host].numpy(first(BACKENDS[host].array(x))), cotangent * (1 - np.tanh(x) ** 2)
    )
    with pytest.raises(GradientError, match=f"runs in {guest}, has no second derivative"):
        pull(host, first, x, cotangent, compiled)


@every_host
def test_the_hosts_own_framework_is_no_bridge(host: str) -> None:
    x, cotangent = data()
    found = pull(host, bridged(host, "Heaviside", "triangular"), x, cotangent, compiled=False)
    native = pull(host, xg.activation("Heaviside", rule="triangular"), x, cotangent, compiled=False)
    for ours, theirs in zip(found, native, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@every_guest_of("numpy")
def test_numpy_is_a_host_too(guest: str) -> None:
    x, _ = data()
    y = bridged(guest, "Tanh", "triangular")(x)
    assert_same(y, np.tanh(x))
    y[0] = 1  # the caller's own
