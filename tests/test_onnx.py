"""ONNX export of models that pool with ndpool, by both of PyTorch's exporters, run by ONNX Runtime.

Functions, modules, accelerated and patched models become standard operators, for every input size, and give
the model's results.
"""

from __future__ import annotations

import copy
import io
import os
from contextlib import nullcontext
from functools import partial

import pytest

import ndpool
from export_draws import EXPORTED, EXPORTERS, NOT_EXPORTED, UNPOOLED, draw, make_every, make_model
from models import CASES

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # the exporters emit many warnings
torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime runs the exported models")
onnx = pytest.importorskip("onnx", reason="PyTorch exports through it")
pytest.importorskip("onnxscript", reason="PyTorch's default exporter needs it")

import ndpool.torch as nt  # noqa: E402

F, nn = torch.nn.functional, torch.nn
both = pytest.mark.parametrize("dynamo", [True, False], ids=EXPORTERS)
# By default few enough for every test run; raised to hundreds before a release.
N_DRAWS = int(os.environ.get("NDPOOL_ONNX_DRAWS", "48"))
DRAWS = [(seed, seed % 24 == 23) for seed in range(N_DRAWS)]


def exported(model, x, dynamo, dynamic=(), **options):
    """Export a model, check it, and return a function that runs it with ONNX Runtime.

    The axes in `dynamic` may have any size.
    """
    file = io.BytesIO()
    if dynamo:
        if dynamic:
            options["dynamic_shapes"] = (dict.fromkeys(dynamic, torch.export.Dim.DYNAMIC),)
        inputs = () if isinstance(model, torch.export.ExportedProgram) else (x,)
        torch.onnx.export(model, inputs, dynamo=True, verbose=False, **options).save(file)
    else:
        if dynamic:
            options.update(input_names=["x"], dynamic_axes={"x": {a: f"size{a}" for a in dynamic}})
        torch.onnx.export(model, (x,), file, dynamo=False, **options)
    check(onnx.load_from_string(file.getvalue()))
    silent = onnxruntime.SessionOptions()
    silent.log_severity_level = 3
    session = onnxruntime.InferenceSession(file.getvalue(), silent, providers=["CPUExecutionProvider"])

    def run(x):
        return [torch.from_numpy(y) for y in session.run(None, {session.get_inputs()[0].name: x.numpy()})]

    return run


def check(model):
    """Standard operators, and none that relies on `ceil_mode`."""
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} <= {""}
    assert not model.functions
    assert not any(a.name == "ceil_mode" and a.i for node in model.graph.node for a in node.attribute)


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


@both
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


@both
def test_patched_functions_export(dynamo):
    x = torch.rand(2, 3, 8, 8)
    want = Functions()(x)
    with nt.patch():
        run = exported(Functions(), x, dynamo)
    assert_close(run(x), want)


@pytest.mark.parametrize("name", CASES)
def test_accelerated_models_export(name):
    """pytorch#75383: among them adaptive max pooling, which PyTorch cannot export."""
    torch.manual_seed(0)
    model, x = CASES[name].make().eval(), torch.rand(CASES[name].shape)
    with torch.no_grad():
        want = model(x)
        accelerated = copy.deepcopy(model)
        nt.accelerate(accelerated)
        with nt.patch():  # some call functions
            run = exported(accelerated, x, dynamo=name in ("psp", "audio"))
        assert_close(run(x), [want])


@both
@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_function_exports(n, dynamo):
    """coremltools#2717: indices and divisors, too, become standard operators."""
    model, x = make_every(n), torch.rand(2, 3, *(13, 11, 9)[:n])
    run = exported(model, x, dynamo, range(2, n + 2))
    for sizes in ((13, 11, 9), (8, 10, 11)):
        x = torch.rand(2, 3, *sizes[:n])
        assert_close(run(x), model(x))


def test_the_lists_of_functions_are_complete():
    functions = {name for name in ndpool.__all__ if "pool" in name} - {"unpool"}
    assert functions == {*EXPORTED, *UNPOOLED, *NOT_EXPORTED}


@both
def test_pyramid_pooling_for_every_size(dynamo):
    """pytorch#64806, pytorch#74034, onnx#2957, onnxscript#1646: sizes do not divide and are not known."""
    pools = [kind(size) for size in (1, 2, 3, 6) for kind in (nt.AdaptiveAvgPool2d, nt.AdaptiveMaxPool2d)]
    model = Pools(*pools, nt.AdaptiveMaxPool2d((5, None), return_indices=True))
    run = exported(model, torch.rand(2, 3, 13, 16), dynamo, (2, 3))
    for size in ((13, 16), (32, 7), (6, 6), (4, 5)):
        x = torch.rand(2, 3, *size)
        assert_close(run(x), model(x))


