"""Unpooling: each index is owned by the largest value number that claims it, in any order of claims."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n", "count", "plane"])
def claim_kernel(owner, indices, n, count, plane, BLOCK: tl.constexpr):
    """Each value claims its index with its number within the plane, starting at 1."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    index = tl.load(indices + i, mask=live, other=0)
    live = live & (index >= 0) & (index < plane)
    tl.atomic_max(owner + i // count * plane + index, (i % count + 1).to(tl.int32), mask=live)


@triton.jit(do_not_specialize=["n", "count", "plane"])
def settle_kernel(owner, values, result, n, count, plane, BLOCK: tl.constexpr):
    """Each index takes its owner's value."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    number = tl.load(owner + i, mask=live, other=0)
    taken = tl.load(values + i // plane * count + number - 1, mask=live & (number > 0), other=0)
    tl.store(result + i, taken, mask=live)
