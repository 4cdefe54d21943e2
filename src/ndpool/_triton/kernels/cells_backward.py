"""Backward of sums for planes that are packed in memory, whatever their rows: cell by cell, not row by row.

Inputs that are in the same windows form a cell and get the same gradient. A program works out that of every
cell of its plane, then writes the plane from end to end by whole vectors, each element from its cell.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.lanes import wait_for_memory
from ndpool._triton.kernels.reducers import even_quotient, quotient, widen


@triton.jit(do_not_specialize=["plane", "pitch", "y_1", "divisor", "inverse"])
def cells_backward_kernel(
    grad,
    offsets,
    result,
    windows,
    shares,
    cells,
    plane,
    pitch,
    y_1,
    divisor,
    inverse,
    CELLS: tl.constexpr,
    MOST: tl.constexpr,
    VEC: tl.constexpr,
    BLOCK: tl.constexpr,
    EDGES: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One plane: BLOCK vectors at a time; of the vectors at its ends, which it may share, only what it has.

    `windows` and `shares` tell where each of the MOST windows of a cell has its gradient, and its divisor.
    `cells` numbers the cells of a plane VEC times: copy k begins with element k, so that loads are aligned.
    """
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    wait_for_memory()
    cell = tl.arange(0, CELLS)
    total = tl.zeros([CELLS], COMPUTE)
    for m in tl.static_range(MOST):
        at = tl.load(windows + m * CELLS + cell)
        g = widen(tl.load(grad + pid * y_1 + at, mask=at >= 0, other=0), COMPUTE)
        if DIVIDE == 1:
            g = even_quotient(g, divisor, inverse)
        if DIVIDE == 2:
            g = quotient(g, tl.load(shares + m * CELLS + cell))
        total += g
    held = total.to(result.dtype.element_ty)
    begin = pid * plane
    first = (begin + (VEC - 1)) // VEC
    skip = (first * VEC - begin).to(tl.int32)
    vectors = (plane - skip) // VEC
    along = tl.arange(0, BLOCK * VEC)
    for start in range(0, vectors, BLOCK):
        there = start + along // VEC < vectors
        taken = tl.load(cells + skip * pitch * 16 + start * VEC + along, mask=there, other=0).to(tl.int32)
        tl.store(result + (first + start) * VEC + along, tl.gather(held, taken, 0), mask=there)
    if EDGES:
        edge = tl.arange(0, 2 * VEC)
        place = tl.where(edge < VEC, edge, skip + vectors * VEC + (edge - VEC))
        there = place < tl.where(edge < VEC, skip, plane)
        taken = tl.load(cells + place, mask=there, other=0).to(tl.int32)
        tl.store(result + begin + place, tl.gather(held, taken, 0), mask=there)
