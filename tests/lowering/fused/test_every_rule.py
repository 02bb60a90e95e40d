"""Every rule that has kernels gives the bits of plain code in each language and on each device, in
every dtype; Triton's kernels are for a GPU what they should be.

The oracle is torch, op by op. In the interpreter it rounds as on a processor: see conftest.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from .test_fused import IS_INTERPRETED, assert_same_bits
from .test_fused import samples as edges_and_draws

torch: Any = pytest.importorskip("torch")

Tensor: TypeAlias = Any
pytestmark = pytest.mark.needs("torch")


@cache
def samples(count: int = 4097) -> tuple[Tensor, Tensor]:
    """Return each edge value with each other one, and some drawn, in float32."""
    return tuple([each.detach()[:count] for each in edges_and_draws(torch.float32, count)])


def run(rule: Any, x: Tensor, grad: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Return output and gradient."""
    own = x.clone().requires_grad_()
    y = xg.activation("Heaviside", rule, **options)(own)
    return y.detach(), torch.autograd.grad(y, own, grad)[0]


@cache
def fusable(device: Any) -> list[str]:
    """Return the rules that have kernels; some of them in C, whose compiler starts for each."""
    found = []
    rules = [*xg.rules()][:: 1 if IS_INTERPRETED or device.type == "cuda" else 12]
    for rule in rules:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            own = xg.get(rule).copy(name=f"{rule} here")  # it is said once of each
            run(own, *[each.to(device) for each in samples(9)], fused=True)
        if not any("fused=True" in str(each.message) for each in told):
            found.append(rule)
    assert len(found) > len(rules) / 3
    return found


