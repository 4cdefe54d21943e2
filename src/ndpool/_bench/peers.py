"""The other libraries in the benchmark, one small class each.

Each gets its data in its fastest layout. A library is imported when its class is instantiated: ndpool itself
needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndpool._bench.case import Case, Window
from ndpool._bench.contestants import Answer, Call, Contestant

_FLOATS = ("float32", "float64", "float16", "bfloat16")


class PyTorch(Contestant):
    """PyTorch on contiguous tensors; the reference for all answers."""

    name = "PyTorch"
    packages = ("torch",)

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.torch = import_module("torch")
        self.torch.set_num_threads(threads)

    def supports(self, case: Case) -> bool:
        """Everything except average pooling of integers."""
        return case.reduction == "max" or case.dtype in _FLOATS

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """The function of the same name; backward through autograd."""
        function, given = self.function(case)
        tensor = self.tensor(x)
        if case.mode == "backward":
            with self.torch.enable_grad():
                leaf = tensor.requires_grad_()
                y, g = function(leaf, **given), self.tensor(grad)
            return lambda: self.torch.autograd.grad(y, leaf, g, retain_graph=True)[0]
        if case.mode != "values":
            given["return_indices"] = True
        return lambda: function(tensor, **given)

    def function(self, case: Case) -> tuple[Any, dict[str, Any]]:
        """The function to call and its arguments."""
        return getattr(self.torch.nn.functional, case.function), dict(case.arguments)

    def tensor(self, a: NDArray[Any]) -> Any:
        """A contiguous copy as a tensor; bfloat16 is transferred as its bits."""
        if a.dtype.name == "bfloat16":
            return self.torch.from_numpy(a.view(np.int16).copy(order="C")).view(self.torch.bfloat16)
        return self.torch.from_numpy(a.copy(order="C"))

    def answer(self, case: Case, raw: Any) -> Answer:
        """The result as NumPy arrays."""
        return tuple(self.array(tensor) for tensor in (raw if isinstance(raw, tuple) else (raw,)))

    def array(self, tensor: Any) -> NDArray[Any]:
        """A NumPy view of a tensor."""
        tensor = tensor.detach()
        if tensor.dtype != self.torch.bfloat16:
            return np.asarray(tensor.numpy())
        bits = tensor.view(self.torch.int16).numpy()
        return np.asarray(bits.view(import_module("ml_dtypes").bfloat16))


class PyTorchChannelsLast(PyTorch):
    """PyTorch on channels-last tensors."""

    name = "PyTorch NHWC"

    def supports(self, case: Case) -> bool:
        """2-D and 3-D pooling of floats; with one channel the layouts are the same."""
        return case.dtype in _FLOATS and len(case.axes) in (2, 3) and case.shape[1] > 1

    def tensor(self, a: NDArray[Any]) -> Any:
        """A channels-last tensor."""
        formats = {4: self.torch.channels_last, 5: self.torch.channels_last_3d}
        return super().tensor(a).contiguous(memory_format=formats[a.ndim])


class OneDNN(PyTorch):
    """oneDNN through PyTorch's MKL-DNN tensors."""

    name = "oneDNN"

    def supports(self, case: Case) -> bool:
        """2-D and 3-D sliding windows, without indices."""
        return (
            case.dtype == "float32"
            and len(case.axes) in (2, 3)
            and case.window is not None
            and case.mode in ("values", "backward")
        )

    def function(self, case: Case) -> tuple[Any, dict[str, Any]]:
        """The sliding-window function, for adaptive cases too."""
        window = case.window
        assert window is not None
        given = {"kernel_size": window.kernel, "stride": window.stride, "padding": window.before}
        given["ceil_mode"] = case.arguments.get("ceil_mode", False)
        return getattr(self.torch.nn.functional, f"{case.reduction}_pool{len(case.axes)}d"), given

    def tensor(self, a: NDArray[Any]) -> Any:
        """An opaque MKL-DNN tensor."""
        return super().tensor(a).to_mkldnn()

    def array(self, tensor: Any) -> NDArray[Any]:
        """A NumPy view of the tensor, converted to dense."""
        return super().array(tensor.detach().to_dense())