@both
def test_pooling_and_unpooling_pairs(dynamo):
    """pytorch#25088, onnx#2398: indices count inside a plane; odd sizes."""

    class SegNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)])
            self.pool = nt.MaxPool2d(3, 2, 1, return_indices=True)
            self.unpool = nt.MaxUnpool2d(3, 2, 1)

        def forward(self, x):
            y, indices = self.pool(self.convs[0](x))
            return self.convs[1](self.unpool(y, indices, x.shape)), indices

    torch.manual_seed(0)
    model = SegNet().eval()
    run = exported(model, torch.rand(2, 2, 15, 18), dynamo, (2, 3))
    for size in ((15, 18), (7, 9), (12, 10)):
        x = torch.rand(2, 2, *size)
        assert_close(run(x), model(x))


@both
def test_programs_captured_before(dynamo):
    """A program of `torch.export` has ndpool's operators; parameters make them those of training."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 1)

        def forward(self, x):
            y = self.conv(x)
            values, indices = ndpool.max_pool2d(y, 3, 2, ceil_mode=True, return_indices=True)
            return ndpool.adaptive_avg_pool2d(y, (3, 5)), ndpool.max_pool2d(y, 2), values, indices

    model, x = Net(), torch.rand(1, 2, 8, 11)
    if dynamo:
        sizes = {2: torch.export.Dim("height", min=4), 3: torch.export.Dim("width", min=4)}
        program = torch.export.export(model, (x,), dynamic_shapes=(sizes,))
        assert str(program.graph).count("torch.ops.ndpool") == 4
        run = exported(program, x, True)
    else:
        run = exported(model, x, False, (2, 3))
    for size in ((8, 11), (7, 6)):
        x = torch.rand(1, 2, *size)
        assert_close(run(x), model(x))


@pytest.mark.parametrize(("n", "dynamo"), [(2, True), (2, False), (3, False)])
def test_divisors_are_exported(n, dynamo):
    """pytorch#183528, coremltools#2748: PyTorch's exporters drop divisors, runtimes differ in `ceil_mode`."""
    name, x = f"AvgPool{n}d", torch.rand((2, 3) + (9,) * n)
    arguments = [
        {"kernel_size": 2, "divisor_override": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "divisor_override": 7, "count_include_pad": False},
        {"kernel_size": 4, "stride": 3, "padding": 1, "divisor_override": -2, "ceil_mode": True},
        {"kernel_size": 2, "stride": 3, "divisor_override": 5, "ceil_mode": True},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
    ]
    run = exported(Pools(*(getattr(nt, name)(**given) for given in arguments)), x, dynamo, (2, 3))
    for size in (8, 9, 10):
        x = torch.rand(2, 3, *(size, 9, 9)[:n])
        assert_close(run(x), [getattr(nn, name)(**given)(x) for given in arguments])


@pytest.mark.parametrize(("seed", "dynamo"), DRAWS, ids=str)
def test_drawn_models(seed, dynamo):
    case = draw(seed)
    torch.manual_seed(seed)
    first, second = (torch.randn(shape) for shape in case.shapes)
    run = exported(make_model(case, layers=seed // 12 % 2 == 0), first, dynamo, case.axes())
    for x in (first, second):
        assert_close(run(x), case(x))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int32"])
def test_dtypes(dtype):
    pools = [partial(ndpool.max_pool2d, kernel_size=3, stride=2, padding=1, return_indices=True)]
    pools += [partial(ndpool.adaptive_max_pool2d, output_size=3), partial(ndpool.avg_pool2d, kernel_size=3)]
    pools += [partial(ndpool.pool, window=(2, 3), reduce="sum", ceil_mode=True)]

    class Model(nn.Module):
        def forward(self, x):
            results = [pool(x.to(getattr(torch, dtype))) for pool in pools]
            return tuple(y.to(torch.float64) for r in results for y in (r if isinstance(r, tuple) else (r,)))

    x = torch.randint(0, 100, (2, 3, 8, 7)).to(torch.float32)
    assert_close(exported(Model(), x, dynamo=False)(x), Model()(x))


def test_an_opset_that_is_too_old():
    """onnx/tutorials#156: an operator is not written into an opset that does not know it."""
    message = "max_pool2d: export to ONNX needs opset 10 or newer; got opset_version=9 .limit 10."
    with pytest.raises(ValueError, match=message):
        exported(nt.MaxPool2d(2, dilation=2), torch.rand(1, 1, 8, 8), False, opset_version=9)
    with pytest.raises(ValueError, match="needs opset 13"):
        exported(nt.AdaptiveMaxPool2d(3), torch.rand(1, 1, 8, 8), False, opset_version=12)


def test_what_is_not_exported():
    x, dynamo = torch.rand(1, 1, 8, 8), False
    with pytest.raises(
        TypeError, match="max_pool2d: export supports integers of up to 32 bits; got dtype=int64"
    ):
        exported(nt.MaxPool2d(2), x.to(torch.int64), dynamo)
    with pytest.raises(TypeError, match="fractional_max_pool2d: fractional pooling has random windows"):
        exported(nt.FractionalMaxPool2d(2, 3), x, dynamo)
