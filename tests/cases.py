"""Tiny real networks, one for each way a layer can trip a descriptor up."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

NUM_CLASSES = 4
IMAGE = (2, 8, 8)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 5, 3)
        self.conv2 = nn.Conv2d(5, 7, 3)
        self.fc = nn.Linear(7 * 16, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv2(self.conv1(x).tanh()).tanh().flatten(1))


class Normed(nn.Module):
    """BatchNorm whose running statistics are not the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, NUM_CLASSES)
        self.norm.running_mean = torch.randn(6)
        self.norm.running_var = torch.rand(6) + 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).tanh().mean(dim=(2, 3)))


class NormedPlain(Plain):
    """A network that learns quickly and answers otherwise while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv2(self.norm(self.conv1(x)).tanh()).tanh().flatten(1))


class Rectified(nn.Module):
    """A convolution followed by a ReLU, in place or not."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.relu = nn.ReLU(inplace=inplace)
        self.fc = nn.Linear(6 * 36, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.relu(self.conv(x)).flatten(1))


class Shared(nn.Module):
    """One convolution and one activation that run twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 5, 1)
        self.conv = nn.Conv2d(5, 5, 3, padding=1)
        self.act = nn.Tanh()
        self.fc = nn.Linear(5, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.conv(self.stem(x)))
        return self.fc(self.act(self.conv(x)).mean(dim=(2, 3)))


class Vector(nn.Module):
    """Only vectors, the last of them a view."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.fc1 = nn.Linear(128, 9)
        self.fc2 = nn.Linear(9, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.flat(x)).tanh())


class Residual(nn.Module):
    """Additions in place over a shared ReLU, as ResNets have them."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.inplace = inplace
        self.stem = nn.Conv2d(2, 6, 3)
        self.conv1, self.norm1 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=inplace)
        self.after = nn.Identity()
        self.fc = nn.Linear(6, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        if self.inplace:
            out += x
        else:
            out = out + x
        return self.fc(self.after(self.relu(out)).mean(dim=(2, 3)))


class Transformer(nn.Module):
    """Patches as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, 8, 4, stride=4)
        self.block1 = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True, norm_first=True)
        self.block2 = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.block2(self.block1(tokens)).mean(dim=1))


@dataclass(frozen=True)
class Case:
    """A network, the layers to tap, and a twin without in-place steps whose taps mean the same."""

    name: str
    build: Callable[[], nn.Module]
    layers: tuple[str, ...]
    build_twin: Callable[[], nn.Module] | None = None
    twin_layers: tuple[str, ...] | None = None

    def nets(self, seed: int = 0) -> tuple[nn.Module, nn.Module]:
        """The network and its twin, with the same weights, in float64."""
        torch.manual_seed(seed)
        net = self.build().double()
        twin = (self.build_twin or self.build)().double()
        twin.load_state_dict(net.state_dict())
        return net, twin


CASES = [
    Case("plain", Plain, ("conv1", "conv2")),
    Case("last layer only", Plain, ("conv2",)),
    Case("layers in another order", Plain, ("conv2", "conv1")),
    Case("batch norm", Normed, ("conv", "norm")),
    Case("in-place relu", Rectified, ("conv",), lambda: Rectified(inplace=False), ("relu",)),
    Case("in-place relu tapped too", Rectified, ("conv", "relu"), lambda: Rectified(inplace=False), ("relu", "relu")),
    Case("shared module", Shared, ("stem", "conv", "act")),
    Case("vector", Vector, ("flat", "fc1")),
    Case("residual", Residual, ("stem", "norm2"), lambda: Residual(inplace=False), ("stem", "after")),
    Case("transformer", Transformer, ("patch", "block1", "block2")),
]


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, *IMAGE, generator=torch.Generator().manual_seed(seed))


def labeled(count: int, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed + 1)
    return TensorDataset(images(count, seed), torch.randint(NUM_CLASSES, (count,), generator=generator))


def biased(counts: list[int], seed: int = 0) -> TensorDataset:
    """So many noisy images of each class, in random order; a class is recognised by a pattern of its own."""
    generator, patterns = torch.Generator().manual_seed(seed), images(NUM_CLASSES, seed=99)
    labels = torch.repeat_interleave(torch.arange(NUM_CLASSES), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    return TensorDataset(0.7 * patterns[labels] + torch.randn(len(labels), *IMAGE, generator=generator), labels)


def blobs(shares: list[float], count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points around three corners, one a class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=generator)
    return 2.5 * torch.eye(3)[labels] + torch.randn(count, 3, generator=generator), labels


def exact_posterior(points: Tensor) -> Tensor:
    """p(y | x) of the blobs under equal shares."""
    return (-0.5 * (points[:, None] - 2.5 * torch.eye(3)).square().sum(dim=2)).softmax(dim=1)


def skewed(counts: tuple[int, ...], seed: int = 0, noise: float = 1.0) -> TensorDataset:
    """So many images of each class, shuffled: the pattern of the class under noise. Classes should differ in size."""
    patterns, generator = images(NUM_CLASSES, seed=77), torch.Generator().manual_seed(seed)
    labels = torch.tensor([c for c, count in enumerate(counts) for _ in range(count)])
    labels = labels[torch.randperm(len(labels), generator=generator)]
    return TensorDataset(patterns[labels] + noise * torch.randn(len(labels), *IMAGE, generator=generator), labels)