class OnnxRuntime(Contestant):
    """ONNX Runtime with a single-node graph."""

    name = "ONNX Runtime"
    packages = ("onnxruntime", "onnx")

    def supports(self, case: Case) -> bool:
        """Sliding windows; average pooling in float32 only, indices for sliding max pooling."""
        known = ("float32", "float64", "int8", "uint8") if case.reduction == "max" else ("float32",)
        return (
            case.dtype in known
            and case.window is not None
            and case.mode != "backward"
            and not (case.is_global and (case.mode != "values" or case.dtype != "float32"))
        )

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """A session with the requested number of threads."""
        onnx: Any = import_module("onnx")
        onnxruntime: Any = import_module("onnxruntime")
        window = case.window
        assert window is not None
        outputs = ["y"] if case.mode == "values" else ["y", "i"]
        word = "Max" if case.reduction == "max" else "Average"
        given: dict[str, Any] = {}
        if not case.is_global:
            given = {"kernel_shape": window.kernel, "strides": window.stride}
            given["pads"] = window.before + window.after
            if case.reduction == "avg":
                given["count_include_pad"] = 1
        node = onnx.helper.make_node(f"Global{word}Pool" if case.is_global else f"{word}Pool", ["x"], outputs)
        node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in given.items())
        kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
        kinds = {"y": kind, "i": onnx.TensorProto.INT64}
        graph = onnx.helper.make_graph(
            [node],
            "pool",
            [onnx.helper.make_tensor_value_info("x", kind, case.shape)],
            [onnx.helper.make_tensor_value_info(name, kinds[name], case.out_shape) for name in outputs],
        )
        opset = [onnx.helper.make_opsetid("", 13)]
        model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feed = {"x": x.copy(order="C")}
        return lambda: session.run(None, feed)

    def answer(self, case: Case, raw: Any) -> Answer:
        """The values, and indices in the plane; ONNX's count through the whole array."""
        return (raw[0], *(i % np.prod(case.sizes) for i in raw[1:]))


class Jax(Contestant):
    """JAX, compiled, channels first; its thread pool follows the CPU affinity of the process."""

    name = "JAX"
    packages = ("jax",)
    channels_last = False

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        import_module("jax").config.update("jax_enable_x64", True)

    def supports(self, case: Case) -> bool:
        """Sliding windows without indices; average pooling where it accumulates in the result dtype."""
        known = _FLOATS + ("int8", "uint8") if case.reduction == "max" else ("float32", "float64")
        return case.dtype in known and case.window is not None and case.mode in ("values", "backward")

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """`reduce_window`, or a plain reduction for global pooling."""
        jax: Any = import_module("jax")
        pool = self.pool(case)
        inputs = [jax.numpy.asarray(np.ascontiguousarray(self.moved(a))) for a in (x, grad)]
        if case.mode == "values":
            run = jax.jit(pool)
            return lambda: run(inputs[0]).block_until_ready()
        back = jax.jit(lambda a, g: jax.vjp(pool, a)[1](g)[0])
        return lambda: back(*inputs).block_until_ready()

    def pool(self, case: Case) -> Callable[[Any], Any]:
        """The forward pass as a function of one array."""
        lax: Any = import_module("jax").lax
        window, axes = case.window, case.axes
        assert window is not None
        at = tuple(a - 1 for a in axes) if self.channels_last else axes
        maximum = case.reduction == "max"
        if case.is_global:
            return lambda a: (a.max if maximum else a.mean)(axis=at, keepdims=True)

        def every_axis(values: tuple[Any, ...], other: Any) -> tuple[Any, ...]:
            return (other, *values, other) if self.channels_last else (other, other, *values)

        pads = every_axis(tuple(zip(window.before, window.after, strict=True)), (0, 0))
        shape = (every_axis(window.kernel, 1), every_axis(window.stride, 1), pads)
        taps = float(np.prod(window.kernel))

        def run(a: Any) -> Any:
            if not maximum:
                return lax.reduce_window(a, a.dtype.type(0), lax.add, *shape) / a.dtype.type(taps)
            floating = case.dtype in _FLOATS
            least = a.dtype.type(-np.inf if floating else np.iinfo(case.dtype).min)
            return lax.reduce_window(a, least, lax.max, *shape)

        return run

    def moved(self, a: NDArray[Any]) -> NDArray[Any]:
        """The array in this class's layout."""
        return np.moveaxis(a, 1, -1) if self.channels_last else a

    def answer(self, case: Case, raw: Any) -> Answer:
        """The result with axis 1 for the channels."""
        result = np.asarray(raw)
        return (np.moveaxis(result, -1, 1) if self.channels_last else result,)


class JaxChannelsLast(Jax):
    """JAX, compiled, channels last."""

    name = "JAX NHWC"
    channels_last = True

    def supports(self, case: Case) -> bool:
        """The cases of channels first with more than one channel; with one the layouts are the same."""
        return super().supports(case) and case.shape[1] > 1


