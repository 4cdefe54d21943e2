"""Small versions of well-known networks that pool, in plain PyTorch.

They do not use ndpool: tests and benchmarks run them before and after `accelerate`, and under `patch`.
Each has the same pooling arguments as the original network and is otherwise as small as possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv(n_in: int, n_out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution with "same" padding, batch normalisation and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()
    )


class SmallCNN(nn.Sequential):
    """Two stages of convolution and pooling, and a classifier."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 8, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(8 * 4 * 4, 10)),
        )


class VGGBlocks(nn.Sequential):
    """Blocks of two convolutions and a pool; the pool commutes with the ReLU and may precede it."""

    def __init__(self, widths: tuple[int, ...] = (3, 8, 12), pool_first: bool = False) -> None:
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(widths):
            last = [nn.MaxPool2d(2, 2), nn.ReLU()]
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(), nn.Conv2d(n_out, n_out, 3, padding=1)]
            layers += last if pool_first else last[::-1]
        super().__init__(*layers)


class ResNetStem(nn.Module):
    """The stem of a ResNet, one residual block and the head."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = conv(3, width, 7, 2)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.block = nn.Sequential(conv(width, width), nn.Conv2d(width, width, 3, padding=1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.conv1(x))
        x = F.relu(x + self.block(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Inception(nn.Module):
    """A GoogLeNet block between pools, with the average-pooling branch of later versions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 8), nn.MaxPool2d(3, stride=2, ceil_mode=True))
        self.branch1 = conv(8, 4, 1)
        self.branch2 = nn.Sequential(conv(8, 4, 1), conv(4, 6))
        self.branch3 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), conv(8, 4, 1))
        self.branch4 = nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), conv(8, 4, 1))
        self.head = nn.Sequential(nn.AvgPool2d(5, 3), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        branches = (self.branch1, self.branch2, self.branch3, self.branch4)
        return self.head(torch.cat([branch(x) for branch in branches], 1))


class SPPF(nn.Module):
    """YOLO's fast spatial pyramid pooling: one pool with stride 1, applied three times."""

    def __init__(self, n_in: int = 8, n_out: int = 6) -> None:
        super().__init__()
        self.cv1 = conv(n_in, n_in // 2, 1)
        self.cv2 = conv(n_in * 2, n_out, 1)
        self.m = nn.MaxPool2d(kernel_size=5, stride=1, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        steps = [self.cv1(x)]
        for _ in range(3):
            steps.append(self.m(steps[-1]))
        return self.cv2(torch.cat(steps, 1))


class PyramidPooling(nn.Module):
    """PSPNet's pyramid: adaptive average pooling to sizes 1, 2, 3 and 6, then upsampling."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = conv(3, width)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(size), nn.Conv2d(width, 2, 1), nn.ReLU())
            for size in (1, 2, 3, 6)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return torch.cat(
            [x, *(F.interpolate(stage(x), x.shape[2:], mode="nearest") for stage in self.stages)], 1
        )


class SqueezeExcite(nn.Module):
    """Channel attention from global average pooling, called as functions."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = conv(3, width)
        self.fc1, self.fc2 = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(x), 2)
        scale = F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))
        return F.avg_pool2d(x * torch.sigmoid(self.fc2(scale)), 2, ceil_mode=True)


