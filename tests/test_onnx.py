"""ONNX export of models that pool with ndpool, by both of PyTorch's exporters, run by ONNX Runtime.

An accelerated or patched model is exported with PyTorch's operators and gives the model's results.
"""

from __future__ import annotations

import copy
import io
from contextlib import nullcontext

import pytest

from models import CASES

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # the exporters emit many warnings
torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime runs the exported models")
pytest.importorskip("onnx", reason="PyTorch exports through it")
pytest.importorskip("onnxscript", reason="PyTorch's default exporter needs it")

import ndpool.torch as nt  # noqa: E402

F, nn = torch.nn.functional, torch.nn
EXPORTERS = pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])


def exported(model, x, dynamo, **options):
    """Export a model and return a function that runs it with ONNX Runtime."""
    file = io.BytesIO()
    if dynamo:
        torch.onnx.export(model, (x,), dynamo=True, verbose=False, **options).save(file)
    else:
        torch.onnx.export(model, (x,), file, dynamo=False, **options)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])

    def run(x):
        return [torch.from_numpy(y) for y in session.run(None, {session.get_inputs()[0].name: x.numpy()})]

    return run


class Pools(nn.Module):
    """Several modules applied to the same input."""

    def __init__(self, *pools):
        super().__init__()
        self.pools = nn.ModuleList(pools)

    def forward(self, x):
        results = [pool(x) for pool in self.pools]
        return tuple(y for result in results for y in (result if isinstance(result, tuple) else (result,)))


def pools(module=nn):
    return Pools(
        module.MaxPool2d(3, 2, 1),
        module.MaxPool2d(2, return_indices=True),
        module.AvgPool2d(3, 2, 1),
        module.AvgPool2d(3, 2, 1, count_include_pad=False),
        module.AdaptiveAvgPool2d(4),
        module.AdaptiveMaxPool2d(4),
        module.LPPool2d(2, 2),
    )


class Functions(nn.Module):
    def forward(self, x):
        divided = F.avg_pool2d(x, 3, 2, 1, divisor_override=2)
        return F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), divided, torch.max_pool2d(x, 2)


def assert_close(got, want):
    torch.testing.assert_close(list(got), list(want), rtol=1e-5, atol=1e-5)


@EXPORTERS
@pytest.mark.parametrize("how", ["accelerated", "constructed", "patched"])
def test_pooling_modules_export(how, dynamo):
    x = torch.rand(2, 3, 8, 8)
    model = pools(nt if how == "constructed" else nn)
    want = pools()(x)
    if how == "accelerated":
        assert len(nt.accelerate(model).swapped) == len(model.pools)
    with nt.patch() if how == "patched" else nullcontext():
        run = exported(model, x, dynamo)
        if dynamo:  # torch.export itself still records ndpool's operators
            assert "ndpool.pool" in str(torch.export.export(model, (x,)).graph)
    assert_close(run(x), want)


@EXPORTERS
def test_patched_functions_export(dynamo):
    x = torch.rand(2, 3, 8, 8)
    want = Functions()(x)
    with nt.patch():
        run = exported(Functions(), x, dynamo)
    assert_close(run(x), want)


@pytest.mark.parametrize("name", [name for name in CASES if name != "audio"])
def test_accelerated_models_export(name):
    torch.manual_seed(0)
    model, x = CASES[name].make().eval(), torch.rand(CASES[name].shape)
    with torch.no_grad():
        want = model(x)
        accelerated = copy.deepcopy(model)
        nt.accelerate(accelerated)
        assert_close(exported(accelerated, x, dynamo=True)(x), [want])


def test_models_that_pytorch_cannot_export_raise():
    """ONNX has no operator for adaptive max pooling over windows of different sizes."""
    model, x = CASES["audio"].make().eval(), torch.rand(CASES["audio"].shape)
    nt.accelerate(model)
    with pytest.raises(torch.onnx.OnnxExporterError, match=r"aten\.adaptive_max_pool2d"):
        exported(model, x, dynamo=True)


@EXPORTERS
@pytest.mark.parametrize("n", [2, 3])
def test_divisor_override_is_exported(n, dynamo):
    """PyTorch's exporters drop it and would export the plain average."""
    name, x = f"AvgPool{n}d", torch.rand((2, 3) + (9,) * n)
    arguments = [
        {"kernel_size": 2, "divisor_override": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "divisor_override": 7, "count_include_pad": False},
        {"kernel_size": 4, "stride": 3, "padding": 1, "divisor_override": -2, "ceil_mode": True},
        {"kernel_size": 3, "stride": (1,) * n, "divisor_override": 5, "ceil_mode": True},
    ]
    want = [getattr(nn, name)(**given)(x) for given in arguments]
    assert_close(exported(Pools(*(getattr(nt, name)(**given) for given in arguments)), x, dynamo)(x), want)


@EXPORTERS
def test_divisor_override_of_any_size_is_exported(dynamo):
    """The exported model gives the model's results for images of other sizes."""
    pool = nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=4)
    x = torch.rand(1, 2, 9, 8)
    ours = copy.deepcopy(pool)
    nt.accelerate(ours)
    height = torch.export.Dim("height", min=4)
    options = {"dynamic_shapes": ({2: height},)} if dynamo else {"dynamic_axes": {"x": {2: "height"}}}
    names = {"input_names": ["x"], "output_names": ["y"]}
    run = exported(ours, x, dynamo, **options, **names)
    for size in (8, 9, 10, 11):
        other = torch.rand(1, 2, size, 8)
        assert_close(run(other), [pool(other)])


@EXPORTERS
def test_divisor_override_that_cannot_be_exported_raises(dynamo):
    """Whether the last window starts inside the input depends on the size, which may be dynamic."""
    pool = nt.AvgPool2d(2, 3, ceil_mode=True, divisor_override=4)
    # After an error the default exporter tries a second capture and reports the error of that one.
    error, message = (
        (torch.onnx.OnnxExporterError, "Failed to convert")
        if dynamo
        else (ValueError, "avg_pool2d: divisor_override with ceil_mode .* got stride=3 .* .limit 2.")
    )
    with pytest.raises(error, match=message):
        exported(pool, torch.rand(1, 2, 9, 9), dynamo)
