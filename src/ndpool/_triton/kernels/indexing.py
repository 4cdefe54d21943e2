"""Groups of arguments, how programs and lanes map to planes and windows, and dependent launch.

Kernels take their sizes, strides and constants in named tuples. Fields in capitals are compile-time
constants, others are run-time numbers; a number that is None is not passed. The groups that several kernels
share are here, a kernel's own ones stand beside it.
"""

import os
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import cuda, version


def _supports_pdl():
    """Whether all devices support programmatic dependent launch."""
    if os.environ.get("TRITON_INTERPRET") == "1" or not hasattr(getattr(tl.extra, "cuda", None), "gdc_wait"):
        return False
    return (
        version.cuda is not None
        and cuda.is_available()
        and all(cuda.get_device_capability(i) >= (9, 0) for i in range(cuda.device_count()))
    )


USE_PDL = tl.constexpr(_supports_pdl())
INDEX64 = tl.constexpr(3)  # as in `_native`: 1 and 2 are offsets, 3 is an index


class Lanes(NamedTuple):
    """What lanes are numbered by: channels fastest, then the last axis, strips of rows, two leading axes."""

    n: Any  # of all
    c: Any
    w: Any
    strips: Any  # None: programs are numbered by them
    lead: Any
    by_c: Any  # magic numbers
    by_w: Any
    by_strips: Any
    by_lead: Any


class Programs(NamedTuple):
    """What programs are numbered by before lanes: strips of rows, then the first axis; None is 1."""

    strips: Any
    d: Any
    by_strips: Any
    by_d: Any


class Strides(NamedTuple):
    """Of channels, two leading and three pooled axes, in vectors; None along rows is 1."""

    c: Any
    lead: Any
    outer: Any
    d: Any
    h: Any
    w: Any


class Sizes(NamedTuple):
    """One number per pooled axis."""

    d: Any
    h: Any
    w: Any


class Bounds(NamedTuple):
    """Where windows are counted, per pooled axis."""

    lo_d: Any
    hi_d: Any
    lo_h: Any
    hi_h: Any
    lo_w: Any
    hi_w: Any


class Division(NamedTuple):
    """One divisor of all windows, and its inverse."""

    by: Any
    inverse: Any


class Memory(NamedTuple):
    """Whether there are channels, how many leading axes, and whether addresses need 64 bits."""

    CHANNELS: Any
    LEADS: Any
    INT64: Any


class Window(NamedTuple):
    """Taps, strides and first positions of regular windows."""

    KD: Any
    KH: Any
    KW: Any
    SD: Any
    SH: Any
    SW: Any
    D: Any
    H: Any
    W: Any


@triton.jit
def program_number(MEMORY):
    """The number of this program, in 64 bits if addresses need them."""
    pid = tl.program_id(0)
    if MEMORY.INT64:
        pid = pid.to(tl.int64)
    return pid


@triton.jit
def divide(n, by, magic, INT64: tl.constexpr):
    """n // by; with 32-bit addresses a multiplication by the magic number of `launch.magic`."""
    if INT64:
        return n // by
    else:
        product = tl.umulhi(n.to(tl.uint32) * 2, magic.to(tl.uint32))
        return (product >> ((magic >> 32) - 1).to(tl.uint32)).to(tl.int32)


@triton.jit
def split(pid, n, m, by_n, by_m, INT64: tl.constexpr):
    """Split a program number into its position among n, its position among m, and the rest; None is 1."""
    if n is None and m is None:
        return 0, 0, pid
    elif n is None:
        block = divide(pid, m, by_m, INT64)
        return 0, pid - block * m, block
    elif m is None:
        rest = divide(pid, n, by_n, INT64)
        return pid - rest * n, 0, rest
    else:
        rest = divide(pid, n, by_n, INT64)
        block = divide(rest, m, by_m, INT64)
        return pid - rest * n, rest - block * m, block


@triton.jit
def table_row(table, o):
    """Address of a row of a table with four columns, in 64 bits."""
    return table + tl.full([], 4, tl.int64) * o


@triton.jit
def within(ok, i, size):
    """`ok` and 0 <= i < size, by one comparison; without a size every i is inside."""
    if size is None:
        return ok
    else:
        WORD: tl.constexpr = tl.uint64 if i.dtype == tl.int64 else tl.uint32
        return ok & (i.to(WORD) < size.to(WORD))


@triton.jit
def wait_for_previous():
    """Wait until the previous kernel has finished: its memory may be read here."""
    if USE_PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def launch_dependents():
    """Let the next kernel start early, which pays where programs are short and uniform."""
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def lanes_of(block, lanes, LANES: tl.constexpr, MEMORY):
    """Lanes of a program: whether each exists, and its coordinates."""
    lane = block * LANES + tl.arange(0, LANES)
    c, w, strip, l1, l2 = coordinates_of(lane, lanes, MEMORY)
    return lane < lanes.n, c, w, strip, l1, l2


@triton.jit
def coordinates_of(lane, lanes, MEMORY):
    """Coordinates of lanes: channel, last axis, strip of rows and two leading axes."""
    c = lane
    if MEMORY.CHANNELS:
        rest = divide(lane, lanes.c, lanes.by_c, MEMORY.INT64)
        c = lane - rest * lanes.c
        lane = rest
    l1 = divide(lane, lanes.w, lanes.by_w, MEMORY.INT64)
    w = lane - l1 * lanes.w
    strip = 0
    if lanes.strips is not None:
        rest = divide(l1, lanes.strips, lanes.by_strips, MEMORY.INT64)
        strip = l1 - rest * lanes.strips
        l1 = rest
    l2 = lane
    if MEMORY.LEADS > 1:
        l2 = divide(l1, lanes.lead, lanes.by_lead, MEMORY.INT64)
        l1 = l1 - l2 * lanes.lead
    return c, w, strip, l1, l2


@triton.jit
def as_column(v, lanes):
    """Numbers of lanes as a column, if lanes are numbered by strips; else a number of the program."""
    if lanes.strips is None:
        return v
    else:
        return v[:, None]


@triton.jit
def base_of(c, l1, l2, strides, MEMORY):
    """Address of the first element of each lane's plane."""
    base = l1 * strides.lead
    if MEMORY.CHANNELS:
        base += c * strides.c
    if MEMORY.LEADS > 1:
        base += l2 * strides.outer
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
    """Outputs of one row of a strip: their indices along the last axis, and their addresses without the row.

    VEC columns, or the q-th of OUTS columns for VEC channels.
    """
    along = tl.arange(0, VEC)[None, :]
    if COLUMNS:
        ow = w[:, None] * VEC + along
        return ow, y_base[:, None] + ow
    else:
        ow = w * OUTS + q
        return ow[:, None] + along * 0, (y_base + ow * y_w * UNIT)[:, None] + along