class CBAM(nn.Module):
    """Channel attention from global average and max pooling, then spatial attention."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = conv(3, width)
        self.avg_pool, self.max_pool = nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)
        self.mlp = nn.Sequential(nn.Conv2d(width, 4, 1), nn.ReLU(), nn.Conv2d(4, width, 1))
        self.spatial = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x * torch.sigmoid(self.mlp(self.avg_pool(x)) + self.mlp(self.max_pool(x)))
        maps = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return x * torch.sigmoid(self.spatial(maps))


class CoordAtt(nn.Module):
    """Coordinate attention: average pooling of rows and of columns."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = conv(3, width)
        self.pool_h, self.pool_w = nn.AdaptiveAvgPool2d((None, 1)), nn.AdaptiveAvgPool2d((1, None))
        self.conv1 = conv(width, 4, 1)
        self.conv_h, self.conv_w = nn.Conv2d(4, width, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        rows, columns = self.pool_h(x), self.pool_w(x).transpose(2, 3)
        both = self.conv1(torch.cat([rows, columns], 2))
        rows, columns = both.split([x.shape[2], x.shape[3]], 2)
        return x * self.conv_h(rows).sigmoid() * self.conv_w(columns.transpose(2, 3)).sigmoid()


class SegNet(nn.Module):
    """An encoder and a decoder that uses its indices, for odd sizes too."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([conv(3, 6), conv(6, 8)])
        self.up = nn.ModuleList([conv(8, 6), nn.Conv2d(6, 4, 3, padding=1)])
        self.pool = nn.MaxPool2d(2, 2, return_indices=True)
        self.unpool = nn.MaxUnpool2d(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        saved = []
        for stage in self.down:
            full = stage(x)
            x, indices = self.pool(full)
            saved.append((indices, full.shape))
        for stage, (indices, size) in zip(self.up, reversed(saved), strict=True):
            x = stage(self.unpool(x, indices, output_size=size))
        return x


class DenseNet3d(nn.Module):
    """The stem, one dense block, the transition and the head of a 3-D DenseNet."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv3d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool3d(3, 2, 1))
        self.layers = nn.ModuleList(nn.Conv3d(width * n, width, 3, padding=1) for n in (1, 2))
        self.transition = nn.Sequential(nn.Conv3d(3 * width, width, 1), nn.AvgPool3d(2, stride=2))
        self.head = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(1), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, F.relu(layer(x))], 1)
        return self.head(self.transition(x))


class AudioNet(nn.Module):
    """Strided convolutions over a waveform with every kind of 1-D pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv1d(1, 6, 9, stride=2), nn.ReLU(), nn.MaxPool1d(4)),
            *(nn.Conv1d(6, 8, 3), nn.ReLU(), nn.AvgPool1d(3, 2, 1)),
            *(nn.Conv1d(8, 8, 3), nn.Softplus(), nn.LPPool1d(2, 3, 2)),
        )
        self.avg, self.max = nn.AdaptiveAvgPool1d(4), nn.AdaptiveMaxPool1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return torch.cat([self.avg(x), self.max(x)], 1)


@dataclass(frozen=True)
class Case:
    """A model, the shape of its input, and properties of its pooling."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    pools: int  # number of pooling modules
    exact: bool = False  # max pooling only: results must be bitwise equal


CASES = {
    "small_cnn": Case(SmallCNN, (3, 1, 24, 24), 2, exact=True),
    "vgg": Case(VGGBlocks, (2, 3, 17, 20), 2, exact=True),
    "resnet": Case(ResNetStem, (2, 3, 33, 30), 2),
    "inception": Case(Inception, (2, 3, 18, 21), 4),
    "sppf": Case(SPPF, (2, 8, 9, 11), 1, exact=True),
    "psp": Case(PyramidPooling, (2, 3, 13, 16), 4),
    "se": Case(SqueezeExcite, (2, 3, 11, 14), 0),
    "cbam": Case(CBAM, (2, 3, 10, 12), 2),
    "coord_att": Case(CoordAtt, (2, 3, 10, 7), 2),
    "segnet": Case(SegNet, (2, 3, 15, 18), 2, exact=True),
    "densenet3d": Case(DenseNet3d, (2, 1, 9, 10, 11), 3),
    "audio": Case(AudioNet, (2, 1, 160), 5),
}


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """The bytes that a forward pass saves for backward; each storage counts once."""
    kept = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = model(x)
    # The result keeps the counted storages alive up to here, so that no address is reused.
    return sum(kept.values()) if result.requires_grad else 0
