"""Whole models with PyTorch's pooling and with ndpool's: the same outputs and training, less memory.

Outputs, gradients and losses are compared element by element; models with max pooling only must agree
bitwise. The models are defined in models.py.
"""

from __future__ import annotations

import contextlib
from unittest import mock

import pytest

import ndpool
from helpers import routed_functions

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Skipping serialization:UserWarning"),  # PyTorch 2.6's own
]
torch = pytest.importorskip("torch")

import ndpool.torch as nt  # noqa: E402
from models import CASES, SPPF, VGGBlocks, saved_bytes  # noqa: E402

STEPS = 20
ROUTED = routed_functions()


def build(name, dtype=torch.float64):
    """The model and an input, with a fixed seed."""
    torch.manual_seed(7)
    model = CASES[name].make().to(dtype)
    return model, torch.randn(CASES[name].shape, dtype=dtype)


def fail(*args, **kwargs):
    raise AssertionError("PyTorch's pooling was called")


@contextlib.contextmanager
def no_fallback():
    """Make PyTorch's pooling functions fail, so that a patch cannot fall back on them."""
    with contextlib.ExitStack() as stack:
        for owner, name in ROUTED:
            stack.enter_context(mock.patch.object(owner, name, fail))
        yield


@contextlib.contextmanager
def pooled_by_ndpool(how, model, name):
    """Pool with ndpool, by `accelerate` or `patch`, and check that it is used."""
    if how == "accelerate":
        assert len(nt.accelerate(model).swapped) == CASES[name].pools
        yield
    elif how == "patch":
        with no_fallback(), nt.patch():
            yield
    else:
        yield


def outputs_and_gradients(call, model, x):
    x = x.clone().requires_grad_()
    y = call(x)
    y.square().mean().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def losses(call, model, x, steps=STEPS):
    """The loss curve of training towards random targets."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator, curve, target = torch.Generator().manual_seed(1), [], None
    for _ in range(steps):
        y = call(x)
        target = torch.randn(y.shape, generator=generator, dtype=y.dtype) if target is None else target
        loss = (y - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.detach())
    return torch.stack(curve)


def assert_same(got, wanted, exact, factor=64.0):
    """Equal, or within a few roundings of the largest value; some gradients consist of rounding only."""
    bound = 0 if exact else factor * max(torch.finfo(t.dtype).eps * t.abs().max().item() for t in wanted)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=bound)


def assert_same_pass(got, wanted, exact):
    assert_same(got[:1], wanted[:1], exact)
    assert_same(got[1:], wanted[1:], exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("how", ["accelerate", "patch"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name, how, dtype):
    model, x = build(name, dtype)
    wanted = outputs_and_gradients(model, model, x)
    model, x = build(name, dtype)
    with pooled_by_ndpool(how, model, name):
        got = outputs_and_gradients(model, model, x)
    assert_same_pass(got, wanted, CASES[name].exact)


@pytest.mark.parametrize("how", ["accelerate", "patch"])
@pytest.mark.parametrize("name", CASES)
def test_loss_curves(name, how):
    model, x = build(name)
    wanted = losses(model, model, x)
    model, x = build(name)
    with pooled_by_ndpool(how, model, name):
        got = losses(model, model, x)
    assert wanted[-1] < wanted[0]
    assert_same([got], [wanted], CASES[name].exact, factor=2.0**16)


@pytest.mark.parametrize("how", ["accelerate", "patch"])
@pytest.mark.parametrize("name", CASES)
def test_compiled_models(name, how):
    """One graph without breaks for the whole model, including the compiled backward."""
    torch._dynamo.reset()
    model, x = build(name)
    wanted = outputs_and_gradients(model, model, x)
    model, x = build(name)
    with pooled_by_ndpool(how, model, name):
        call = torch.compile(model, backend="aot_eager", fullgraph=True)
        got = outputs_and_gradients(call, model, x)
    assert_same_pass(got, wanted, exact=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # PyTorch's, while it imports its own
@pytest.mark.parametrize(("name", "how"), [("small_cnn", "accelerate"), ("small_cnn", "patch")])
def test_loss_curves_of_compiled_models(name, how):
    """With the default compiler backend."""
    torch._dynamo.reset()
    model, x = build(name)
    wanted = losses(model, model, x)
    model, x = build(name)
    with pooled_by_ndpool(how, model, name):
        got = losses(torch.compile(model), model, x)
    assert_same([got], [wanted], exact=False, factor=2.0**16)


@pytest.mark.parametrize("how", ["accelerate", "patch"])
@pytest.mark.parametrize("name", ["sppf", "cbam", "coord_att", "se", "densenet3d", "segnet"])
def test_deterministic_training(name, how):
    """Two training runs give bitwise identical weights for any number of threads.

    pytorch#111466 and ultralytics/yolov5#8961 (YOLO and CBAM), pytorch#108341 and pytorch#84860 (attention
    strips), Project-MONAI/MONAI#3716 (3-D DenseNet): with ndpool's pooling deterministic mode raises nothing.
    In that mode PyTorch fills new memory with NaN, so an element that is not written would show.
    """
    threads, weights = ndpool.get_num_threads(), []
    torch.use_deterministic_algorithms(True)
    try:
        for n in (1, 3):
            ndpool.set_num_threads(n)
            model, x = build(name, torch.float32)
            with pooled_by_ndpool(how, model, name):
                assert losses(model, model, x).isfinite().all()
            weights.append(model.state_dict())
    finally:
        torch.use_deterministic_algorithms(False)
        ndpool.set_num_threads(threads)
    first, second = weights
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def peak_bytes(call, x):
    """The peak memory of a training step, from PyTorch's allocator."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call(x).sum().backward()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    allocated = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    assert peak > 0
    return peak