def reduces(rule: str) -> bool:
    """Return whether what a rule gives for an element depends on others."""
    x, grad = np.array([0.5, -0.25]), np.array([1.0, 2.0])
    both = xg.get(rule)(None, grad, x)
    return both[0] != xg.get(rule)(None, grad[:1], x[:1])[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_are_those_of_plain_code(dtype: str, device: Any) -> None:
    # In the interpreter all by vectors: of what is left torch's sigmoid takes another exp.
    count = 4096 if IS_INTERPRETED else 4117
    x, grad = (each.to(device, getattr(torch, dtype)) for each in samples(count))
    for rule in fusable(device):
        pair = run(rule, x, grad, fused=True), run(rule, x, grad, fused=False)
        for found, expected in zip(*pair, strict=True):
            if not reduces(rule):
                assert_same_bits(found, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_are_those_of_float32_rounded_once(dtype: str, device: Any) -> None:
    kind = getattr(torch, dtype)
    x, grad = (each.to(device, kind) for each in samples())
    for rule in ("triangular", "rectangular", "arctan", "fast_sigmoid"):
        found = run(rule, x, grad, fused=True)
        expected = run(rule, x.float(), grad.float(), fused=False)
        for a, b in zip(found, expected, strict=True):
            assert_same_bits(a, b.to(kind))


REMAINDER = 24  # among the results
SIGNLESS = (*range(14, 22), REMAINDER)  # of two zeros limits give either, and remainders too


def every_op(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Return what each op that a kernel may have makes of numbers."""
    xp = xg.xp
    numbers = [
        *(xp.sqrt(x), 1.0 / x, x / y, xp.floor(x), xp.ceil(x), xp.trunc(x), xp.round(x), -x),
        *(xp.copysign(x, y), xp.copysign(1.5, y), xp.square(x), xp.abs(x), xp.sign(x), x - y),
        *(xp.maximum(x, y), xp.minimum(x, y), xp.maximum(0.5, x), xp.minimum(x, -0.0)),
        *(xp.clip(x, -1.0, 2.5), xp.clip(x, y, 1.0), xp.relu(x), xp.relu6(x), xp.heaviside(x)),
        xp.leaky_relu(x, 0.3),
        xp.remainder(x, y),
    ]
    masks = [
        *(x < y, x <= y, x > 0.5, x >= y, x == y, x != y, xp.isnan(x), xp.isinf(x)),
        *(xp.isfinite(x), ~(x < y), (x < y) & (y > 0.0), (x < y) | (y > 0.0), (x < y) ^ (y > 0.0)),
    ]
    return *numbers, *[xp.where(mask, x, -2.0) for mask in masks], *masks


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_op_gives_the_bits_of_numpy(dtype: str, device: Any) -> None:
    x, y = (each.to(device, getattr(torch, dtype)) for each in samples())
    near = torch.arange(-600, 600, device=device, dtype=x.dtype) / 4
    big = 2.0 ** torch.arange(20, 60, device=device, dtype=x.dtype)
    x = torch.cat([x, near, big - 0.5, -big, big + 1.5, -1.5 - big])
    y = torch.cat([y, x[len(y) :].flip(0)])
    f = xg.function(every_op, lambda gs, x, y: (gs[0] * x, gs[1] * y), fused=True)
    with np.errstate(all="ignore"):
        expected = every_op(x.cpu().numpy(), y.cpu().numpy())
    found = f(x, y)
    assert_same_bits(found[0], torch.sqrt(x))  # MKL's, which NumPy's is not on some processors
    for i, (ours, right) in enumerate(zip(found[1:], expected[1:], strict=True), 1):
        assert ours.dtype is (torch.bool if right.dtype == bool else x.dtype)
        ours, theirs = ours.to(x.dtype), torch.tensor(right, dtype=x.dtype).to(device)
        same = torch.signbit(ours) == torch.signbit(theirs)
        same |= (theirs == 0) & (i in SIGNLESS)
        same &= ours == theirs
        same |= ours.isnan() & theirs.isnan()
        assert bool(same.all()), (i, x[~same][:5], y[~same][:5], ours[~same][:5], theirs[~same][:5])


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1023, 1024, 4095, 4097, 131_085])
def test_masks_of_every_length_are_packed(count: int, device: Any) -> None:
    x, grad = (
        each[-count:].to(device) if count else each[:0].to(device)
        for each in samples(max(count, 4097))
    )
    found = run("rectangular", x, grad, fused=True)
    for a, b in zip(found, run("rectangular", x, grad, fused=False), strict=True):
        assert_same_bits(a, b)


def test_a_gpu_divides_by_a_number_as_torch_does_there(
    language: str, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if language == "C" and device.type == "cpu":
        pytest.skip("of Triton: on a processor torch divides")
    monkeypatch.delenv("MULTIGRAD_WITHOUT", raising=False)
    x, grad = (each[-1000:].to(device) for each in samples())
    inverse = float(np.float32(1) / np.float32(0.3))
    expected = grad * torch.clamp_min(1 - x.abs() * inverse, 0)
    rule = xg.get("triangular").copy(name="divided_on_a_gpu")  # the other has kernels already
    found = run(rule, x, grad, params={"width": 0.3}, fused=True)
    assert_same_bits(found[1], expected)


def test_kernels_are_compared_in_whatever_mode_the_call_is(device: Any) -> None:
    from multigrad_torch.attach.fusing import fused

    native = xg.lower("triangular", "torch", forward="Heaviside")
    kernels = fused.CompiledKernels(native, torch.empty(0, device=device), is_proven=False)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.device("meta"):
            assert kernels.prove((0.5,)).is_proven
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_a_cuda_graph_records_kernels_and_plain_code(device: Any) -> None:
    x, grad = (each.to(device) for each in samples())
    stream = torch.cuda.Stream()
    for rule in (xg.get("triangular").copy(name="recorded"), xg.get("triangular")):
        act = xg.activation("Heaviside", rule, fused=True)
        own = x.clone().requires_grad_()
        if rule.name == "triangular":  # the other has no kernels when it is recorded
            torch.autograd.grad(act(own), own, grad)
        with torch.cuda.stream(stream):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                (found,) = torch.autograd.grad(act(own), own, grad)
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(found, run("triangular", x, grad, fused=False)[1])


@pytest.mark.parametrize(
    ("module", "reason"),
    [(None, "Triton is not installed.*pip install triton"), ("3.5.1", "3.5.1 is older than 3.6")],
)
def test_without_triton_plain_code_runs_and_one_warning_says_why(
    module: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from multigrad_torch.attach.fusing import fused, triton_kernels

    monkeypatch.setitem(fused.LANGUAGES, "cpu", triton_kernels)
    fake = None if module is None else SimpleNamespace(__version__=module)
    monkeypatch.setitem(sys.modules, "triton", fake)
    rule = xg.get("triangular").copy(name=f"without_triton_{module is None}")
    act = xg.activation("Heaviside", rule, fused=True)
    x = torch.linspace(-2, 2, 9, requires_grad=True)
    with pytest.warns(RuntimeWarning, match=f"fused=True.*{reason}"):
        y = act(x)
    expected = run("triangular", x.detach(), x.detach(), fused=False)
    assert_same_bits(torch.autograd.grad(y, x, x.detach())[0], expected[1])


def compile_for_gpu(folder: Path) -> dict[str, Any]:
    """Return what becomes of kernels on an H100, for which Triton compiles without one."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    command = [sys.executable, "-m", "tests.lowering.fused.compile_for_gpu"]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, check=True, cwd=root, env=environment, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def test_kernels_are_compiled_for_a_gpu_with_ieee_arithmetic(tmp_path: Path) -> None:
    pytest.importorskip("triton", "3.6", reason="there is no Triton 3.6: `tox -e triton`")
    done = compile_for_gpu(tmp_path)
    found = done["ptx"]
    assert {name.partition(" ")[0] for name in found} >= {"triangular", "rectangular", "arctan"}
    for name, text in found.items():
        # CUDA's own exp and pow have them inside.
        allowed = ("fma.", ".ftz") if name.startswith(("gaussian", "softmax", "circle")) else ()
        for word in {"fma.", "div.full", "sqrt.approx", ".ftz"}.difference(allowed):
            assert word not in text, (name, word)
    assert "div.rn.f32" in found["arctan float32 backward"]
    assert "div.rn.f64" in found["arctan float64 backward"]
    assert "cvt.f64.f32" not in found["arctan float64 backward"]  # numbers come in float64
    # Four numbers at a time, where there are so many; a mask is written as bytes.
    assert "ld.global.v4.b32" in found["triangular float32 backward"]
    assert "st.global.b8" in found["rectangular float32 keep"]
    # Nothing is compiled by a call: what was compiled before is for every length.
    assert set(done["variants"]) == {0}
    assert done["launches"] == 2 * len(done["variants"])
