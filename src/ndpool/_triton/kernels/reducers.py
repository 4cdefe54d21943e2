"""Reducers and vectors of the Triton kernels: merging candidates, windows over tuples, columns of a tile.

A later element replaces an earlier one only if it is strictly better or NaN: ties keep the first, NaNs the
last. Reductions are numbered as in `reductions.py`; FAST_MAX is a maximum without offsets, by one
instruction. Without offsets a zero may have either sign. Tuples are unrolled at compile time.
"""

import os
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import version

# Whether kernels are compiled for NVIDIA's GPUs, and not interpreted.
USE_PTX = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1" and version.hip is None)
MAX, MIN, SUM, SQUARES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
# A maximum by one instruction, without offsets.
FAST_MAX = tl.constexpr(4)
NO_OFFSET = tl.constexpr(2**30 - 1)  # the offset of no element
NO_POLICY = tl.constexpr("")  # of eviction; Triton 3.6 does not accept a plain string as a default


class Reduce(NamedTuple):
    """What is computed from windows."""

    OP: Any
    KIND: Any  # of offsets: none, 8 or 32 bits, or indices
    SCALED: Any  # not, multiplied by an array, or divided by it
    DIVIDE: Any  # not, by one divisor, or by that of each window
    IDENTITY: Any
    COMPUTE: Any  # the type of sums and comparisons


class Gather(NamedTuple):
    """What is computed from the gradients of windows."""

    HAS_INDEX: Any
    SCALED: Any
    DIVIDE: Any
    COMPUTE: Any


@triton.jit
def widen(v, COMPUTE: tl.constexpr):
    """Convert to the compute type; bfloat16 by its bits, because compilers compare it in slow pairs.

    Float16 by an instruction that LLVM cannot look into: it would compare in float16, and the assembler of
    CUDA 12.8 negates operands of such comparisons on Hopper.
    """
    if v.dtype == tl.bfloat16 and COMPUTE == tl.float32:
        bits = v.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        return bits.to(tl.float32, bitcast=True)
    elif v.dtype == tl.float16 and COMPUTE == tl.float32 and USE_PTX:
        return tl.inline_asm_elementwise("cvt.f32.f16 $0, $1;", "=f,h", [v], tl.float32, True, 1)
    else:
        return v.to(COMPUTE)


@triton.jit
def load_or_identity(pointer, ok, REDUCE, EVICT: tl.constexpr = NO_POLICY):
    """Elements, and the identity where masked; integers in the compute type."""
    if REDUCE.COMPUTE.is_floating():
        return tl.load(pointer, mask=ok, other=REDUCE.IDENTITY, eviction_policy=EVICT)
    else:
        # Triton 3.6 fills vectors of 8- and 16-bit integers wrongly if `other` is negative.
        return tl.where(ok, widen(tl.load(pointer, mask=ok, other=0), REDUCE.COMPUTE), REDUCE.IDENTITY)


@triton.jit
def element(v, REDUCE):
    """Elements as the reduction takes them."""
    v = widen(v, REDUCE.COMPUTE)
    if REDUCE.OP == SQUARES:
        v = v * v
    return v


@triton.jit
def root(mean, taps, REDUCE):
    """Turn a mean of squares into the norm of a full window; other reductions are unchanged."""
    if REDUCE.OP == SQUARES:
        mean = mean * taps.to(mean.dtype)
        if mean.dtype == tl.float32:
            mean = tl.sqrt_rn(mean)
        else:
            mean = tl.sqrt(mean)
    return mean


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def merge(a, a_offset, b, b_offset, REDUCE):
    """The better of an earlier `a` and a later `b` with its offset, or their sum."""
    if REDUCE.OP == SUM or REDUCE.OP == SQUARES:
        return a + b, a_offset
    elif REDUCE.OP == FAST_MAX:
        return _larger(a, b), a_offset
    else:
        if REDUCE.OP == MIN:
            wins = b < a
        else:
            wins = b > a
        if b.dtype.is_floating():
            wins = wins | (b != b)
        if REDUCE.KIND != 0:
            return tl.where(wins, b, a), tl.where(wins, b_offset, a_offset)
        else:
            return tl.where(wins, b, a), a_offset


@triton.jit
def better(a, b, OP: tl.constexpr):
    """The better of two values or their sum; NaN wins, and of two zeros either may be returned."""
    if OP == SUM:
        return a + b
    elif OP == MIN:
        return _smaller(a, b)
    else:
        return _larger(a, b)


@triton.jit
def best_of(v, AXIS: tl.constexpr, OP: tl.constexpr):
    """The best value along an axis; of several zeros any may be returned."""
    if OP == MIN:
        return tl.reduce(v, AXIS, _smaller)
    else:
        return tl.reduce(v, AXIS, _larger)


