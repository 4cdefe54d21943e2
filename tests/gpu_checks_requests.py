"""Requests of PyTorch's users that only a GPU can prove: models train reproducibly where PyTorch's raise.

Not collected by name: ``make test-gpu`` runs it on a GPU. Each test names its requests.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ndpool
import ndpool.torch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:.*(deterministic|Deterministic):UserWarning"),
]
F = nn.functional


@pytest.fixture(autouse=True)
def deterministic(monkeypatch):
    """PyTorch's deterministic mode, in which its own functions without such an algorithm raise."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class CoordinateAttention(nn.Module):
    """Strips along both axes by adaptive averages with `None`, as in CoordAtt."""

    def __init__(self, channels):
        super().__init__()
        self.rows, self.columns = nn.AdaptiveAvgPool2d((None, 1)), nn.AdaptiveAvgPool2d((1, None))
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return x * (self.mix(self.rows(x)).sigmoid() * self.mix(self.columns(x)).sigmoid())


class ChannelAttention(nn.Module):
    """CBAM's channel attention: adaptive average and adaptive max to 1, and spatial strips of both."""

    def __init__(self, channels):
        super().__init__()
        self.mean, self.best = nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return x * (self.mix(self.mean(x)) + self.mix(self.best(x))).sigmoid()


def yolo():
    """A small detector: strided convolutions, spatial pyramid pooling, both attention blocks, a head."""

    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.pools = nn.ModuleList(nn.MaxPool2d(k, 1, k // 2) for k in (5, 9, 13))
            self.mix = nn.Conv2d(64, 16, 1)

        def forward(self, x):
            return self.mix(torch.cat([x, *(pool(x) for pool in self.pools)], 1))

    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.MaxPool2d(3, 2, 1), Pyramid()]
    layers += [CoordinateAttention(16), ChannelAttention(16), nn.AdaptiveMaxPool2d((5, 7))]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 35, 4))


def densenet():
    """A small 3-D DenseNet: dense blocks, average pooling between them, an adaptive average at the end."""

    class Dense(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv3d(channels + 8 * i, 8, 3, padding=1) for i in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = torch.cat([x, layer(x.relu())], 1)
            return x

    layers = [nn.Conv3d(1, 8, 3, padding=1), nn.MaxPool3d(3, 2, 1), Dense(8), nn.AvgPool3d(3, 2, 1)]
    layers += [Dense(32), nn.AdaptiveAvgPool3d((2, 3, 2)), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(56 * 12, 2))


def train(make, shape, steps=4, channels_last=False):
    """Losses and final weights of one training run, from fixed seeds."""
    torch.manual_seed(0)
    model = make().cuda()
    report = ndpool.torch.accelerate(model)
    assert report.swapped
    assert not report.left
    x = torch.randn(shape, device="cuda")
    if channels_last:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        x, model = x.to(memory_format=formats[x.dim()]), model.to(memory_format=formats[x.dim()])
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).logsumexp(1).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("make", "shape"), [(yolo, (4, 3, 94, 118)), (densenet, (2, 1, 22, 26, 18))], ids=["yolo", "densenet"]
)
def test_two_trainings_are_equal(make, shape, channels_last):
    """Models that PyTorch refuses to train in deterministic mode give the same weights twice.

    pytorch#111466, yolov5#8961: YOLO with adaptive pooling and CBAM. pytorch#108341, pytorch#84860: attention
    with strips of size (None, 1) and (1, None). MONAI#3716: a 3-D DenseNet.
    """
    first, second = (train(make, shape, channels_last=channels_last) for _ in range(2))
    assert first[0] == second[0]
    assert first[0][0] != first[0][-1]
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


@pytest.mark.parametrize("out", [2, 8, 32])
@pytest.mark.parametrize("length", [31, 100, 1001])
def test_adaptive_max_of_signals(length, out):
    """pytorch#59783: gradients of 1-D adaptive max pooling, equal on every run and to the CPU's."""
    x = torch.randn(8, 16, length, device="cuda", requires_grad=True)
    grads = set()
    for _ in range(20):
        y = ndpool.adaptive_max_pool1d(x, out)
        grads.add(torch.autograd.grad(y, x, torch.ones_like(y))[0].cpu().numpy().tobytes())
    assert len(grads) == 1
    leaf = x.detach().cpu().requires_grad_()
    want = torch.autograd.grad(F.adaptive_max_pool1d(leaf, out).sum(), leaf)[0]
    assert want.numpy().tobytes() in grads


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("sizes", [(13, 17), (30, 8), (7, 11, 9)], ids=str)
def test_adaptive_max_with_overlap(sizes, channels_last):
    """pytorch#131972: also where windows overlap, in two and three dimensions and both layouts."""
    n = len(sizes)
    x = torch.randn(4, 8, *sizes, device="cuda")
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last if n == 2 else torch.channels_last_3d)
    leaf, pool = x.requires_grad_(), getattr(ndpool, f"adaptive_max_pool{n}d")
    made = [torch.autograd.grad(pool(leaf, 5).square().sum(), leaf)[0] for _ in range(50)]
    assert all(torch.equal(made[0], g) for g in made)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("args", [(3, 2, 1), (3, 1, 1), (5, 1, 2), (4, 2, 1)], ids=str)
def test_volumes(args, channels_last):
    """torch-xpu-ops#5306: a deterministic gradient of `max_pool3d` with overlapping windows.

    PyTorch 2.11 has one on CUDA only if it is asked for; here there is no other. It is equal to the CPU's.
    """
    x = torch.randint(-9, 9, (2, 8, 12, 15, 16)).float()
    ours = x.cuda().contiguous(
        memory_format=torch.channels_last_3d if channels_last else torch.contiguous_format
    )
    ours.requires_grad_()
    theirs = x.requires_grad_()
    want = F.max_pool3d(theirs, *args)
    grad = torch.randint(-9, 9, want.shape).float()
    made = [torch.autograd.grad(ndpool.max_pool3d(ours, *args), ours, grad.cuda())[0] for _ in range(20)]
    assert torch.equal(made[0].cpu(), torch.autograd.grad(want, theirs, grad)[0])
    assert all(torch.equal(made[0], g) for g in made)


@pytest.mark.parametrize("args", [(2,), (7, 1, 3)], ids=str)
def test_max_pooling_beyond_32_bits(args):
    """pytorch#68418: more than 2**31 elements of float16, forward and backward, equal to parts of them."""
    torch.use_deterministic_algorithms(False)  # which fills new memory
    x = torch.randn((1, 2**15 + 1, 256, 257), dtype=torch.float16, device="cuda").requires_grad_()
    y = ndpool.max_pool2d(x, *args)
    (g,) = torch.autograd.grad(y, x, torch.ones_like(y))
    for at in (slice(0, 8), slice(2**15 - 8, 2**15 + 1)):
        part = x.detach()[:, at].requires_grad_()
        want = F.max_pool2d(part, *args)
        assert torch.equal(y[:, at], want)
        assert torch.equal(g[:, at], torch.autograd.grad(want.sum(), part)[0])
