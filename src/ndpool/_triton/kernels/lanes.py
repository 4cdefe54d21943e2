"""Which part of an array a program has: lanes over channels, last axis and leading axes.

The names of the numbers that all kernels take stand here too; sizes are never compiled in.
"""

import triton
import triton.language as tl

INDEX64 = tl.constexpr(3)  # of `_native`: 1 and 2 are offsets, 3 positions
SIZES = ["n_lanes", "n_c", "n_w", "n_1", "x_c", "x_1", "x_2", "x_d", "x_h", "x_w"]
SIZES += ["y_c", "y_1", "y_2", "y_d", "y_h", "y_w", "divisor", "inverse"]
AXIS = ["size", "out", "kernel", "stride", "step", "origin", "whole", "front", "lo", "hi"]
AXES = [f"{name}_{axis}" for axis in "dhw" for name in AXIS]


@triton.jit
def lanes_of(block, n_lanes, n_c, n_w, n_1, LANES: tl.constexpr, CHANNELS: tl.constexpr, LEADS: tl.constexpr):
    """Which lanes a program has: are they any, and where along channels, last axis and two leading axes."""
    lane = block * LANES + tl.arange(0, LANES)
    c, w, l1, l2 = parts_of(lane, n_c, n_w, n_1, CHANNELS, LEADS)
    return lane < n_lanes, c, w, l1, l2


@triton.jit
def parts_of(lane, n_c, n_w, n_1, CHANNELS: tl.constexpr, LEADS: tl.constexpr):
    """Where lanes are along channels, last axis and two leading axes."""
    c = lane
    if CHANNELS:
        c = lane % n_c
        lane = lane // n_c
    w = lane
    l1 = lane
    l2 = lane
    if LEADS > 0:
        w = lane % n_w
        lane = lane // n_w
        l1 = lane
    if LEADS > 1:
        l1 = lane % n_1
        l2 = lane // n_1
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
