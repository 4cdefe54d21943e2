"""First step of the backward pass of an L2 norm, which a gather of the quotients completes."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ndpool._triton.kernels.reducers import widen


class Block(NamedTuple):
    """Elements of a program."""

    SIZE: Any


@triton.jit
def norm_quotient_kernel(grad, y, result, n, taps, BLOCK, GATHER):
    """Gradients of outputs over the outputs, times the taps of a window; 0 where the output is 0."""
    at = tl.program_id(0).to(tl.int64) * BLOCK.SIZE + tl.arange(0, BLOCK.SIZE)
    ok = at < n
    g = widen(tl.load(grad + at, mask=ok, other=0), GATHER.COMPUTE) * taps
    norm = widen(tl.load(y + at, mask=ok, other=0), GATHER.COMPUTE)
    found = tl.where(norm == 0, 0, g / tl.where(norm == 0, 1, norm))
    tl.store(result + at, found.to(result.dtype.element_ty), mask=ok)
