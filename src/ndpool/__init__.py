"""Pooling for every array: PyTorch's pooling, to the index, and deterministic.

The named functions (`max_pool2d` and its family) have PyTorch's signatures and PyTorch's behaviour; `pool`,
`adaptive_pool` and `unpool` take any axes; `nn` has the layers. Needs NumPy only.
"""

from typing import Any

from ndpool import nn
from ndpool._config import get_num_threads, set_num_threads, show_config
from ndpool._explain import explain
from ndpool._pyramid import pyramid
from ndpool.functional import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    fractional_max_pool2d,
    fractional_max_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
)
from ndpool.general import adaptive_pool, pool, unpool
from ndpool.geometry import adaptive_windows, output_size, windows

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "adaptive_pool",
    "adaptive_windows",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "explain",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "get_num_threads",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "nn",
    "output_size",
    "pool",
    "pyramid",
    "set_num_threads",
    "show_config",
    "unpool",
    "windows",
]


def __getattr__(name: str) -> Any:
    """`ndpool.torch`, `ndpool.plot`, `ndpool.onnx` and `ndpool.files`, imported when first asked for."""
    if name in ("torch", "plot", "onnx", "files"):
        from importlib import import_module

        return import_module(f"ndpool.{name}")
    raise AttributeError(f"module 'ndpool' has no attribute {name!r}")
