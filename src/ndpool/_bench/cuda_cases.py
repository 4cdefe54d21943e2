"""Cases large enough to fill a GPU: pooling layers at training batch sizes, two dtypes and both layouts.

The GPU benchmark runs `CUDA_CASES` before the list in `cases`. A group is one window in any dtype.
`WINDOW_CASES` are gradients of large windows and of norms, which `benchmarks/gpu_kernels.py` times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ndpool._bench.case import Case

_MODES = {"f": "values", "o": "offsets", "i": "indices", "b": "backward"}


class _Row(NamedTuple):
    name: str
    function: str
    shape: tuple[int, ...]
    arguments: dict[str, Any]
    modes: str  # letters of _MODES


def _window(kernel: int, stride: int, padding: int = 0) -> dict[str, Any]:
    return {"kernel_size": kernel, "stride": stride, "padding": padding}


_ROWS = (
    _Row("max 2x2 s2", "max_pool2d", (32, 64, 224, 224), _window(2, 2), "fob"),
    _Row("avg 2x2 s2", "avg_pool2d", (32, 64, 224, 224), _window(2, 2), "fb"),
    _Row("max 3x3 s2 p1", "max_pool2d", (256, 64, 112, 112), _window(3, 2, 1), "fob"),
    _Row("max 3x3 s2 p1, odd", "max_pool2d", (256, 64, 111, 111), _window(3, 2, 1), "fb"),
    _Row("max 5x5 s1", "max_pool2d", (256, 512, 20, 20), _window(5, 1, 2), "fb"),
    _Row("max 7x7 s1", "max_pool2d", (32, 64, 112, 112), _window(7, 1, 3), "fb"),
    _Row("max 13x13 s1", "max_pool2d", (32, 64, 112, 112), _window(13, 1, 6), "fb"),
    _Row("max 31x31 s1", "max_pool2d", (32, 64, 112, 112), _window(31, 1, 15), "f"),
    _Row("avg 3x3 s1", "avg_pool2d", (256, 64, 56, 56), _window(3, 1, 1), "fb"),
    _Row("adaptive avg 7 to 1", "adaptive_avg_pool2d", (256, 2048, 7, 7), {"output_size": 1}, "fb"),
    _Row("adaptive avg 56 to 7", "adaptive_avg_pool2d", (64, 512, 56, 56), {"output_size": 7}, "fb"),
    _Row("adaptive avg 61x53 to 6", "adaptive_avg_pool2d", (64, 512, 61, 53), {"output_size": 6}, "fb"),
    _Row("adaptive max 7 to 1", "adaptive_max_pool2d", (256, 2048, 7, 7), {"output_size": 1}, "fib"),
    _Row("adaptive max 56 to 7", "adaptive_max_pool2d", (64, 512, 56, 56), {"output_size": 7}, "fib"),
    _Row("adaptive max 61x53 to 6", "adaptive_max_pool2d", (64, 512, 61, 53), {"output_size": 6}, "fib"),
    _Row("max 3-D 2", "max_pool3d", (4, 64, 32, 112, 112), _window(2, 2), "fb"),
    _Row("avg 3-D 2", "avg_pool3d", (4, 64, 32, 112, 112), _window(2, 2), "fb"),
    _Row("max 1-D 3 s2", "max_pool1d", (256, 512, 2048), _window(3, 2), "fb"),
    _Row("adaptive avg 4096 to 3", "adaptive_avg_pool2d", (1, 4, 4096, 4096), {"output_size": 3}, "fb"),
    _Row("adaptive max 4096 to 3", "adaptive_max_pool2d", (1, 4, 4096, 4096), {"output_size": 3}, "fi"),
    _Row("max 2049x3 s1", "max_pool2d", (1, 1, 320001, 32), {"kernel_size": (2049, 3), "stride": 1}, "f"),
)
_CONTIGUOUS_ONLY = ("4096", "2049")  # a single image, or one channel


_IMAGES, _VOLUMES = (32, 64, 112, 112), (4, 32, 32, 56, 56)
_WINDOW_ROWS = (
    *(
        _Row(f"{function} {k}x{k} s1", f"{function}_pool2d", _IMAGES, _window(k, 1, k // 2), "b")
        for function in ("max", "avg")
        for k in (5, 7, 9, 13, 21, 31)
    ),
    *(
        _Row(f"{function} {k}x{k} s{s}", f"{function}_pool2d", _IMAGES, _window(k, s, k // 2), "b")
        for function in ("max", "avg")
        for k, s in ((5, 2), (7, 2), (9, 3), (9, 4), (13, 2), (16, 4))
    ),
    *(
        _Row(f"max 3-D {k} s{s}", "max_pool3d", _VOLUMES, _window(k, s, k // 2), "b")
        for k, s in ((5, 1), (5, 2), (7, 3))
    ),
    *(
        _Row(f"lp {k}x{k} s{s}", "lp_pool2d", _IMAGES, {"norm_type": 2.0, "kernel_size": k, "stride": s}, "b")
        for k, s in ((2, 2), (3, 1), (3, 2), (5, 1), (7, 3), (13, 1))
    ),
)


def _cases(rows: Iterable[_Row], network: str) -> Iterator[Case]:
    for row in rows:
        both = len(row.shape) > 3 and not any(word in row.name for word in _CONTIGUOUS_ONLY)
        for letter in row.modes:
            for dtype in ("float32", "bfloat16"):
                for layout in ("NCHW", "NHWC") if both else ("NCHW",):
                    words = (row.name, _MODES[letter], dtype, layout.lower())
                    group = f"{row.name}, {_MODES[letter]}"
                    fields = (row.function, row.arguments, row.shape, dtype, layout, _MODES[letter])
                    yield Case(" ".join(words).replace(",", ""), network, group, *fields)


CUDA_CASES: tuple[Case, ...] = tuple(_cases(_ROWS, "large batches"))
WINDOW_CASES: tuple[Case, ...] = tuple(_cases(_WINDOW_ROWS, "large windows"))
