"""What forward keeps for backward: four rules, by hand and by multigrad, counted in bytes.

By hand, a custom gradient mostly keeps its input. Multigrad keeps the cheapest thing that backward
can be computed from: a mask, a number, nothing, or the input where every element's value counts.
Needs: pip install 'multigrad-rules[torch]', or [jax], or both
"""

from collections.abc import Callable

import numpy as np

import multigrad as xg

SIZE = 1_000_000


@xg.register("window")
def window(ctx, grad_out, tin):
    return grad_out * ((tin >= -0.5) & (tin <= 0.5))


@xg.register("reversed")
def reversed_(ctx, grad_out, tin):
    return -0.5 * grad_out


# A norm that forward computed has lost its derivative: torch may keep it where nobody needs that.
@xg.register("loudness", first_order=True)
def loudness(ctx, grad_out, tin):
    return grad_out * (tin * tin).sum() ** 0.5


@xg.register("bell")
def bell(ctx, grad_out, tin):
    return grad_out / (1 + tin * tin)


RULES: dict[str, Callable] = {
    rule.name: rule.function for rule in (window, reversed_, loudness, bell)
}


def count_torch(rule: Callable, name: str) -> tuple[int, int]:
    """Return the bytes that autograd is given to keep: by hand, and by multigrad."""
    import torch

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x > 0).to(x.dtype)

        @staticmethod
        def backward(ctx, grad_out):
            (x,) = ctx.saved_tensors
            return rule(ctx, grad_out, x)

    def count(activation: Callable) -> int:
        kept: list[int] = []

        def pack(tensor):
            kept.append(tensor.nbytes)
            return tensor

        x = torch.randn(SIZE, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            activation(x)
        return sum(kept)

    return count(ByHand.apply), count(xg.activation("Heaviside", rule=name))


def count_jax(rule: Callable, name: str) -> tuple[int, int]:
    """Return the bytes of the arrays in what `jax.vjp` gives: by hand, and by multigrad."""
    import jax

    @jax.custom_vjp
    def by_hand(x):
        return (x > 0).astype(x.dtype)

    by_hand.defvjp(lambda x: (by_hand(x), x), lambda x, grad_out: (rule(None, grad_out, x),))

    def count(activation: Callable) -> int:
        _, pullback = jax.vjp(activation, jax.numpy.asarray(np.ones(SIZE, np.float32)))
        return sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(pullback))

    return count(by_hand), count(xg.activation("Heaviside", rule=name))


COUNTS: dict[str, Callable[[Callable, str], tuple[int, int]]] = {
    "torch": count_torch,
    "jax": count_jax,
}


def main() -> None:
    names = [row.name for row in xg.backends() if row.installed and row.name in COUNTS]
    print(f"bytes kept for backward of Heaviside, {SIZE:,} elements of float32")
    print(f"{'':<10}", *(f"{name + ', by hand':>16}{'multigrad':>12}" for name in names))
    for name, rule in RULES.items():
        counts = [COUNTS[framework](rule, name) for framework in names]
        print(f"{name:<10}", *(f"{by_hand:>16,}{ours:>12,}" for by_hand, ours in counts))
    for name in RULES:
        shown = xg.show(xg.activation("Heaviside", rule=name), memory=True)
        kept = shown[shown.index("kept for backward") :].replace("\n", "\n  ")
        print(f"\n{name}, {kept}")


if __name__ == "__main__":
    main()
