"""The papers' models as torch modules, and rounds as a plain loop."""

from typing import Any

import numpy as np
import torch
from torch import nn

import fedprox as fp

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def to_device(array: Any) -> Any:
    """The array as a tensor on torch's device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)


def wait() -> None:
    """Wait until torch has finished all pending work."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def logistic() -> nn.Module:
    return nn.Linear(784, 10)


def two_layers() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


def mnist_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def _three_dense(features: int) -> tuple[nn.Module, ...]:
    return (
        nn.Flatten(),
        nn.Linear(features, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )


def cifar_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.LocalResponseNorm(9, alpha=0.001),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.LocalResponseNorm(9, alpha=0.001),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        *_three_dense(2304),
    )


def wide_lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *_three_dense(1600),
    )


class _Block(nn.Module):
    """A block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(2, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(2, outputs),
        )
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(nn.GroupNorm(2, outputs))

    def forward(self, x: Any) -> Any:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    blocks: list[nn.Module] = []
    for inputs, outputs in ((64, 64), (64, 128), (128, 256), (256, 512)):
        blocks += [_Block(inputs, outputs, outputs // inputs), _Block(outputs, outputs, 1)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.GroupNorm(2, 64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


class MiniLM(nn.Module):
    """BERT's encoder in MiniLM's size, with a linear head for two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(30_522, 384), nn.Embedding(512, 384)
        self.norm, self.head = nn.LayerNorm(384), nn.Linear(384, 2)
        layer = nn.TransformerEncoderLayer(384, 12, 1536, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def forward(self, ids: Any) -> Any:
        """(B, length) -> (B, 2)."""
        x = self.norm(self.tokens(ids) + self.positions.weight[: ids.shape[1]])
        return self.head(self.layers(x, src_key_padding_mask=ids == 0).mean(1))


class Loop:
    """FedAvg with one epoch of SGD, one client after another.

    Args:
        module: The model.
        federation: The clients, all of one size.
        batch: Rows of a mini-batch.
    """

    def __init__(self, module: nn.Module, federation: fp.Federation, batch: int) -> None:
        self.module, self.batch = module.to(DEVICE), batch
        self.parameters = list(module.parameters())
        self.clients = []
        for k in range(len(federation)):
            x, y = federation.train.client(k)
            x = np.moveaxis(x, -1, 1) if x.ndim == 4 else x
            self.clients.append((to_device(x), to_device(y.astype(np.int64))))
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.01)

    def _step(self, x: Any, y: Any) -> None:
        self.optimizer.zero_grad()
        outputs = self.module(x)
        self.loss(outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1)).backward()
        self.optimizer.step()

    def step(self) -> None:
        """One step on the first client's first rows."""
        x, y = self.clients[0]
        self._step(x[: self.batch], y[: self.batch])
        wait()

    def round(self) -> None:
        """One epoch of each client from the same model, and the mean of the results."""
        with torch.no_grad():
            start = [p.clone() for p in self.parameters]
            mean = [torch.zeros_like(p) for p in start]
        for x, y in self.clients:
            with torch.no_grad():
                for p, s in zip(self.parameters, start, strict=True):
                    p.copy_(s)
            for rows in torch.randperm(len(x)).to(DEVICE).split(self.batch):
                self._step(x[rows], y[rows])
            with torch.no_grad():
                for m, p in zip(mean, self.parameters, strict=True):
                    m += p / len(self.clients)
        with torch.no_grad():
            for p, m in zip(self.parameters, mean, strict=True):
                p.copy_(m)
        wait()
