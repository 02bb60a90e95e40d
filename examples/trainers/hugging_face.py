"""A Hugging Face model and `Trainer`: rules on a transformer that nobody here wrote.

A tiny BERT is made from its configuration and classifies digits, read as sequences of pixels. Its
GELUs get another backward, that of a clipped straight-through estimator, and each weight's
gradient is clipped: two lines around `trainer.train()`.

Needs: pip install 'multigrad-rules[torch]' transformers accelerate scikit-learn
"""

import tempfile

import torch
from digits import as_tensors
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import multigrad as xg

EPOCHS, LEVELS = 3, 17


class Pixels(Dataset):
    """Images as sequences of 64 gray levels."""

    def __init__(self, images, labels):
        self.tokens = (images * (LEVELS - 1)).round().long()
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def make_model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=LEVELS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, num_labels=10,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def main() -> None:
    train, test = (Pixels(*pair) for pair in as_tensors(torch))
    for with_rules in (False, True):
        model = make_model()
        names = list(model.state_dict())
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder, num_train_epochs=EPOCHS, per_device_train_batch_size=32,
                learning_rate=1e-3, lr_scheduler_type="constant", seed=0, use_cpu=True,
                report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
            )  # fmt: skip
            trainer = Trainer(model=model, args=arguments, train_dataset=train, eval_dataset=test)
            if with_rules:
                rule = xg.get("rectangular").with_params(a=-2.0, b=2.0)
                with (
                    xg.attach(model, {"gelu": rule}) as changed,
                    xg.use("clip_norm", params={"max_norm": 1.0}, scope="params"),
                ):
                    print(changed)
                    trainer.train()
            else:
                trainer.train()
            loss = trainer.evaluate()["eval_loss"]
        same = names == list(model.state_dict())
        print(f"rules {with_rules!s:5}: loss {loss:.4f}, the same names of weights: {same}")


if __name__ == "__main__":
    main()
