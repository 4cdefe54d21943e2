"""ONNX nodes as a `_lowering.Graph`, for `onnx.export_pool`.

A `Value` is an output of a node, with arithmetic operators that add nodes. What depends on constants alone is
computed with NumPy and stored as a constant. Needs the package onnx, which is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from ndpool._lowering import OPSETS, Window

_END = 2**63 - 1


def tensor_type(dtype: str) -> int:
    """ONNX's number of a dtype."""
    return int(
        TensorProto.DataType.Value({"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper()))
    )


class Value:
    """A tensor in the graph; `constant` is its content where that is known."""

    def __init__(self, graph: Nodes, name: str, dtype: str, constant: Any = None) -> None:
        self.graph, self.name, self.dtype, self.constant = graph, name, dtype, constant
        self.shape: tuple[Any, ...] = ()  # of a graph's input

    def _binary(self, operator: str, other: Any, fold: Callable[..., Any], dtype: str = "") -> Value:
        return self.graph.elementwise(operator, (self, other), fold, dtype or self.dtype)

    def __add__(self, other: Any) -> Value:
        return self if type(other) is int and other == 0 else self._binary("Add", other, np.add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Value:
        return self if type(other) is int and other == 0 else self._binary("Sub", other, np.subtract)

    def __rsub__(self, other: Any) -> Value:
        return self.graph.elementwise("Sub", (other, self), np.subtract, self.dtype)

    def __rtruediv__(self, other: Any) -> Value:
        return self.graph.elementwise("Div", (other, self), np.divide, self.dtype)

    def __mul__(self, other: Any) -> Value:
        return self if type(other) is int and other == 1 else self._binary("Mul", other, np.multiply)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Value:
        # Div truncates: the same for sizes and indices, which are not negative.
        return self if type(other) is int and other == 1 else self._binary("Div", other, np.floor_divide)

    def __truediv__(self, other: Any) -> Value:
        return self._binary("Div", other, np.divide)

    def __pow__(self, other: float) -> Value:
        return self._binary("Pow", other, np.power)

    def __lt__(self, other: Any) -> Value:
        return self._binary("Less", other, np.less, "bool")

    def __neg__(self) -> Value:
        return self.graph.elementwise("Neg", (self,), np.negative, self.dtype)

    def __abs__(self) -> Value:
        return self.graph.elementwise("Abs", (self,), np.abs, self.dtype)


class Nodes:
    """A graph under construction: see `_lowering.Graph` for what its methods mean."""

    def __init__(self, fn: str, opset: int) -> None:
        self.fn, self.opset = fn, opset
        self.nodes: list[NodeProto] = []
        self.constants: dict[tuple[Any, ...], TensorProto] = {}
        self.sizes: dict[int, Value] = {}

    def require(self, operator: str) -> None:
        if self.opset < OPSETS[operator]:
            raise ValueError(
                f"{self.fn}: this pooling needs ONNX opset {OPSETS[operator]} or newer; "
                f"got opset={self.opset} (limit {OPSETS[operator]})"
            )

    def name(self, operator: str) -> str:
        return f"{operator.lower()}_{len(self.nodes)}"

    def input(self, name: str, dtype: str, shape: tuple[Any, ...]) -> Value:
        """The graph's input."""
        value = Value(self, name, dtype)
        value.shape = shape
        return value

    def constant(self, array: Any) -> Value:
        array = np.asarray(array)
        return Value(self, "", str(array.dtype), array)

    def node(self, operator: str, inputs: Sequence[Any], dtypes: Sequence[str], **attributes: Any) -> Any:
        """Add a node; one value, or several if several dtypes are given."""
        base = self.name(operator)
        names = [base if i == 0 else f"{base}_{i}" for i in range(len(dtypes))]
        node = helper.make_node(operator, [self._name(x) for x in inputs], names, name=base, **attributes)
        self.nodes.append(node)
        values = [Value(self, name, dtype) for name, dtype in zip(names, dtypes, strict=True)]
        return values[0] if len(values) == 1 else values

    def _name(self, x: Any) -> str:
        """The name of a node's input; constants become initializers, equal ones once."""
        if not isinstance(x, Value):
            x = self.constant(np.asarray(x, np.int64))
        if x.constant is None:
            return str(x.name)
        key = (x.dtype, x.constant.shape, x.constant.tobytes())
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(x.constant, f"constant_{len(self.constants)}")
        return str(self.constants[key].name)

    def elementwise(
        self, operator: str, operands: Sequence[Any], fold: Callable[..., Any], dtype: str
    ) -> Value:
        own = next(x.dtype for x in operands if isinstance(x, Value))
        values = [x if isinstance(x, Value) else self.constant(np.asarray(x, own)) for x in operands]
        if all(x.constant is not None for x in values):
            return self.constant(fold(*(x.constant for x in values)).astype(dtype))
        return self.node(operator, values, [dtype])  # type: ignore[no-any-return]

    def rename(self, x: Value, name: str) -> None:
        """Make a value an output of the graph with this name."""
        if not any(x.name in node.output for node in self.nodes):  # the input itself
            x = self.node("Identity", [x], [x.dtype])
        for node in self.nodes:
            for i, output in enumerate(node.output):
                if output == x.name:
                    node.output[i] = name
            for i, given in enumerate(node.input):
                if given == x.name:
                    node.input[i] = name

    def used(self, outputs: Sequence[str]) -> list[NodeProto]:
        """The nodes that these outputs need; forget the others."""
        needed, kept = set(outputs), []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.output):
                needed.update(node.input)
                kept.append(node)
        self.nodes = kept[::-1]
        return self.nodes

    def initializers(self) -> list[TensorProto]:
        """The constants that nodes read."""
        needed = {name for node in self.nodes for name in node.input}
        return [constant for constant in self.constants.values() if constant.name in needed]

    def size(self, x: Value, axis: int) -> Any:
        """The size of an axis of the graph's input."""
        if isinstance(x.shape[axis], int):
            return x.shape[axis]
        if axis not in self.sizes:
            shape = self.node("Shape", [x], ["int64"])
            self.sizes[axis] = self.node("Gather", [shape, self.constant(np.int64(axis))], ["int64"], axis=0)
        return self.sizes[axis]

    def _vector(self, entries: Sequence[Any]) -> Any:
        """One int64 vector from numbers and scalar values."""
        if not any(isinstance(entry, Value) for entry in entries):
            return self.constant(np.asarray(entries, np.int64))
        parts = [self.unsqueeze(e, 0) if isinstance(e, Value) else [e] for e in entries]
        return self.node("Concat", parts, ["int64"], axis=0)

    def dtype(self, x: Value) -> str:
        return x.dtype

    def cast(self, x: Value, dtype: str) -> Value:
        if x.constant is not None:
            return self.constant(x.constant.astype(dtype))
        return self.node("Cast", [x], [dtype], to=tensor_type(dtype))  # type: ignore[no-any-return]

    def arange(self, n: Any) -> Value:
        if not isinstance(n, Value):
            return self.constant(np.arange(n, dtype=np.int64))
        zero, one = self.constant(np.int64(0)), self.constant(np.int64(1))
        return self.node("Range", [zero, n, one], ["int64"])  # type: ignore[no-any-return]

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        return self.node("Transpose", [x], [x.dtype], perm=list(order))  # type: ignore[no-any-return]

    def unsqueeze(self, x: Value, axis: int) -> Value:
        if x.constant is not None:
            return self.constant(np.expand_dims(x.constant, axis))
        return self.node("Unsqueeze", [x, [axis]], [x.dtype])  # type: ignore[no-any-return]

    def squeeze(self, x: Value, axis: int) -> Value:
        return self.node("Squeeze", [x, [axis]], [x.dtype])  # type: ignore[no-any-return]

    def _shape(self, x: Value, start: int, stop: int) -> Any:
        return self.node("Slice", [self.node("Shape", [x], ["int64"]), [start], [stop]], ["int64"])

    def _reshape(self, x: Value, parts: Sequence[Any]) -> Value:
        shape = self.node("Concat", parts, ["int64"], axis=0)
        return self.node("Reshape", [x, shape], [x.dtype])  # type: ignore[no-any-return]

    def merge(self, x: Value, n_axes: int) -> Value:
        self.require("slice")
        return self._reshape(x, [[-1], self._shape(x, n_axes, _END)])

    def split(self, x: Value, like: Value, n_axes: int) -> Value:
        return self._reshape(x, [self._shape(like, 0, n_axes), self._shape(x, 1, _END)])

    def pad(self, x: Value, pairs: Sequence[tuple[Any, Any]], value: float) -> Value:
        widths = self._vector([0, 0, *(b for b, _ in pairs), 0, 0, *(a for _, a in pairs)])
        filled = self.constant(np.asarray(value, x.dtype))
        return self.node("Pad", [x, widths, filled], [x.dtype])  # type: ignore[no-any-return]

    def slice(self, x: Value, axis: int, start: int, stop: Any, step: int = 1) -> Value:
        end = _END if stop is None else stop
        return self.node("Slice", [x, [start], [end], [axis], [step]], [x.dtype])  # type: ignore[no-any-return]

    def take(self, x: Value, axis: int, table: Value) -> Value:
        return self.node("Gather", [x, table], [x.dtype], axis=axis)  # type: ignore[no-any-return]

    def pick(self, x: Value, axis: int, index: Value) -> Value:
        picked = self.node("GatherElements", [x, self.unsqueeze(index, axis)], [x.dtype], axis=axis)
        return self.squeeze(picked, axis)

    def where(self, condition: Value, x: Value, y: float) -> Value:
        other = self.constant(np.asarray(y, x.dtype))
        return self.node("Where", [condition, x, other], [x.dtype])  # type: ignore[no-any-return]

    def minimum(self, x: Value, y: Value | int) -> Value:
        return self.elementwise("Min", (x, y), np.minimum, x.dtype)

    def reduce(self, kind: str, x: Value, axes: Sequence[int], keep: bool) -> Value:
        operator, where = f"Reduce{kind.capitalize()}", list(axes)
        if self.opset >= 18 or kind == "sum":
            return self.node(operator, [x, where], [x.dtype], keepdims=int(keep))  # type: ignore[no-any-return]
        return self.node(operator, [x], [x.dtype], axes=where, keepdims=int(keep))  # type: ignore[no-any-return]

    def arg(self, kind: str, x: Value, axis: int) -> Value:
        operator = f"Arg{kind.capitalize()}"
        return self.node(operator, [x], ["int64"], axis=axis, keepdims=0)  # type: ignore[no-any-return]

    def max_pool(self, x: Value, windows: Sequence[Window]) -> Any:
        return self.node("MaxPool", [x], [x.dtype], **_attributes(windows))

    def max_pool_indices(self, x: Value, windows: Sequence[Window], sizes: Sequence[Any]) -> Any:
        y, found = self.node("MaxPool", [x], [x.dtype, "int64"], **_attributes(windows))
        plane: Any = 1
        for size in sizes:
            plane = size * plane
        # ONNX counts through batch and channels, too.
        number = plane if isinstance(plane, Value) else self.constant(np.int64(plane))
        return y, self.node("Mod", [found, number], ["int64"])

    def avg_pool(self, x: Value, windows: Sequence[Window], include: bool) -> Value:
        return self.node(  # type: ignore[no-any-return]
            "AveragePool", [x], [x.dtype], **_attributes(windows), count_include_pad=int(include)
        )


def _attributes(windows: Sequence[Window]) -> dict[str, list[int]]:
    kernel, stride, before, after, dilation = map(list, zip(*windows, strict=True))
    found = {"kernel_shape": kernel, "strides": stride}
    if any(before):
        found["pads"] = before + after
    if any(d > 1 for d in dilation):
        found["dilations"] = dilation
    return found
