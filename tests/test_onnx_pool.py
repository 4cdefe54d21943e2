"""`ndpool.onnx.export_pool`: single poolings as ONNX models, run by several runtimes, without PyTorch."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

import ndpool
from export_draws import draw
from helpers import run_python

onnx = pytest.importorskip("onnx", reason="export_pool writes ONNX models with it")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime runs the exported models")
export_pool = ndpool.onnx.export_pool
FAMILIES = ("pool", "pool indices", "adaptive_pool", "adaptive_pool indices")
N_DRAWS = int(os.environ.get("NDPOOL_ONNX_DRAWS", "160"))


def runner(model):
    silent = onnxruntime.SessionOptions()
    silent.log_severity_level = 3
    options = {"sess_options": silent, "providers": ["CPUExecutionProvider"]}
    session = onnxruntime.InferenceSession(model.SerializeToString(), **options)
    return lambda x: session.run(None, {"x": x})


def operators(model):
    return [node.op_type for node in model.graph.node]


def assert_equal(got, want, tolerance=1e-5):
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seeds", [range(i, N_DRAWS, 8) for i in range(8)], ids=str)
def test_drawn_poolings(seeds):
    """One model for all sizes, and one for each."""
    for seed in seeds:
        case, rng = draw(seed, FAMILIES), np.random.default_rng(seed)
        dtypes = ["float32"] * 6 + ["float64", "float16", "int8", "uint8", "int16", "int32", "bool"]
        dtype = rng.choice(dtypes)
        if case.arguments["reduce"] == "avg" and dtype == "bool":
            dtype = "float32"
        inputs = [(8 * rng.standard_normal(shape)).astype(dtype) for shape in case.shapes]
        given = {**case.arguments, "return_indices": case.indices, "dtype": str(dtype)}
        dynamic = [None if a in case.axes() else n for a, n in enumerate(case.shapes[0])]
        run = runner(export_pool(dynamic, **given))
        for x in inputs:
            want = case(x)
            assert_equal(run(x), want, 2e-3 if dtype == "float16" else 1e-5)
            model = export_pool(x.shape, **given)
            known = model.graph.output[0].type.tensor_type.shape.dim
            assert tuple(d.dim_value for d in known) == want[0].shape
            assert_equal(runner(model)(x), want, 2e-3 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("reduce", ["max", "avg"])
@pytest.mark.parametrize("kernel", range(1, 13))
def test_ceil_mode_needs_no_attribute(kernel, reduce):
    """onnx#4958: the windows that PyTorch has, no more, for every size, stride and padding."""
    for stride in range(1, 13, 2 if reduce == "avg" else 1):
        for padding in {0, kernel // 2}:
            given = {"stride": stride, "padding": padding, "ceil_mode": True, "reduce": reduce}
            model = export_pool((1, 1, "n"), (kernel,), **given)
            assert not any(a.name == "ceil_mode" for node in model.graph.node for a in node.attribute)
            run = runner(model)
            for size in range(max(1, kernel - 2 * padding), 13):
                x = np.arange(1.0, size + 1, dtype=np.float32).reshape(1, 1, size)
                assert_equal(run(x), [ndpool.pool(x, (kernel,), **given)])


@pytest.mark.parametrize("given", [
    {"window": (3, 3), "stride": 2, "padding": 1, "ceil_mode": True},
    {"window": (3, 2), "stride": 2, "ceil_mode": True, "reduce": "avg", "padding": 1},
    {"output_size": (3, 5), "reduce": "avg"},
    {"output_size": (3, 5), "return_indices": True},
    {"window": (3, 3), "stride": 3, "reduce": "lp", "norm_type": 3},
])  # fmt: skip
def test_a_second_runtime_agrees(given):
    """openvino#33369: ONNX's reference evaluator, besides ONNX Runtime."""
    from onnx.reference import ReferenceEvaluator

    x = np.random.default_rng(0).standard_normal((2, 3, 10, 11)).astype(np.float32)
    model = export_pool(x.shape, **given)
    plain = {name: value for name, value in given.items() if name not in ("window", "output_size")}
    size = given.get("window") or given["output_size"]
    want = (ndpool.pool if "window" in given else ndpool.adaptive_pool)(x, size, **plain)
    want = want if isinstance(want, tuple) else (want,)
    assert_equal(runner(model)(x), want)
    assert_equal(ReferenceEvaluator(model).run(None, {"x": x}), want)


@pytest.mark.parametrize("reduce", ["max", "avg"])
@pytest.mark.parametrize("size", [(10, 11), (9, 12)])
def test_opencv_agrees(size, reduce):
    """opencv#17966: an importer that ignores `ceil_mode` gives the same results."""
    cv2 = pytest.importorskip("cv2", reason="OpenCV runs the exported models")
    x = np.random.default_rng(0).standard_normal((1, 3, *size)).astype(np.float32)
    given = {"stride": 2, "ceil_mode": True, "reduce": reduce}
    model = export_pool(x.shape, (3, 3), **given, opset=13)
    net = cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))
    net.setInput(x)
    assert_equal([net.forward()], [ndpool.pool(x, (3, 3), **given)])


