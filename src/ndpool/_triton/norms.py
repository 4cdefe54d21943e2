"""The first step of the backward pass of an L2 norm: gradients of outputs over the outputs.

Called by the CUDA part of the PyTorch framework, which gathers the quotients and multiplies by the input.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton.language as tl
from torch import Tensor

from ndpool._triton.kernels.norm_backward import Block, norm_quotient_kernel
from ndpool._triton.kernels.reducers import Gather
from ndpool._triton.launch import Prepared, constant, launcher
from ndpool._triton.tuning import BLOCK


def norm_quotient(grad: Tensor, y: Tensor, taps: int) -> Tensor:
    """grad / y * taps, and 0 where y is 0, laid out as y."""
    result, n = torch.empty_like(y), y.numel()
    dense = sum((size - 1) * step for size, step in zip(y.shape, y.stride(), strict=True)) + 1 == n
    if not n or not dense or result.stride() != y.stride():
        zero = y == 0
        return torch.where(zero, 0, grad / torch.where(zero, 1, y) * taps)
    if grad.stride() != y.stride():
        grad = torch.empty_like(y).copy_(grad)
    aligned = (grad.data_ptr() | y.data_ptr()) % 16 == 0
    with torch.cuda.device(y.device if y.is_cuda else -1):
        _quotient(n, taps, y.dtype, aligned, y.device)(grad, y, result)
    return result


@lru_cache(1024)
def _quotient(n: int, taps: int, dtype: torch.dtype, aligned: bool, device: torch.device) -> Prepared:
    compute = tl.float64 if dtype is torch.float64 else tl.float32
    arguments = (n, taps, constant(Block(BLOCK)), constant(Gather(False, False, 0, compute)))
    run = launcher(norm_quotient_kernel, -(-n // BLOCK), arguments, 4, aligned)
    run.direction = "backward"
    return run
