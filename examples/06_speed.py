"""What a rule costs: forward and backward of Heaviside + triangular, against a hand-written
Function and FreeGrad.

All rivals run interleaved in one process on one thread; the ratio of the medians is what to read.
In a clone `python tools/bench` measures more: every framework, other rules and sizes, better
rivals, and the memory kept. Needs: pip install 'multigrad-rules[torch]'; FreeGrad is measured where
it is installed.
"""

import importlib.util
import statistics
import sys
import time
from contextlib import ExitStack

import torch

import multigrad as xg


class HandWritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, width):
        ctx.save_for_backward(x)
        ctx.width = width
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - x.abs() / ctx.width).clamp(min=0), None


def hand_written(x):
    return HandWritten.apply(x, 1.0)


def measure(rivals: dict, size: int, rounds: int, calls: int) -> dict[str, list[float]]:
    """Return microseconds per forward and backward, one figure a round."""
    x = torch.randn(size, requires_grad=True)
    g = torch.ones(size)
    times = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, f in rivals.items():
            start = time.perf_counter()
            for _ in range(calls):
                torch.autograd.grad(f(x), x, g)
            times[name].append((time.perf_counter() - start) / calls * 1e6)
    return times


def main() -> None:
    quick = "--quick" in sys.argv
    torch.set_num_threads(1)
    rivals = {"hand-written": hand_written, "multigrad": xg.Activation("Heaviside")}
    with ExitStack() as rules:
        rules.enter_context(xg.use("triangular"))
        if importlib.util.find_spec("freegrad"):
            import freegrad

            rules.enter_context(freegrad.use("triangular"))
            rivals["freegrad"] = freegrad.Activation("Heaviside")
        for size, calls in ((1_000, 200), (1_000_000, 2)):
            times = measure(rivals, size, 3 if quick else 150, 2 if quick else calls)
            print(f"{size} elements, microseconds per forward and backward: minimum, median")
            for name, figures in times.items():
                low, middle = min(figures), statistics.median(figures)
                against = ", ".join(
                    f"{middle / statistics.median(theirs):.2f} of {rival}"
                    for rival, theirs in times.items()
                    if rival != name
                )
                print(f"  {name:13} {low:9.1f} {middle:9.1f}   {against}")


if __name__ == "__main__":
    main()
