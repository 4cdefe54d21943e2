"""ONNX's own tests of its pooling operators, reproduced by the general functions on NumPy arrays."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import pytest

import ndpool

pytest.importorskip("onnx", reason="its tests come with the package")
# operator -> the module of its tests
MODULES = {
    "MaxPool": "maxpool",
    "AveragePool": "averagepool",
    "LpPool": "lppool",
    "GlobalMaxPool": "globalmaxpool",
    "GlobalAveragePool": "globalaveragepool",
}
PADDING = {b"SAME_UPPER": "same", b"SAME_LOWER": "same_lower", b"VALID": "valid"}


class Case(NamedTuple):
    name: str
    node: Any
    inputs: list[Any]
    outputs: list[Any]


def collected(operator: str) -> list[Case]:
    """The cases of an operator, in memory: its test module hands each of them to `expect`."""
    module = importlib.import_module(f"onnx.backend.test.case.node.{MODULES[operator]}")
    found: list[Case] = []

    def expect(node, inputs, outputs, name, **_):
        found.append(Case(name, node, inputs, outputs))

    original, module.expect = module.expect, expect
    try:
        tests = getattr(module, operator)
        for name in dir(tests):
            if name.startswith("export"):
                getattr(tests, name)()
    finally:
        module.expect = original
    return found


def attributes(node: Any) -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}


def pooled(node: Any, x: Any, indices: bool) -> tuple[Any, ...]:
    """The node's results, by ndpool."""
    given, reduce = attributes(node), {"Max": "max", "Average": "avg", "Lp": "lp"}
    n = x.ndim - 2
    if node.op_type.startswith("Global"):
        kind = node.op_type.removeprefix("Global").removesuffix("Pool")
        return (ndpool.adaptive_pool(x, (1,) * n, reduce=reduce[kind], norm_type=given.get("p", 2)),)
    kind = node.op_type.removesuffix("Pool")
    pads = given.get("pads", [0] * (2 * n))
    result = ndpool.pool(
        x,
        given["kernel_shape"],
        reduce=reduce[kind],
        stride=given.get("strides", 1),
        padding=PADDING.get(given.get("auto_pad"), list(zip(pads[:n], pads[n:], strict=True))),
        dilation=given.get("dilations", 1),
        ceil_mode=bool(given.get("ceil_mode", 0)),
        count_include_pad=bool(given.get("count_include_pad", 0)),
        norm_type=given.get("p", 2),
        return_indices=indices,
    )
    if indices and given.get("storage_order"):
        rows, columns = np.divmod(result[1], x.shape[-1])
        return result[0], columns * x.shape[-2] + rows
    return result if indices else (result,)


@pytest.mark.parametrize("operator", MODULES)
def test_node_tests_are_reproduced(operator):
    """LpPool is the norm of |x|, as the general function computes it."""
    cases = collected(operator)
    assert len(cases) >= (2 if operator.startswith("Global") else 8)
    for case in cases:
        got = pooled(case.node, case.inputs[0], len(case.outputs) == 2)
        for value, want in zip(got, case.outputs, strict=True):
            assert (value.shape, value.dtype) == (want.shape, want.dtype), case.name
            # The expected values of this case are written with four digits.
            rtol = 1e-3 if case.name.endswith("last_window_starts_on_pad") else 1e-5
            np.testing.assert_allclose(value, want, rtol=rtol, atol=1e-6, err_msg=case.name)


def test_global_lp_pool():
    """GlobalLpPool has no test of its own; ONNX's reference defines it as the norm over all spatial axes."""
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    x = np.random.default_rng(0).standard_normal((2, 3, 5, 4)).astype(np.float32)
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])
    node = helper.make_node("ReduceL2", ["x", "axes"], ["y"], keepdims=1)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    graph = helper.make_graph([node], "norm", values[:1], values[1:], [axes])
    (want,) = ReferenceEvaluator(helper.make_model(graph)).run(None, {"x": x})
    node = helper.make_node("GlobalLpPool", ["x"], ["y"])
    np.testing.assert_allclose(pooled(node, x, False)[0], want, rtol=1e-5)