class OpenCV(Contestant):
    """OpenCV: dilation and blur for stride 1, area resampling for averages of disjoint windows."""

    name = "OpenCV"
    packages = ("cv2",)

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        import_module("cv2").setNumThreads(threads)

    def supports(self, case: Case) -> bool:
        """2-D pooling; averages of floats only, because it rounds integers."""
        known = ("float32", "uint8") if case.reduction == "max" else ("float32",)
        fits = case.is_same or (case.tiles and case.reduction == "avg" and not case.is_global)
        return case.dtype in known and len(case.axes) == 2 and case.mode == "values" and fits

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """One call per image, with interleaved channels where that is faster."""
        cv2: Any = import_module("cv2")
        kernel, interleaved = self._window(case).kernel, self._interleaved(case)
        images = np.moveaxis(x, 1, -1) if interleaved else x.reshape(-1, *case.sizes)
        parts = [np.ascontiguousarray(image) for image in images]
        if case.reduction == "max":
            shape = np.ones(kernel, np.uint8)
            return lambda: [cv2.dilate(part, shape) for part in parts]
        if case.is_same:
            border = cv2.BORDER_CONSTANT
            return lambda: [cv2.blur(part, kernel[::-1], borderType=border) for part in parts]
        size = case.plan.out[::-1]
        return lambda: [cv2.resize(part, size, interpolation=cv2.INTER_AREA) for part in parts]

    def answer(self, case: Case, raw: Any) -> Answer:
        """The images stacked into one array."""
        stack = np.stack(raw)
        result = np.moveaxis(stack, -1, 1) if self._interleaved(case) else stack.reshape(case.out_shape)
        return (result,)

    @staticmethod
    def _interleaved(case: Case) -> bool:
        return case.reduction == "max" and 1 < case.shape[1] <= 64

    @staticmethod
    def _window(case: Case) -> Window:
        assert case.window is not None
        return case.window


class SciPy(Contestant):
    """SciPy's filters, for stride 1."""

    name = "SciPy"
    packages = ("scipy",)

    def supports(self, case: Case) -> bool:
        """Stride 1 with "same" padding; averages of floats only."""
        known = ("float32", "float64") + (("uint8", "int8") if case.reduction == "max" else ())
        return case.dtype in known and case.is_same and case.mode == "values"

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """A filter over the pooled axes."""
        ndimage: Any = import_module("scipy.ndimage")
        data, window = x.copy(order="C"), case.window
        assert window is not None
        size = (1, 1, *window.kernel)
        if case.reduction == "avg":
            return lambda: ndimage.uniform_filter(data, size, mode="constant")
        least = -np.inf if data.dtype.kind == "f" else np.iinfo(data.dtype).min
        return lambda: ndimage.maximum_filter(data, size, mode="constant", cval=least)


class NumPy(Contestant):
    """NumPy: reshape into blocks and reduce them; channels last, its fastest layout."""

    name = "NumPy"
    packages = ("numpy",)

    def supports(self, case: Case) -> bool:
        """Disjoint windows that tile the plane; averages of floats only."""
        known = ("float32", "float64") + (("uint8", "int8", "float16") if case.reduction == "max" else ())
        return case.dtype in known and case.tiles and case.mode == "values"

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """A reshape and a reduction over every second axis."""
        window = case.window
        assert window is not None
        data, blocks = np.ascontiguousarray(np.moveaxis(x, 1, -1)), [case.shape[0]]
        for out, k in zip(case.plan.out, window.kernel, strict=True):
            blocks += [out, k]
        view = data.reshape(*blocks, case.shape[1])
        axes = tuple(range(2, 2 * len(case.axes) + 1, 2))
        return lambda: (view.max if case.reduction == "max" else view.mean)(axis=axes)

    def answer(self, case: Case, raw: Any) -> Answer:
        """The result with axis 1 for the channels."""
        return (np.moveaxis(raw, -1, 1),)


class ScikitImage(NumPy):
    """scikit-image's block reduction."""

    name = "scikit-image"
    packages = ("skimage",)

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """`block_reduce` with channels last."""
        measure: Any = import_module("skimage.measure")
        data, window = np.ascontiguousarray(np.moveaxis(x, 1, -1)), case.window
        assert window is not None
        block, reduce = (1, *window.kernel, 1), np.max if case.reduction == "max" else np.mean
        return lambda: measure.block_reduce(data, block, reduce)


PEERS: tuple[type[Contestant], ...] = (
    PyTorch,
    PyTorchChannelsLast,
    OneDNN,
    OnnxRuntime,
    Jax,
    JaxChannelsLast,
    OpenCV,
    SciPy,
    ScikitImage,
    NumPy,
)


def reference(torch: Contestant, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Answer:
    """PyTorch's answer for a dtype that it does not support: computed in float64 and truncated."""
    wide = [a.astype(np.float64) for a in (x, grad)]
    return tuple(a.astype(x.dtype) for a in torch.answer(case, torch.prepare(case, *wide)()))
