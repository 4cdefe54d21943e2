"""Which part of an array a program has: lanes over channels, last axis and leading axes.

The names of the numbers that all kernels take stand here too; sizes are never compiled in.
"""

import triton
import triton.language as tl

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


@triton.jit
def over(n, by, magic, WIDE: tl.constexpr):
    """n // by with the `magic` of `launch`: a product in place of a quotient where 32 bits hold n."""
    if WIDE:
        return n // by
    else:
        product = n.to(tl.uint32).to(tl.uint64) * magic.to(tl.uint32).to(tl.uint64)
        return (product >> (magic >> 32).to(tl.uint64)).to(tl.int32)


@triton.jit
def split(pid, n, m, m_n, m_m, WIDE: tl.constexpr):
    """A program's place among n, then among m, and what is left of its number."""
    rest = over(pid, n, m_n, WIDE)
    block = over(rest, m, m_m, WIDE)
    return pid - rest * n, rest - block * m, block


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
    """Which lanes a program has: are they any, and where along channels, last axis and two leading axes."""
    lane = block * LANES + tl.arange(0, LANES)
    c, w, l1, l2 = parts_of(lane, n_c, n_w, n_1, m_c, m_w, m_1, CHANNELS, LEADS, WIDE)
    return lane < n_lanes, c, w, l1, l2


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