def test_output_size_one_is_a_global_mean():
    """torch2trt#643."""
    for shape in ((1, 3, 8, 8), ("n", 3, "h", "w")):
        assert operators(export_pool(shape, output_size=(1, 1), reduce="avg")) == ["ReduceMean"]
        assert operators(export_pool(shape, output_size=(1, 1))) == ["ReduceMax"]


def test_plain_poolings_are_one_node():
    shape = (1, 3, "h", "w")
    assert operators(export_pool(shape, (3, 3), stride=2, padding=1, dilation=2)) == ["MaxPool"]
    assert operators(export_pool(shape, (3, 3), padding=1, reduce="avg")) == ["AveragePool"]
    assert operators(export_pool(shape, (3, 3), padding="same", stride=1)) == ["MaxPool"]
    assert operators(export_pool((1, 3, 8, 6), output_size=(4, 2))) == ["MaxPool"]
    assert operators(export_pool(shape, (3, 3), ceil_mode=True, stride=2)) == ["Pad", "MaxPool"]


@pytest.mark.parametrize("reduce", ["max", "avg", "sum"])
def test_nan_and_infinity_do_not_leak(reduce):
    """Of adaptive windows, which are gathered: an element reaches the windows that contain it only."""
    x = np.random.default_rng(0).standard_normal((1, 1, 10, 11)).astype(np.float32)
    run = runner(export_pool((1, 1, "h", "w"), output_size=(4, 3), reduce=reduce))
    for value in (np.nan, np.inf):
        x[0, 0, 4, 5] = value
        want, (got,) = ndpool.adaptive_pool(x, (4, 3), reduce=reduce), run(x)
        clean = np.isfinite(want)
        assert clean.sum() in (9, 10, 11)
        np.testing.assert_allclose(got[clean], want[clean], rtol=1e-5)
        assert reduce == "max" or not np.isfinite(got[~clean]).any()


# What a pooling needs at least; the documentation has the same table.
OPSETS = [
    ({"window": (2, 2)}, 8),
    ({"window": (2, 2), "reduce": "avg", "padding": 1}, 8),
    ({"window": (2, 2), "reduce": "sum"}, 8),
    ({"window": (2, 2), "return_indices": True}, 10),
    ({"window": (2, 2), "dilation": 2}, 10),
    ({"window": (2, 2), "ceil_mode": True}, 11),
    ({"window": (2, 2), "padding": ((1, 0), (0, 0))}, 11),
    ({"window": (2, 2), "padding": ((1, 0), (0, 0)), "reduce": "avg"}, 11),
    ({"window": (2, 2), "padding": ((1, 0), (0, 0)), "reduce": "avg", "count_include_pad": False}, 13),
    ({"window": (2, 2), "ceil_mode": True, "reduce": "sum"}, 11),
    ({"window": (2, 2), "ceil_mode": True, "reduce": "avg"}, 13),
    ({"window": (2, 2), "dilation": 2, "reduce": "avg"}, 10),
    ({"window": (2, 2), "dilation": 2, "padding": 1, "reduce": "avg"}, 11),
    ({"window": (2, 2), "dtype": "float16"}, 13),
    ({"output_size": (1, 1), "reduce": "avg"}, 13),
    ({"output_size": (3, 2), "return_indices": True}, 13),
    ({"output_size": (3, 2), "reduce": "avg"}, 13),
]


@pytest.mark.parametrize(("given", "least"), OPSETS, ids=str)
def test_the_least_opset(given, least):
    """onnx/tutorials#156: the model is valid from its least opset on, and an older one raises."""
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 9)).astype(given.get("dtype", "float32"))
    wanted = runner(export_pool((2, 3, "h", "w"), **given))(x)
    for opset in {least, 13, 17, 18, 21}:
        model = export_pool((2, 3, "h", "w"), **given, opset=opset)
        assert model.opset_import[0].version == opset
        assert_equal(runner(model)(x), wanted)
    if least > 8:
        message = rf"export_pool: this pooling needs ONNX opset \d+ or newer; got opset={least - 1}"
        with pytest.raises(ValueError, match=message):
            export_pool((2, 3, "h", "w"), **given, opset=least - 1)