@triton.jit
def sign_bit(v):
    """1 for negative floats, also for -0, else 0."""
    if v.dtype == tl.float64:
        return (v.to(tl.int64, bitcast=True) < 0).to(tl.int32)
    else:
        return (v.to(tl.int32, bitcast=True) < 0).to(tl.int32)


@triton.jit
def signed_zero(v, sign):
    """The values, where zeros take the given sign bit."""
    # By bits: compilers treat zeros of both signs as the same constant.
    if v.dtype == tl.float64:
        zero = (sign.to(tl.int64) << 63).to(tl.float64, bitcast=True)
    else:
        zero = (sign << 31).to(tl.float32, bitcast=True)
    return tl.where(v == 0, zero, v)


@triton.jit
def best_along(v, offset, AXIS: tl.constexpr, OP: tl.constexpr):
    """The best along an axis with its offset; offsets decide ties, in whatever order they are stored.

    NO_OFFSET marks a masked element, whose value is the identity.
    """
    best = best_of(v, AXIS, OP)
    found = tl.min(tl.where(v == tl.expand_dims(best, AXIS), offset, NO_OFFSET), AXIS)
    if v.dtype.is_floating():
        if tl.max(((best != best) | (best == 0)).to(tl.int32)) > 0:
            # Of NaNs the last counts; a zero has the sign of the element at its offset.
            last = tl.max(tl.where((v != v) & (offset != NO_OFFSET), offset, -1), AXIS)
            found = tl.where(best != best, last, found)
            here = offset == tl.expand_dims(found, AXIS)
            best = signed_zero(best, tl.max(tl.where(here, sign_bit(v), 0), AXIS))
    return best, found


@triton.jit
def reduce_windows(
    v, c, N: tl.constexpr, FIRST: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, REDUCE
):
    """N windows over the tuple `v` with the offsets `c`, starting at FIRST."""
    SUMS: tl.constexpr = REDUCE.OP == SUM or REDUCE.OP == SQUARES
    values = ()
    offsets = ()
    if STRIDE == 1 and KERNEL >= N and (N > 2 or (N == 2 and KERNEL > 2 and not SUMS)):
        # Reduce the part that all windows share once; each window adds its own left and right part.
        core, core_offset = v[FIRST + N - 1], c[FIRST + N - 1]
        for i in tl.static_range(N, KERNEL):
            core, core_offset = merge(core, core_offset, v[FIRST + i], c[FIRST + i], REDUCE)
        lefts = ()
        left_offsets = ()
        rights = ()
        right_offsets = ()
        for i in tl.static_range(N - 1):
            lefts, left_offsets = lefts + (v[FIRST + i],), left_offsets + (c[FIRST + i],)
            rights, right_offsets = (
                rights + (v[FIRST + KERNEL + i],),
                right_offsets + (c[FIRST + KERNEL + i],),
            )
        values, offsets = around_core(
            lefts, left_offsets, core, core_offset, rights, right_offsets, N, REDUCE
        )
    elif STRIDE == 1 and KERNEL >= 4 and N > 2:
        # Windows shorter than their number share more when split in halves.
        HALF: tl.constexpr = N // 2
        values, offsets = reduce_windows(v, c, HALF, FIRST, KERNEL, 1, REDUCE)
        others, other_offsets = reduce_windows(v, c, N - HALF, FIRST + HALF, KERNEL, 1, REDUCE)
        values, offsets = values + others, offsets + other_offsets
    else:
        for q in tl.static_range(N):
            best, offset = v[FIRST + q * STRIDE], c[FIRST + q * STRIDE]
            for t in tl.static_range(1, KERNEL):
                best, offset = merge(
                    best, offset, v[FIRST + q * STRIDE + t], c[FIRST + q * STRIDE + t], REDUCE
                )
            values, offsets = values + (best,), offsets + (offset,)
    return values, offsets


@triton.jit
def around_core(left, left_offsets, core, core_offset, right, right_offsets, N: tl.constexpr, REDUCE):
    """N windows of stride 1 around a shared core: window q adds left[q:] and right[:q]."""
    suffixes = ()
    suffix_offsets = ()
    for i in tl.static_range(N - 1):
        v, c = left[N - 2 - i], left_offsets[N - 2 - i]
        if i > 0:
            v, c = merge(v, c, suffixes[0], suffix_offsets[0], REDUCE)
        suffixes, suffix_offsets = (v,) + suffixes, (c,) + suffix_offsets
    values = ()
    offsets = ()
    prefix, prefix_offset = core, core_offset
    for q in tl.static_range(N):
        best, offset = core, core_offset
        if q < N - 1:
            best, offset = merge(suffixes[q], suffix_offsets[q], core, core_offset, REDUCE)
        if q == 1:
            prefix, prefix_offset = right[0], right_offsets[0]
        if q > 1:
            prefix, prefix_offset = merge(prefix, prefix_offset, right[q - 1], right_offsets[q - 1], REDUCE)
        if q > 0:
            best, offset = merge(best, offset, prefix, prefix_offset, REDUCE)
        values, offsets = values + (best,), offsets + (offset,)
    return values, offsets


