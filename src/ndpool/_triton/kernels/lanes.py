"""Which part of an array a program has: lanes over channels, last axis and leading axes; and when it begins.

The names of the numbers that all kernels take stand here too; sizes are never compiled in. A number that is
None is one that a kernel does without.
"""

import os

import triton
import triton.language as tl
from torch import cuda, version


def _early():
    """Whether all devices bring a kernel in before the last one ended, if it says when to wait."""
    if os.environ.get("TRITON_INTERPRET") == "1" or not hasattr(getattr(tl.extra, "cuda", None), "gdc_wait"):
        return False
    return (
        version.cuda is not None
        and cuda.is_available()
        and all(cuda.get_device_capability(i) >= (9, 0) for i in range(cuda.device_count()))
    )


EARLY = tl.constexpr(_early())
INDEX64 = tl.constexpr(3)  # of `_native`: 1 and 2 are offsets, 3 positions
SIZES = [
    "n_lanes",
    "n_c",
    "n_w",
    "n_1",
    "m_c",
    "m_w",
    "m_1",
    "m_s",
    "m_d",
    "x_c",
    "x_1",
    "x_2",
    "x_d",
    "x_h",
    "x_w",
]
SIZES += ["y_c", "y_1", "y_2", "y_d", "y_h", "y_w", "divisor", "inverse"]
AXIS = ["size", "out", "kernel", "stride", "step", "origin", "whole", "front", "lo", "hi"]
AXES = [f"{name}_{axis}" for axis in "dhw" for name in AXIS]
TRANSPOSED = [f"{name}_{axis}" for axis in "dhw" for name in ("period", "spacing")]


@triton.jit
def over(n, by, magic, WIDE: tl.constexpr):
    """n // by with the `magic` of `launch`: a product in place of a quotient where 32 bits hold n."""
    if WIDE:
        return n // by
    else:
        product = tl.umulhi(n.to(tl.uint32) * 2, magic.to(tl.uint32))
        return (product >> ((magic >> 32) - 1).to(tl.uint32)).to(tl.int32)


@triton.jit
def split(pid, n, m, m_n, m_m, WIDE: tl.constexpr):
    """A program's place among n, then among m, and what is left of its number; None is the only place."""
    if n is None:
        return 0, 0, pid
    elif m is None:
        rest = over(pid, n, m_n, WIDE)
        return pid - rest * n, 0, rest
    else:
        rest = over(pid, n, m_n, WIDE)
        block = over(rest, m, m_m, WIDE)
        return pid - rest * n, rest - block * m, block


@triton.jit
def within(ok, i, size):
    """`ok` and 0 <= i < size, by one comparison; where the size is None, no i is outside."""
    if size is None:
        return ok
    else:
        WORD: tl.constexpr = tl.uint64 if i.dtype == tl.int64 else tl.uint32
        return ok & (i.to(WORD) < size.to(WORD))


@triton.jit
def wait_for_memory():
    """The kernel before is waited for, as its memory may be ours; what needs none of it comes earlier."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def call_next():
    """The next kernel may be brought in already, which pays where programs are short and alike."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def lanes_of(
    block,
    n_lanes,
    n_c,
    n_w,
    n_1,
    m_c,
    m_w,
    m_1,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Which lanes a program has: are they any, and where along channels, last axis and two leading axes.

    Where programs share the lanes without rest, `n_lanes` is None.
    """
    lane = block * LANES + tl.arange(0, LANES)
    c, w, l1, l2 = parts_of(lane, n_c, n_w, n_1, m_c, m_w, m_1, CHANNELS, LEADS, WIDE)
    live = tl.full([LANES], True, tl.int1)
    if n_lanes is not None:
        live = lane < n_lanes
    return live, c, w, l1, l2


@triton.jit
def parts_of(
    lane,
    n_c,
    n_w,
    n_1,
    m_c,
    m_w,
    m_1,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Where lanes are along channels, last axis and two leading axes."""
    c = lane
    if CHANNELS:
        rest = over(lane, n_c, m_c, WIDE)
        c = lane - rest * n_c
        lane = rest
    w = lane
    l1 = lane
    l2 = lane
    if LEADS > 0:
        l1 = over(lane, n_w, m_w, WIDE)
        w = lane - l1 * n_w
    if LEADS > 1:
        l2 = over(l1, n_1, m_1, WIDE)
        l1 = l1 - l2 * n_1
    return c, w, l1, l2


@triton.jit
def base_of(c, l1, l2, s_c, s_1, s_2, CHANNELS: tl.constexpr, LEADS: tl.constexpr):
    """How far into an array the lanes' planes begin."""
    base = c * 0
    if CHANNELS:
        base += c * s_c
    if LEADS > 0:
        base += l1 * s_1
    if LEADS > 1:
        base += l2 * s_2
    return base


@triton.jit
def outputs_of(
    w,
    q,
    y_base,
    y_w,
    COLUMNS: tl.constexpr,
    UNIT: tl.constexpr,
    VEC: tl.constexpr,
    OUTS: tl.constexpr,
):
    """A strip's outputs of one row: their places along the last axis, and in memory seen from that row.

    VEC columns, or of VEC channels the q-th of OUTS columns.
    """
    along = tl.arange(0, VEC)[None, :]
    if COLUMNS:
        ow = w[:, None] * VEC + along
        return ow, y_base[:, None] + ow
    else:
        ow = w * OUTS + q
        return ow[:, None] + along * 0, (y_base + ow * y_w * UNIT)[:, None] + along