def pooled_sizes(model, x):
    """The input bytes and output elements of each max pool of a model."""
    seen = []
    hooks = [
        module.register_forward_hook(lambda m, args, y: seen.append((args[0].nbytes, y.numel())))
        for module in model.modules()
        if isinstance(module, torch.nn.MaxPool2d)
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    return zip(*seen, strict=True)


@pytest.mark.parametrize("pool_first", [True, False])
def test_vgg_training_saves_less(pool_first):
    """pytorch#85485: max pooling saves one byte per output instead of its input and int64 indices.

    A ReLU before the pool saves the same tensor, its output; after the pool it does not, so that the whole
    input is freed. The peak is at the convolutions at the end, when everything before them is saved.
    """
    wide = torch.nn.Conv2d(32, 256, 3, padding=1), torch.nn.Conv2d(256, 256, 3, padding=1)
    model = torch.nn.Sequential(VGGBlocks((3, 16, 32), pool_first), *wide)
    x = torch.randn(2, 3, 64, 64)
    read, written = pooled_sizes(model, x)
    before = saved_bytes(model, x), peak_bytes(model, x)
    nt.accelerate(model)
    after = saved_bytes(model, x), peak_bytes(model, x)
    less = 7 * sum(written) + (sum(read) if pool_first else 0)
    assert before[0] - after[0] == less
    assert before[1] - after[1] >= less


def test_sppf_training_saves_less():
    """Three successive pools with stride 1 save one byte per output instead of eight."""
    model, x = SPPF(), torch.randn(2, 8, 20, 20)
    _, written = pooled_sizes(model, x)
    before = saved_bytes(model, x)
    nt.accelerate(model)
    assert before - saved_bytes(model, x) >= 7 * sum(written)


def test_inference_saves_nothing():
    model, x = VGGBlocks((3, 16, 32)), torch.randn(2, 3, 64, 64)
    nt.accelerate(model)
    kept = []
    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(kept.append, lambda t: t):
        assert not model(x).requires_grad
    assert kept == []
