"""Fused execution: forward, what it keeps, and backward as one compiled kernel each give the bits
of plain code; where kernels cannot run, plain code does, and who asked is told why.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

torch: Any = pytest.importorskip("torch")

Tensor: TypeAlias = Any
pytestmark = pytest.mark.needs("torch")
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
compiling = pytest.mark.skipif(
    not IS_INTERPRETED and not any(map(shutil.which, ("cc", "gcc", "clang"))),
    reason="no C compiler is on the PATH",
)
of_c = pytest.mark.skipif(
    IS_INTERPRETED, reason="of C; Triton's interpreter runs one small kernel at a time"
)


@xg.register("fused_tests_root")
def root(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * xp.sqrt(xp.abs(tin))  # MKL's on some processors, which rounds otherwise


@xg.register("fused_tests_clip")
def clip(ctx: Any, grad_out: Tensor, tin: Tensor, most: float = 1.0) -> Tensor:
    return grad_out.clip(-most, most)


CHAIN = xg.compose("triangular", "fused_tests_clip", "rectangular", "arctan")
RULES = {
    "triangular": ("Heaviside", "triangular"),
    "arctan": ("Heaviside", "arctan"),
    "rectangular": ("Heaviside", "rectangular"),
    "chain": ("Heaviside", CHAIN),
}
FUNCTIONS = {
    "sigmoid": ("Heaviside", "sigmoid_surrogate"),
    "exp": ("Tanh", "multi_gaussian"),
    "silu": ("SiLU", "triangular"),
    "sqrt": ("Sigmoid", "fused_tests_root"),
}
EDGES = [0.0, np.inf, np.nan, 1e-45, 1e-40, 1.1754944e-38, 0.25, 0.5, 1.0, 2.0, 3e38]


def both(name: str, **options: Any) -> tuple[Any, Any]:
    """Return an activation that is fused, and one that never is."""
    forward, rule = {**RULES, **FUNCTIONS}[name]
    fused = xg.activation(forward, rule, fused=True, **options)
    return fused, xg.activation(forward, rule, fused=False, **options)


def samples(dtype: Any, count: int = 112) -> tuple[Tensor, Tensor]:
    """Return each edge value as input with each as cotangent, and some drawn: 2048 as it stands."""
    edges = np.array([*EDGES, *(-each for each in EDGES)], np.float32)
    values = torch.tensor(np.concatenate([edges, np.nextafter(edges, np.float32(0))]))
    drawn = torch.randn(2, count, generator=torch.Generator().manual_seed(0))
    x = torch.cat([values.repeat_interleave(len(values)), drawn[0]])
    grad = torch.cat([values.repeat(len(values)), drawn[1]])
    return x.to(dtype).requires_grad_(), grad.to(dtype)


def run(act: Any, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    y = act(x)
    return y, torch.autograd.grad(y, x, grad)[0]


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    nan = found.isnan() & expected.isnan()
    same = (found == expected) & (torch.signbit(found) == torch.signbit(expected))
    assert bool((same | nan).all()), (found[~(same | nan)][:5], expected[~(same | nan)][:5])


def assert_agree(name: str, x: Tensor, grad: Tensor, **options: Any) -> None:
    fused, plain = both(name, **options)
    for found, expected in zip(run(fused, x, grad), run(plain, x, grad), strict=True):
        assert_same_bits(found, expected)


def needs_functions_of_torch() -> None:
    if not torch.backends.mkl.is_available():
        pytest.skip("torch has exp from MKL where it is built with it, and kernels have it there")


def is_fused(y: Tensor) -> bool:
    """Return whether a kernel gave it: of `rectangular`, which then keeps bits."""
    return [str(x.dtype) for x in y.grad_fn.saved_tensors] == ["torch.uint8"]


@compiling
@pytest.mark.parametrize("name", RULES)
def test_kernels_give_the_bits_of_plain_code_on_edge_values(name: str) -> None:
    assert_agree(name, *samples(torch.float32))


@compiling
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_bits_of_torch(name: str, dtype: str) -> None:
    needs_functions_of_torch()
    assert_agree(name, *samples(getattr(torch, dtype)))


@compiling
def test_functions_of_functions_and_masks_between_them_have_the_bits_of_torch() -> None:
    needs_functions_of_torch()

    def forward(x: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor]:
        low = x < 0.5
        size = xp.log1p(xp.exp(-xp.abs(x)))
        return xp.exp(x), xp.where(low, size * x, xp.tanh(size) * rate), size

    def backward(gs: tuple[Tensor, Tensor, Tensor], x: Tensor, rate: float) -> Any:
        a, b, c = gs
        return a * xp.exp(x) + xp.sin(xp.cos(b)) * (x > rate) - xp.expm1(c), None

    found = []
    for fused in (True, False):
        f = xg.function(forward, backward, fused=fused)
        x, grad = samples(torch.float32, 1 << 15)
        outputs = f(x, 0.75)
        cotangents = (grad, grad.flip(0), grad.roll(7))
        found.append([*outputs, *torch.autograd.grad(outputs, x, cotangents)])
    for pair in zip(*found, strict=True):
        assert_same_bits(*pair)


@compiling
def test_strided_tensors_run_as_plain_code_and_one_warning_says_why() -> None:
    fused, _ = both("rectangular")
    x = torch.randn(6, 8)
    with pytest.warns(RuntimeWarning, match="contiguous") as told:
        _ = [fused(view) for view in (x.t(), x[:, ::2])]
    assert len(told) == 1


@compiling
def test_other_numbers_of_a_param_reach_the_kernels() -> None:
    x, grad = samples(torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # torch divides by a number on processors, and multiplies by its inverse on GPUs.
        for width in (2.0, 0.25) if IS_INTERPRETED else (2.0, 0.3, 0.0):
            assert_agree("triangular", x, grad, params={"width": width})


@compiling
def test_functions_of_several_tensors_are_fused_too() -> None:
    def forward(x: Tensor, y: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        return xp.minimum(xp.maximum(x, y), limit) * y, xp.abs(x - y)

    def backward(gs: tuple[Tensor, Tensor], x: Tensor, y: Tensor, limit: float) -> Any:
        a, b = gs
        return a * (x > y) + b * (x < limit), a * x - b * 0.5, None

    found = []
    for fused in (True, False):
        f = xg.function(forward, backward, fused=fused)
        x, grad = samples(torch.float32)
        y = x.detach().flip(0).requires_grad_()
        outputs = f(x, y, 0.75)
        assert ("uint8" in str([s.dtype for s in outputs[0].grad_fn.saved_tensors])) is fused
        found.append([*outputs, *torch.autograd.grad(outputs, (x, y), (grad, grad.flip(0)))])
    for pair in zip(*found, strict=True):
        assert_same_bits(*pair)


@compiling
def test_limits_that_are_tensors_let_their_nan_through() -> None:
    nan, found = float("nan"), []
    for fused in (True, False):
        f = xg.function(
            lambda x, y: xp.clip(x, y, 1.0) * 2.0 + xp.clip(x, -1.0, y),
            lambda g, x, y: (g * xp.clip(0.5, x, y), xp.clip(g, y, x)),
            fused=fused,
        )
        x = torch.tensor([0.0, 1.0, 2.0, nan, -1.0, -2.0, 0.25, -0.25], requires_grad=True)
        y = torch.tensor([nan, 0.0, nan, 1.0, 0.5, 3.0, -0.5, -0.125], requires_grad=True)
        outputs = f(x, y)
        found.append([outputs, *torch.autograd.grad(outputs, (x, y), torch.ones(8))])
    for pair in zip(*found, strict=True):
        assert_same_bits(*pair)


@compiling
def test_a_pickled_activation_and_a_pickled_rule_stay_fused() -> None:
    act, rule = pickle.loads(pickle.dumps((both("rectangular")[0], xg.get("rectangular"))))
    assert is_fused(act(torch.ones(3, requires_grad=True)))
    assert pickle.loads(pickle.dumps(rule.copy(fused=True))).fused is True


@of_c
@compiling
def test_threads_share_kernels() -> None:
    fused, plain = both("rectangular")
    x = torch.randn(50_000, generator=torch.Generator().manual_seed(1)).requires_grad_()
    expected = run(plain, x, x.detach())

    def check(_: int) -> None:
        for found, right in zip(run(fused, x, x.detach()), expected, strict=True):
            assert_same_bits(found, right)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(16)))


@compiling
def test_auto_runs_plain_code_while_the_kernel_compiles_and_then_the_kernel(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multigrad_torch.core.attach import attach

    count = 5000
    monkeypatch.setattr(attach, "LARGE", {device.type: count})
    rule = xg.get("rectangular").copy(name=f"automatic_on_{device.type}")
    act = xg.activation("Heaviside", rule)
    small = torch.randn(100, device=device, requires_grad=True)
    for _ in range(10):
        assert not is_fused(act(small))
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(2))
    x, grad = drawn.to(device).requires_grad_(), torch.ones(count, device=device)
    assert not is_fused(act(x))
    expected = run(act, x, grad)
    until = time.monotonic() + 60
    while not is_fused(act(x)):
        assert time.monotonic() < until
        time.sleep(0.05)
    for found, right in zip(run(act, x, grad), expected, strict=True):
        assert_same_bits(found, right)
    assert not is_fused(act(small))


@of_c
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"PATH": "", "CC": ""}, "no C compiler"),
        ({"CC": "false"}, "false .*failed"),
        ({"CC": "no_such_compiler"}, "no C compiler no_such_compiler"),
    ],
)
def test_without_a_compiler_plain_code_runs_and_one_warning_says_why(
    variables: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    rule = xg.get("rectangular").copy(name=f"without_{variables['CC']}")
    fused, plain = (xg.activation("Heaviside", rule, fused=each) for each in (True, False))
    x = torch.randn(20, requires_grad=True)
    with pytest.warns(RuntimeWarning, match=f"fused=True.*{reason}") as told:
        fused(x)
    assert [each.filename for each in told] == [__file__]
    for found, right in zip(run(fused, x, x), run(plain, x, x), strict=True):  # silently now
        assert_same_bits(found, right)


@compiling
def test_a_compiler_without_threads_gives_a_kernel_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    compiler = tmp_path / "clang"  # as macOS has it
    compiler.write_text(
        f"""#!/bin/sh
