"""Train a network of spiking units in PaddlePaddle, whose steps have no gradient of their own.

Needs: pip install 'multigrad-rules[paddle]'; from a clone -e . -e backends/multigrad_paddle
"""

import paddle
from paddle import nn

import multigrad as xg


class Spiking(nn.Layer):
    """Two linear layers around a step, which a surrogate differentiates."""

    def __init__(self, rule: str | None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 32), nn.Linear(32, 1)
        self.spike = xg.activation("Heaviside", rule)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.last(self.spike(self.first(x)))


def make_rings(count: int) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return points, and whether each lies within a ring."""
    points = paddle.uniform([count, 2], min=-1.0, max=1.0)
    radius = paddle.norm(points, axis=1, keepdim=True)
    return points, paddle.logical_and(radius > 0.4, radius < 0.9).astype("float32")


def train(rule: str | None) -> float:
    """Return how much of the points is told right in the end."""
    paddle.seed(0)
    points, inside = make_rings(512)
    model = Spiking(rule)
    optimizer = paddle.optimizer.Adam(0.02, parameters=model.parameters())
    for _ in range(150):
        loss = nn.functional.binary_cross_entropy_with_logits(model(points), inside)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    told = (model(points) > 0).astype("float32")
    return float((told == inside).astype("float32").mean())


def main() -> None:
    print(f"no rule, the first layer stays as it was: {train(None):.3f}")
    print(f"fast_sigmoid in the place of the slope:   {train('fast_sigmoid'):.3f}")


if __name__ == "__main__":
    main()
