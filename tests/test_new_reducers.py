"""The core's parts serve reductions that the package does not have: masks, a rule for NaN, a median.

``new_reducers.cpp`` adds them to the general engine without a change of it: another source, another reducer.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
SHAPES = [(1, 9, 9, 1), (3, 17, 40, 1), (2, 8, 23, 3), (1, 30, 5, 16)]
WINDOWS = [
    (3, 1, 1, 1),
    (2, 2, 0, 1),
    (5, 3, 2, 1),
    (3, 2, 1, 2),
    (4, 4, 0, 1),
]  # kernel, stride, padding, dilation


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """The function of the compiled library: it takes a reduction, an array, a mask and a window."""
    library = tmp_path_factory.mktemp("new_reducers") / "new_reducers.so"
    source = HERE / "new_reducers.cpp"
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++20", "-O1", "-Wno-psabi", "-fPIC", "-shared", f"-I{HERE.parent / 'csrc'}"]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    core = ctypes.CDLL(str(library)).pool

    def call(reduction: str, x: np.ndarray, mask: np.ndarray, window: tuple[int, ...]):
        kernel, stride, padding, dilation = window
        sizes = [(n + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1 for n in x.shape[1:3]]
        out, count = np.full((2, x.shape[0], *sizes, x.shape[3]), -7.0)
        arrays = [ctypes.c_void_p(a.ctypes.data) for a in (x, mask, out, count)]
        core(reduction.encode(), *arrays, (ctypes.c_int64 * 4)(*x.shape), (ctypes.c_int64 * 4)(*window))
        return out, count

    return call


def expected(x: np.ndarray, mask: np.ndarray, window: tuple[int, ...], reduce) -> np.ndarray:
    """The reduction of what each window holds that is neither masked nor NaN, one window after the other."""
    kernel, stride, padding, dilation = window
    x = np.where(mask.astype(bool), x, np.nan)
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)), constant_values=np.nan)
    reach = (kernel - 1) * dilation + 1
    rows, columns = ((n - reach) // stride + 1 for n in x.shape[1:3])
    out = np.empty((x.shape[0], rows, columns, x.shape[3]))
    for q, r, c, lane in np.ndindex(out.shape):
        top, left = r * stride, c * stride
        taps = x[q, top : top + reach : dilation, left : left + reach : dilation, lane].ravel()
        out[q, r, c, lane] = reduce(taps[~np.isnan(taps)])
    return out


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_other_sources_and_reducers(pool, shape, window):
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape)
    x[rng.random(shape) < 0.2] = np.nan
    mask = (rng.random(shape) < 0.7).astype(np.uint8)
    x[:, : shape[1] // 2, : shape[2] // 2] = np.nan  # windows without any element left

    largest, _ = pool("max", x, mask, window)
    np.testing.assert_array_equal(largest, expected(x, mask, window, lambda v: v.max(initial=-np.inf)))

    median, _ = pool("median", x, mask, window)
    np.testing.assert_array_equal(
        median, expected(x, mask, window, lambda v: np.median(v) if v.size else np.nan)
    )

    total, count = pool("sum", x, mask, window)
    np.testing.assert_allclose(total, expected(x, mask, window, np.sum), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(count, expected(x, mask, window, np.size))