@triton.jit
def columns_of(tile, ROWS: tl.constexpr, N: tl.constexpr):
    """The columns of a tile with N columns, as vectors; N is a power of 2 up to 16."""
    if N == 1:
        return (tl.reshape(tile, [ROWS]),)
    elif N == 2:
        a, b = tl.split(tile)
        return (a, b)
    else:
        even, odd = tl.split(tl.reshape(tile, [ROWS, N // 2, 2]))
        a = columns_of(even, ROWS, N // 2)
        b = columns_of(odd, ROWS, N // 2)
        found = ()
        for i in tl.static_range(N // 2):
            found = found + (a[i], b[i])
        return found


@triton.jit
def tile_of(v, FIRST: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr):
    """The tile whose columns are every STRIDE-th vector of the tuple, starting at FIRST."""
    if N == 1:
        return tl.reshape(v[FIRST], [ROWS, 1])
    elif N == 2:
        return tl.join(v[FIRST], v[FIRST + STRIDE])
    else:
        even = tile_of(v, FIRST, 2 * STRIDE, ROWS, N // 2)
        odd = tile_of(v, FIRST + STRIDE, 2 * STRIDE, ROWS, N // 2)
        return tl.reshape(tl.join(even, odd), [ROWS, N])


@triton.jit
def share_of(first, kernel, step, lo, hi):
    """Number of taps of a regular window in [lo, hi), at least 1. Positions may be negative."""
    lead = tl.maximum(0, lo - first + step - 1) // step
    start = first + lead * step
    taps = tl.minimum(kernel - lead, tl.maximum(0, hi - start + step - 1) // step)
    return tl.maximum(taps, 1)


@triton.jit
def scaled(total, factors, ok, SCALED: tl.constexpr):
    """The sums times the elements at `factors`, or divided by them with 0 for a division by 0.

    For the backward pass of a norm; other sums are unchanged.
    """
    if SCALED == 1:
        total = total * widen(tl.load(factors, mask=ok, other=0), total.dtype)
    elif SCALED == 2:
        by = widen(tl.load(factors, mask=ok, other=0), total.dtype)
        total = tl.where(by == 0, 0, total / tl.where(by == 0, 1, by))
    return total


@triton.jit
def positive_zero(total):
    """The sum as if it had started with 0: a sum of -0 alone is 0."""
    if total.dtype.is_floating():
        return total + 0.0
    else:
        return total


@triton.jit
def quotient(total, by):
    """Sum divided by its divisor, rounded to nearest; integers are truncated."""
    if total.dtype == tl.float32:
        return tl.div_rn(total, by.to(tl.float32))
    elif total.dtype == tl.float64:
        return total / by.to(tl.float64)
    else:
        return total // by.to(total.dtype)


@triton.jit
def quotient_by_inverse(total, by, inverse):
    """`quotient` by a divisor with known inverse; one correction step rounds it correctly."""
    if total.dtype == tl.float32:
        # A sum of -0 alone is 0.
        guess = tl.fma(total, inverse, 0.0)
        rest = tl.fma(guess, -by.to(tl.float32), total)
        return tl.where(rest == rest, tl.fma(rest, inverse, guess), guess)
    else:
        return quotient(positive_zero(total), by)


@triton.jit
def divided(total, by, inverse, REDUCE):
    """Sums divided as asked for; other reductions are unchanged."""
    if REDUCE.DIVIDE == 1:
        return quotient_by_inverse(total, by, inverse)
    else:
        if REDUCE.OP == SUM:
            total = positive_zero(total)
        if REDUCE.DIVIDE == 2:
            total = quotient(total, by)
        return total


@triton.jit
def quotient_of_channels(total, by):
    """`quotient` by the divisors of a column, which all channels share: their inverses are computed once."""
    if total.shape[1] > by.shape[1] and total.dtype == tl.float32:
        inverse = tl.div_rn(tl.full(by.shape, 1.0, tl.float32), by.to(tl.float32))
        return quotient_by_inverse(
            total, tl.broadcast_to(by, total.shape), tl.broadcast_to(inverse, total.shape)
        )
    else:
        return quotient(total, by)


@triton.jit
def shared_gradient(g, by, inverse, GATHER):
    """Gradients of outputs, divided by one divisor or by those of their windows, which channels share."""
    if GATHER.DIVIDE == 1:
        g = quotient_by_inverse(g, by, inverse)
    if GATHER.DIVIDE == 2:
        g = quotient_of_channels(g, by)
    return g
