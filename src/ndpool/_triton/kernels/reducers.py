"""Reducers and vectors for the Triton kernels: merging candidates, windows over tuples, columns of a tile.

A later element replaces an earlier one only if it is strictly better or NaN: first of ties, last of NaNs. The
numbers of the reductions are those of `reductions.py`, but for LARGEST, which `zeros` sets right. Tuples are
unrolled while a kernel compiles.
"""

import triton
import triton.language as tl

MAX, MIN, SUM, SQUARES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
# A maximum by one instruction: of two zeros it is the positive one, not the first.
LARGEST = tl.constexpr(4)
NOWHERE = tl.constexpr(2**30 - 1)  # the code of no element


@triton.jit
def widen(v, COMPUTE: tl.constexpr):
    """The values in the compute type; bfloat16 by its bits, or compilers compare it in slow pairs."""
    if v.dtype == tl.bfloat16 and COMPUTE == tl.float32:
        bits = v.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        return bits.to(tl.float32, bitcast=True)
    else:
        return v.to(COMPUTE)


@triton.jit
def element(v, OP: tl.constexpr, COMPUTE: tl.constexpr):
    """The values as a reduction takes them."""
    v = widen(v, COMPUTE)
    if OP == SQUARES:
        v = v * v
    return v


@triton.jit
def root(mean, taps, OP: tl.constexpr):
    """Of a mean of squares, the norm of a whole window; anything else as it is."""
    if OP == SQUARES:
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
def merge(a, a_code, b, b_code, OP: tl.constexpr, CODED: tl.constexpr):
    """The better of an earlier `a` and a later `b` with its code, or their sum."""
    if OP == SUM or OP == SQUARES:
        return a + b, a_code
    elif OP == LARGEST:
        return _larger(a, b), a_code
    else:
        if OP == MIN:
            wins = b < a
        else:
            wins = b > a
        if b.dtype.is_floating():
            wins = wins | (b != b)
        if CODED:
            return tl.where(wins, b, a), tl.where(wins, b_code, a_code)
        else:
            return tl.where(wins, b, a), a_code


@triton.jit
def better(a, b, OP: tl.constexpr):
    """The better of two values or their sum; NaN is the best, and of two zeros it is either."""
    if OP == SUM:
        return a + b
    elif OP == MIN:
        return _smaller(a, b)
    else:
        return _larger(a, b)


@triton.jit
def best_of(v, AXIS: tl.constexpr, OP: tl.constexpr):
    """The best value along an axis; of zeros it is any."""
    if OP == MIN:
        return tl.reduce(v, AXIS, _smaller)
    else:
        return tl.reduce(v, AXIS, _larger)


@triton.jit
def order_of(v, best, code, OP: tl.constexpr):
    """What decides among equals of the best, the least first: a code and a sign, those of NaNs backwards."""
    # Nothing is better: a comparison that compilers do not keep from where equals were looked for before.
    if OP == MIN:
        equal = v <= best
    else:
        equal = v >= best
    if v.dtype.is_floating():
        nan = best != best
        BITS: tl.constexpr = tl.int64 if v.dtype == tl.float64 else tl.int32
        LAST: tl.constexpr = 63 if v.dtype == tl.float64 else 31
        sign = (v.to(BITS, bitcast=True) >> LAST).to(tl.int32) & 1
        order = tl.where(nan, -code, code) * 2 + sign
        return tl.where(equal | (nan & (v != v)), order, 2 * NOWHERE + 1)
    else:
        return tl.where(equal, code * 2, 2 * NOWHERE + 1)


@triton.jit
def settled(best, order):
    """The best with its code, once it is known which of the equals it is: a zero takes its sign."""
    found = order >> 1
    if best.dtype.is_floating():
        BITS: tl.constexpr = tl.int64 if best.dtype == tl.float64 else tl.int32
        LAST: tl.constexpr = 63 if best.dtype == tl.float64 else 31
        # By its bits: compilers take a zero of either sign for one of none.
        zero = ((order & 1).to(BITS) << LAST).to(best.dtype, bitcast=True)
        found = tl.where(best != best, -found, found)
        best = tl.where(best == 0, zero, best)
    return best, found


@triton.jit
def best_along(v, code, AXIS: tl.constexpr, OP: tl.constexpr, CODED: tl.constexpr):
    """The best along an axis with its code, in whatever order the codes stand: they decide ties.

    A code of NOWHERE stands for no element; nothing loses to the value there.
    """
    best = best_of(v, AXIS, OP)
    all_best = tl.expand_dims(best, AXIS)
    found = tl.zeros(best.shape, tl.int32)
    if CODED:
        found = tl.min(tl.where(v == all_best, code, NOWHERE), AXIS)
    if v.dtype.is_floating():
        if tl.max(((best != best) | (best == 0)).to(tl.int32)) > 0:
            best, found = settled(best, tl.min(order_of(v, all_best, code, OP), AXIS))
    return best, found


@triton.jit
def least_bits(least, v, OP: tl.constexpr):
    """The least so far of what values are as integers, for LARGEST: that of -0 is the least of all."""
    if OP == LARGEST:
        return tl.minimum(least, v.to(tl.int32, bitcast=True))
    else:
        return least


