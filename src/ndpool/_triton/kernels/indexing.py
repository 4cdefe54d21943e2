"""How programs and lanes map to channels, the last pooled axis and the leading axes; dependent launch.

Also lists the names of the run-time numbers that kernels share. A number that is None is not passed.
"""

import os

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
AXIS = ["size", "out", "kernel", "stride", "step", "origin", "full", "front", "lo", "hi"]
AXES = [f"{name}_{axis}" for axis in "dhw" for name in AXIS]


@triton.jit
def divide(n, by, magic, INT64: tl.constexpr):
    """n // by; with 32-bit addresses a multiplication by the magic number of `launch.magic`."""
    if INT64:
        return n // by
    else:
        product = tl.umulhi(n.to(tl.uint32) * 2, magic.to(tl.uint32))
        return (product >> ((magic >> 32) - 1).to(tl.uint32)).to(tl.int32)


@triton.jit
def split(pid, n, m, m_n, m_m, INT64: tl.constexpr):
    """Split a program number into its position among n, its position among m, and the rest; None is 1."""
    if n is None:
        return 0, 0, pid
    elif m is None:
        rest = divide(pid, n, m_n, INT64)
        return pid - rest * n, 0, rest
    else:
        rest = divide(pid, n, m_n, INT64)
        block = divide(rest, m, m_m, INT64)
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
    INT64: tl.constexpr,
):
    """Lanes of a program: whether each exists, and its coordinates (channel, last axis, two leading axes)."""
    lane = block * LANES + tl.arange(0, LANES)
    c, w, l1, l2 = coordinates_of(lane, n_c, n_w, n_1, m_c, m_w, m_1, CHANNELS, LEADS, INT64)
    return lane < n_lanes, c, w, l1, l2


@triton.jit
def coordinates_of(
    lane,
    n_c,
    n_w,
    n_1,
    m_c,
    m_w,
    m_1,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    INT64: tl.constexpr,
):
    """Coordinates of lanes: channel, last axis and two leading axes."""
    c = lane
    if CHANNELS:
        rest = divide(lane, n_c, m_c, INT64)
        c = lane - rest * n_c
        lane = rest
    l1 = divide(lane, n_w, m_w, INT64)
    w = lane - l1 * n_w
    l2 = lane
    if LEADS > 1:
        l2 = divide(l1, n_1, m_1, INT64)
        l1 = l1 - l2 * n_1
    return c, w, l1, l2


@triton.jit
def base_of(c, l1, l2, s_c, s_1, s_2, CHANNELS: tl.constexpr, LEADS: tl.constexpr):
    """Address of the first element of each lane's plane."""
    base = l1 * s_1
    if CHANNELS:
        base += c * s_c
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
