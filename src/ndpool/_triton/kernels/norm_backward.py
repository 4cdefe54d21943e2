"""First step of the backward pass of an L2 norm, which a gather of the quotients completes."""

import triton
import triton.language as tl

from ndpool._triton.kernels.reducers import widen


@triton.jit(do_not_specialize=["n", "taps"])
def norm_quotient_kernel(grad, y, result, n, taps, BLOCK: tl.constexpr, COMPUTE: tl.constexpr):
    """Gradients of outputs over the outputs, times the taps of a window; 0 where the output is 0."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    g = widen(tl.load(grad + at, mask=ok, other=0), COMPUTE) * taps
    norm = widen(tl.load(y + at, mask=ok, other=0), COMPUTE)
    found = tl.where(norm == 0, 0, g / tl.where(norm == 0, 1, norm))
    tl.store(result + at, found.to(result.dtype.element_ty), mask=ok)