@triton.jit
def reduce_windows(
    v,
    c,
    N: tl.constexpr,
    FIRST: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    OP: tl.constexpr,
    CODED: tl.constexpr,
):
    """N windows over the tuple `v` with the codes `c`, the first from FIRST on."""
    values = ()
    codes = ()
    if STRIDE == 1 and KERNEL >= N and (N > 2 or (N == 2 and KERNEL > 2 and OP != SUM and OP != SQUARES)):
        # What all windows share is reduced once; each adds what it has to the left and to the right of it.
        core, core_code = v[FIRST + N - 1], c[FIRST + N - 1]
        for i in tl.static_range(N, KERNEL):
            core, core_code = merge(core, core_code, v[FIRST + i], c[FIRST + i], OP, CODED)
        lefts = ()
        left_codes = ()
        rights = ()
        right_codes = ()
        for i in tl.static_range(N - 1):
            lefts, left_codes = lefts + (v[FIRST + i],), left_codes + (c[FIRST + i],)
            rights, right_codes = rights + (v[FIRST + KERNEL + i],), right_codes + (c[FIRST + KERNEL + i],)
        values, codes = around_core(lefts, left_codes, core, core_code, rights, right_codes, N, OP, CODED)
    elif STRIDE == 1 and KERNEL >= 4 and N > 2:
        # Windows shorter than their number share more in halves.
        HALF: tl.constexpr = N // 2
        values, codes = reduce_windows(v, c, HALF, FIRST, KERNEL, 1, OP, CODED)
        others, other_codes = reduce_windows(v, c, N - HALF, FIRST + HALF, KERNEL, 1, OP, CODED)
        values, codes = values + others, codes + other_codes
    else:
        for q in tl.static_range(N):
            best, code = v[FIRST + q * STRIDE], c[FIRST + q * STRIDE]
            for t in tl.static_range(1, KERNEL):
                best, code = merge(
                    best, code, v[FIRST + q * STRIDE + t], c[FIRST + q * STRIDE + t], OP, CODED
                )
            values, codes = values + (best,), codes + (code,)
    return values, codes


@triton.jit
def around_core(
    left,
    left_codes,
    core,
    core_code,
    right,
    right_codes,
    N: tl.constexpr,
    OP: tl.constexpr,
    CODED: tl.constexpr,
):
    """N windows of stride 1 around a core: window q has what is left of it from q on, right of it below q."""
    suffixes = ()
    suffix_codes = ()
    for i in tl.static_range(N - 1):
        v, c = left[N - 2 - i], left_codes[N - 2 - i]
        if i > 0:
            v, c = merge(v, c, suffixes[0], suffix_codes[0], OP, CODED)
        suffixes, suffix_codes = (v,) + suffixes, (c,) + suffix_codes
    values = ()
    codes = ()
    prefix, prefix_code = core, core_code
    for q in tl.static_range(N):
        best, code = core, core_code
        if q < N - 1:
            best, code = merge(suffixes[q], suffix_codes[q], core, core_code, OP, CODED)
        if q == 1:
            prefix, prefix_code = right[0], right_codes[0]
        if q > 1:
            prefix, prefix_code = merge(prefix, prefix_code, right[q - 1], right_codes[q - 1], OP, CODED)
        if q > 0:
            best, code = merge(best, code, prefix, prefix_code, OP, CODED)
        values, codes = values + (best,), codes + (code,)
    return values, codes


@triton.jit
def columns_of(tile, ROWS: tl.constexpr, N: tl.constexpr):
    """The columns of a tile of N, each as a vector; N is a power of 2 up to 16."""
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
    """The tile whose columns are every STRIDE-th vector of the tuple, from FIRST on."""
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
    """How many taps of a regular window stand in [lo, hi); no less than 1. Positions may be negative."""
    lead = tl.maximum(0, lo - first + step - 1) // step
    start = first + lead * step
    taps = tl.minimum(kernel - lead, tl.maximum(0, hi - start + step - 1) // step)
    return tl.maximum(taps, 1)


@triton.jit
def unsigned_zero(total):
    """The sum as one that began with 0: of nothing but -0 it is 0."""
    if total.dtype.is_floating():
        return total + 0.0
    else:
        return total


@triton.jit
def quotient(total, by):
    """The sum over its divisor: rounded to nearest, or cut towards zero."""
    if total.dtype == tl.float32:
        return tl.div_rn(total, by.to(tl.float32))
    elif total.dtype == tl.float64:
        return total / by.to(tl.float64)
    else:
        return total // by.to(total.dtype)


@triton.jit
def even_quotient(total, by, inverse):
    """The same for a divisor that all share, given with its inverse: one correction rounds it rightly."""
    if total.dtype == tl.float32:
        # A sum of nothing but -0 is 0.
        guess = tl.fma(total, inverse, 0.0)
        rest = tl.fma(guess, -by.to(tl.float32), total)
        return tl.where(rest == rest, tl.fma(rest, inverse, guess), guess)
    else:
        return quotient(unsigned_zero(total), by)
