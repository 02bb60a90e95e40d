"""Replace gradients in PyTorch: a rule of the library, one of your own, and two composed.

Needs: pip install 'multigrad-rules[torch]'
"""

import torch

import multigrad as xg


@xg.register("noisy_threshold")
def noisy_threshold(ctx, grad_out, tin, t: float = 0.0, sigma: float = 0.1):
    """Pass the gradient where the input reached `t`, with Gaussian noise on all of it."""
    # A rule also serves parameter gradients, where there is no forward input.
    mask = 1.0 if tin is None else (tin >= t).to(grad_out.dtype)
    return grad_out * mask + sigma * torch.randn_like(grad_out)


def show_gradient(title: str, activation: xg.Activation, rule: str, **params: float) -> None:
    x = torch.linspace(-2.0, 2.0, 5, requires_grad=True)
    with xg.use(rule, params=params, scope="activations"):
        y = activation(x)
    # The rule was taken at forward: backward may run later, outside the `with`.
    y.sum().backward()
    print(f"{title:<48}", "  ".join(f"{value:6.3f}" for value in x.grad.tolist()))


def main() -> None:
    torch.manual_seed(0)
    relu, linear = xg.Activation("ReLU"), xg.Activation("Linear")

    x = torch.linspace(-2.0, 2.0, 5, requires_grad=True)
    relu(x).sum().backward()
    print(f"{'x':<48}", "  ".join(f"{value:6.3f}" for value in x.tolist()))
    print(f"{'ReLU, its own derivative':<48}", "  ".join(f"{g:6.3f}" for g in x.grad.tolist()))

    # The forward value stays ReLU's; only the gradient is another.
    show_gradient("ReLU, rectangular_jam on [-1, 1]", relu, "rectangular_jam", a=-1.0, b=1.0)
    show_gradient("ReLU, noisy_threshold at 0.5", relu, "noisy_threshold", t=0.5, sigma=0.05)

    # Rules in series: first the norm is limited, then noise is added. Each takes the params it
    # declares.
    xg.register("clip_then_noise")(xg.compose("clip_norm", "noise"))
    show_gradient("Linear, clip_then_noise", linear, "clip_then_noise", max_norm=1.0, sigma=0.01)


if __name__ == "__main__":
    main()
