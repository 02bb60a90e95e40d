"""A network of mlx.nn whose step function trains by a surrogate gradient."""

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn

import multigrad as xg


class Spiking(nn.Module):
    """Two layers with a step between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 32), nn.Linear(32, 1)
        self.spike = xg.activation("Heaviside", "triangular")

    def __call__(self, x: mx.array) -> mx.array:
        return self.second(self.spike(self.first(x)))


def compute_loss(model: Spiking, x: mx.array, y: mx.array) -> mx.array:
    return nn.losses.binary_cross_entropy(model(x)[:, 0], y)


mx.random.seed(0)
x = mx.random.uniform(-1, 1, (256, 2))
y = (x[:, 0] * x[:, 1] > 0).astype(mx.float32)
model = Spiking()
optimizer = optim.Adam(learning_rate=0.02)
differentiate = nn.value_and_grad(model, compute_loss)
losses = []
for _ in range(60):
    loss, gradients = differentiate(model, x, y)
    optimizer.update(model, gradients)
    mx.eval(model.parameters(), optimizer.state)
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
assert losses[-1] < 0.8 * losses[0]