def test_any_axes_and_ranks():
    for shape, axes in (
        ((6, 8), (0, 1)),
        ((2, 3, 4, 6, 8), (1, 3)),
        ((7, 3), (0,)),
        ((3, 4, 2, 5, 3, 6), (5,)),
    ):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        for given in ({"window": (2,) * len(axes)}, {"output_size": (3,) * len(axes)}):
            model = export_pool(shape, **given, axes=axes, return_indices=True)
            pool = ndpool.pool if "window" in given else ndpool.adaptive_pool
            assert_equal(runner(model)(x), pool(x, *given.values(), axes=axes, return_indices=True))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        # Padding as wide as the window, which AveragePool of ONNX Runtime refuses.
        *({"window": 2, "stride": 3, "padding": ((0, 2),), "reduce": r} for r in ("sum", "avg", "lp", "max")),
        # Padding for windows that begin beyond the input, which ceil_mode leaves out.
        *(
            {"window": 2, "stride": 3, "padding": ((1, pad),), "reduce": reduce, "ceil_mode": True}
            for reduce in ("max", "avg", "sum")
            for pad in (2, 3)
        ),
        # Windows that step over the whole input.
        {"window": 2, "stride": 1, "padding": 1, "dilation": 2, "count_include_pad": False, "reduce": "avg"},
    ],
    ids=str,
)
def test_padding_as_wide_as_the_window(given, known):
    """What only the general functions allow."""
    ran = 0
    for size in range(1, 9):
        x = np.random.default_rng(size).standard_normal((2, 3, size)).astype(np.float32)
        how = {**given, "axes": (2,)}
        try:
            want = ndpool.pool(x, **how)
        except ValueError:
            continue
        ran += 1
        assert_equal(runner(export_pool(x.shape if known else (2, 3, "w"), **how))(x), (want,))
    assert ran > 1


def test_a_model_is_written(tmp_path):
    model = export_pool(("n", 1, "h", "w"), (2, 2), tmp_path / "pool.onnx")
    assert onnx.load(tmp_path / "pool.onnx") == model
    dims = [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    assert dims == ["n", 1, "h", "w"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ValueError, "one of window and output_size must be given; got window=None, output_size=None"),
        ({"window": 2, "output_size": 2}, ValueError, "one of window and output_size must be given"),
        *(
            ({"output_size": (2, 2), "reduce": "avg", **more}, ValueError, "stride, padding, dilation")
            for more in ({"stride": 2}, {"divisor_override": 3}, {"count_include_pad": False})
        ),
        ({"window": (0, 2)}, ValueError, "window must be from 1 to"),
        ({"window": (2, 2), "padding": -1}, ValueError, "padding must be from 0 to"),
        ({"window": (2, 2), "reduce": "median"}, ValueError, "reduce must be one of"),
        ({"window": (2, 2), "reduce": "avg", "return_indices": True}, ValueError, "return_indices is for"),
        ({"window": (2, 2), "divisor_override": 3}, ValueError, "divisor_override is for averages"),
        ({"window": (2, 2), "dtype": "int64"}, TypeError, "dtype must be the name of a dtype"),
        ({"window": (2, 2), "dtype": ["float32"]}, TypeError, "dtype must be the name of a dtype"),
        ({"window": (2, 2), "opset": 7}, ValueError, "opset must be from 8 to"),
        ({"window": (2, 2), "opset": 10**6}, ValueError, "opset must be from 8 to"),
        ({"window": (2, 2), "padding": "same", "stride": 2}, ValueError, "padding='same' with a stride"),
        ({"output_size": (0, 2)}, ValueError, "output_size is exported from 1; got output_size=(0, 2)"),
        ({"window": (2000, 2), "reduce": "avg", "dilation": 2}, ValueError, "windows of float64, of"),
        ({"window": (2, 2, 2, 2), "shape": (9,) * 4}, ValueError, "max and min pooling is exported along"),
        ({"window": (9, 9), "shape": (1, 1, 4, 4)}, ValueError, "the window must fit into the padded input"),
        ({"window": (2, 2), "shape": 4}, TypeError, "shape must be a sequence of sizes"),
        ({"window": (2, 2), "shape": (1, -2, 3)}, ValueError, "shape must be from 0"),
    ],
)  # fmt: skip
def test_errors(given, error, message):
    given = {"shape": (1, 3, "h", "w"), **given}
    with pytest.raises(error, match=re.escape(f"export_pool: {message}")):
        export_pool(**given)


def test_imports():
    """Neither `import ndpool` nor `ndpool.onnx` imports onnx; `export_pool` needs no PyTorch."""
    code = """
import sys, ndpool
assert "onnx" not in sys.modules
ndpool.onnx
assert "onnx" not in sys.modules
ndpool.onnx.export_pool((1, 1, 8), (2,))
print("torch" in sys.modules, "onnxruntime" in sys.modules)
"""
    assert run_python(code).split() == ["False", "False"]