case "$*" in *-fopenmp*) echo "error: unsupported option '-fopenmp'" >&2; exit 1;; esac
exec {real} "$@"
"""
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    for cache in ("off", str(tmp_path / "cache"), str(tmp_path / "cache")):
        monkeypatch.setenv("MULTIGRAD_CACHE", cache)
        rule = xg.get("rectangular").copy(name=f"without_threads_{len(cache)}")
        x = torch.linspace(-1, 1, 99, requires_grad=True)
        y = xg.activation("Heaviside", rule, fused=True)(x)  # a warning would be an error
        assert is_fused(y)
        assert_same_bits(torch.autograd.grad(y.sum(), x)[0], (x.abs() < 0.5).float())


def test_what_no_kernel_computes_is_named() -> None:
    x = torch.randn(20, requires_grad=True)
    factorial = xg.register("fused_tests_lgamma", override=True)(lambda _, g, x: g * xp.lgamma(x))
    for rule, reason in ((factorial, "op lgamma"), (xg.get("full_jam"), "random numbers")):
        own = rule.copy(name=f"{rule.name}_that_is_not_fused")  # it is said once of each
        act = xg.activation("Heaviside", own, fused=True)
        with pytest.warns(RuntimeWarning, match=f"fused=True.*{reason}"):
            act(x)
    act = xg.activation("Heaviside", xg.get("triangular").copy(name="on_meta"), fused=True)
    with pytest.warns(RuntimeWarning, match="fused=True.*on meta"):
        assert act(x.detach().to("meta")).shape == x.shape

    def decayed(x: Any) -> Any:
        return xp.fori_loop(0, 3, lambda _, carry: carry * 0.5 + x, x)

    looped = xg.function(decayed, lambda g, x: g * decayed(x), fused=True)
    timed = xg.estimators.dorefa_weights.keeping("time", fused=True)
    for function in (looped, timed):
        with pytest.warns(RuntimeWarning, match="fused=True.*a loop, or what cost time"):
            function(x)
    constant = xg.function(lambda x: xp.tanh(x) * x, lambda g, x: None, fused=True)
    with pytest.warns(RuntimeWarning, match="fused=True.*no input gets a gradient"):
        assert torch.autograd.grad(constant(x).sum(), x, allow_unused=True) == (None,)


@compiling
@pytest.mark.parametrize("width", [1e39, 1e22, 1e-30])
def test_numbers_beyond_the_dtype_do_what_they_do_in_plain_code(width: float) -> None:
    @xg.register("fused_tests_beyond", override=True)
    def clipped(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return xp.clip(grad_out, -width * width, width * width) + xp.abs(tin)

    def outcome(fused: bool) -> Any:
        act = xg.activation("Heaviside", clipped, {"width": width}, fused=fused)
        x = torch.linspace(-2, 2, 5, requires_grad=True)
        try:
            return torch.autograd.grad(act(x).sum(), x)[0].tolist()
        except RuntimeError as error:
            return str(error)

    if width > 1:
        with pytest.warns(RuntimeWarning, match="fused=True.*beyond float32"):
            found = outcome(fused=True)
        assert "overflow" in found
    else:
        found = outcome(fused=True)
    assert found == outcome(fused=False)


@pytest.mark.parametrize(
    ("forward", "rule"), [("Heaviside", "straight_through"), ("ReLU", "d(ReLU)")]
)
def test_parts_that_are_one_kernel_of_torch_each_ask_for_no_compiler(
    forward: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no_such_compiler")  # a warning would be an error
    x = torch.linspace(-1, 1, 9, requires_grad=True)
    y, gradient = run(xg.activation(forward, rule, fused=True), x, torch.ones(9))
    assert_same_bits(y, (torch.relu(x) if rule == "d(ReLU)" else (x > 0).float()).detach())
    assert_same_bits(gradient, (x > 0).float() if rule == "d(ReLU)" else torch.ones(9))


def test_no_compiler_starts_before_the_process_asks_or_where_it_is_off(
    tmp_path: Path,
) -> None:
    code = """
import os, sys, torch, multigrad as xg
x = torch.randn(1 << 19, requires_grad=True)
def is_compiled(rule, setting="", **options):
    os.environ["MULTIGRAD_FUSED"] = setting
    spike = xg.activation("Heaviside", rule, **options)
    for _ in range(6):
        spike(x).sum().backward()
    return any(name.endswith("fusing.fused") for name in sys.modules)
print(is_compiled("s2nn"), is_compiled("triangular", "on", fused=False))
print(is_compiled("arctan", "off"))
xg.enable("kernels")
print(is_compiled("s2nn"))
"""
    environment = {**os.environ, "MULTIGRAD_NATIVE": "", "MULTIGRAD_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["False False", "False", "True"]
