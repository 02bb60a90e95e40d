"""Somebody's network of binary neurons, trained by Lightning without a changed line in it.

`torch.sign` has no gradient, so that by itself only the last layer learns. `attach` puts a
straight-through estimator under every call of it, and `use` clips the gradient of each weight;
Lightning sees a module like any other, and its checkpoints hold what they held.

Needs: pip install 'multigrad-rules[torch]' lightning scikit-learn
"""

import lightning
import torch
from digits import as_tensors
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import multigrad as xg

EPOCHS, BATCH = 5, 64


class BinaryNetwork(lightning.LightningModule):
    """Two layers of neurons that send -1 or 1; it knows nothing of multigrad."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Linear(128, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, images):
        hidden = torch.sign(self.first(images))
        return self.out(self.second(hidden).sign())

    def training_step(self, batch, _):
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main() -> None:
    train, (images, labels) = as_tensors(torch)
    for with_rules in (False, True):
        lightning.seed_everything(0, verbose=False)
        network = BinaryNetwork()
        before = network.first.weight.detach().clone()
        trainer = lightning.Trainer(
            max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        loader = DataLoader(TensorDataset(*train), batch_size=BATCH, shuffle=True)
        if with_rules:
            rule = xg.get("rectangular").with_params(a=-1.0, b=1.0)
            with xg.attach(network, {torch.sign: rule}) as changed:
                print(changed)
                with xg.use("clip_norm", params={"max_norm": 0.1}, scope="params"):
                    trainer.fit(network, loader)
        else:
            trainer.fit(network, loader)
        accuracy = (network(images).argmax(1) == labels).float().mean()
        moved = (network.first.weight - before).abs().max()
        print(f"rules {with_rules!s:5}: accuracy {accuracy:.4f}, first layer moved by {moved:.4f}")


if __name__ == "__main__":
    main()
