"""The peers of `pool` on images and other arrays: OpenCV, SciPy and NumPy, one small class each.

All get the array as it is. A peer takes part where it computes the same windows; filters compute every window
of stride 1, and a view of their result skips those between strides. `expected` is the reference.
"""

from __future__ import annotations

from importlib import import_module
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndpool._bench.case import Case, Window
from ndpool._bench.contestants import Answer, Call, Contestant
from ndpool._bench.peers import NumPy, OpenCV, SciPy


class OpenCVImages(OpenCV):
    """OpenCV on images with 1, 3 or 4 channels: dilation, blur, and area resampling of disjoint averages."""

    general = True

    def tolerance(self, case: Case) -> float:
        """Averages of integers are rounded to the nearest, not truncated."""
        return 1.0 if _integer_average(case) else super().tolerance(case)

    def supports(self, case: Case) -> bool:
        """Images in its dtypes; their channels, if any, are the last axis."""
        image = case.axes == (0, 1) and (len(case.shape) == 2 or case.shape[2:] in ((3,), (4,)))
        return image and case.dtype in ("uint8", "uint16", "float32")

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """One call on the image, and a view of its result."""
        cv2: Any = import_module("cv2")
        window, kept = _window(case), _kept(case)
        kernel, anchor = window.kernel[::-1], window.before[::-1]  # (width, height)
        if case.reduction == "max":
            ones = np.ones(window.kernel, np.uint8)
            return lambda: cv2.dilate(x, ones, anchor=anchor)[kept]
        if not case.disjoint:
            border = cv2.BORDER_CONSTANT
            return lambda: cv2.blur(x, kernel, anchor=anchor, borderType=border)[kept]
        part, size = x[_covered(case)], case.plan.out[::-1]
        return lambda: cv2.resize(part, size, interpolation=cv2.INTER_AREA)

    def answer(self, case: Case, raw: Any) -> Answer:
        """The result itself."""
        return (np.asarray(raw),)


class SciPyArrays(SciPy):
    """SciPy's filters along any axes."""

    general = True

    def tolerance(self, case: Case) -> float:
        """Averages of integers are truncated after every axis; running sums collect errors along a row."""
        if _integer_average(case):
            return 1.0
        drift = 2.0**-49 * sqrt(max(case.sizes)) if case.reduction == "avg" else 0.0
        return super().tolerance(case) + drift

    def supports(self, case: Case) -> bool:
        """Overlapping windows; averages of integers along at most two axes, else it truncates too often."""
        return not case.disjoint and not (_integer_average(case) and len(case.axes) > 2)

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """A filter over the pooled axes, and a view of its result."""
        ndimage: Any = import_module("scipy.ndimage")
        window, kept = _window(case), _kept(case)
        size, origin = [1] * x.ndim, [0] * x.ndim
        for axis, k, before in zip(case.axes, window.kernel, window.before, strict=True):
            size[axis], origin[axis] = k, before - k // 2
        if case.reduction == "avg":
            return lambda: ndimage.uniform_filter(x, size, mode="constant", origin=origin)[kept]
        least = _least(x.dtype)
        return lambda: ndimage.maximum_filter(x, size, mode="constant", cval=least, origin=origin)[kept]


class NumPyArrays(NumPy):
    """NumPy: reshape into blocks and reduce them; maxima axis by axis, which is faster."""

    general = True

    def supports(self, case: Case) -> bool:
        """Disjoint windows; elements after the last window are sliced off."""
        return case.disjoint

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """A view as blocks, and its reduction; averages of integers are truncated, as ndpool's."""
        window, shape, blocks = _window(case), list(x.shape), []
        for n, axis in enumerate(sorted(case.axes)):
            at = case.axes.index(axis)
            shape[axis + n : axis + n + 1] = [case.plan.out[at], window.kernel[at]]
            blocks.append(axis + n + 1)
        view = x[_covered(case)].reshape(shape)
        if case.reduction == "avg":
            return lambda: view.mean(axis=tuple(blocks)).astype(x.dtype, copy=False)

        def maximum() -> NDArray[Any]:
            result = view
            for n, axis in enumerate(blocks):
                result = result.max(axis=axis - n)
            return result

        return maximum

    def answer(self, case: Case, raw: Any) -> Answer:
        """The result itself."""
        return (np.asarray(raw),)


ARRAY_PEERS: tuple[type[Contestant], ...] = (OpenCVImages, SciPyArrays, NumPyArrays)


def expected(case: Case, x: NDArray[Any]) -> NDArray[Any]:
    """The answer by NumPy, tap by tap along one axis after the other; sums in 64 bits, averages truncated."""
    window, maximum = _window(case), case.reduction == "max"
    result = x if maximum else x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
    edge = _least(x.dtype) if maximum else 0
    for n, axis in enumerate(case.axes):
        pads, part = [(0, 0)] * x.ndim, [slice(None)] * x.ndim
        pads[axis] = (window.before[n], window.after[n])
        source = np.pad(result, pads, constant_values=edge) if any(pads[axis]) else result
        for tap in range(window.kernel[n]):
            part[axis] = slice(tap, tap + (case.plan.out[n] - 1) * window.stride[n] + 1, window.stride[n])
            taps = source[tuple(part)]
            if tap == 0:
                result = taps.copy()
            else:
                (np.maximum if maximum else np.add)(result, taps, out=result)
    if maximum:
        return result
    size = prod(window.kernel)
    if x.dtype.kind == "f":
        return (result / size).astype(x.dtype)
    return np.asarray(np.sign(result) * (np.abs(result) // size)).astype(x.dtype)


def _integer_average(case: Case) -> bool:
    return case.reduction == "avg" and np.dtype(case.dtype).kind in "iu"


def _window(case: Case) -> Window:
    assert case.window is not None
    return case.window


def _kept(case: Case) -> tuple[slice, ...]:
    """The windows of the case among those of stride 1."""
    kept = [slice(None)] * len(case.shape)
    for axis, stride, out in zip(case.axes, _window(case).stride, case.plan.out, strict=True):
        kept[axis] = slice(0, (out - 1) * stride + 1, stride)
    return tuple(kept)


def _covered(case: Case) -> tuple[slice, ...]:
    """The part of the input that disjoint windows cover."""
    covered = [slice(None)] * len(case.shape)
    for axis, kernel, out in zip(case.axes, _window(case).kernel, case.plan.out, strict=True):
        covered[axis] = slice(0, out * kernel)
    return tuple(covered)


def _least(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).min
    return False if dtype.kind == "b" else -np.inf
