"""Max pooling with overlapping windows, backward: the column kernel.

Offsets must be those of the forward pass: the kernel relies on which elements windows share. With any other
offsets the sums are meaningless, but no memory outside the arrays is touched. Called by `backward`.
"""

from __future__ import annotations

from math import prod

from ndpool._triton import tuning
from ndpool._triton.kernels.column_backward import Block, column_backward_kernel
from ndpool._triton.kernels.indexing import Sizes
from ndpool._triton.kernels.reducers import Gather
from ndpool._triton.launch import (
    Prepared,
    constant,
    lanes_for,
    lanes_of,
    launcher,
    max_overlap,
    memory_of,
    optional,
    programs_of,
    strides_of,
    window_of,
)
from ndpool._triton.memory import Layout, channel_vector
from ndpool.geometry import AxisPlan


def _pays(axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int, columns: bool) -> bool:
    """Whether windows overlap so much that this is faster than blocks, and not so much that runs are."""
    channels, (deep, high, wide) = layout.channels, map(max_overlap, axes)
    overlap, ones = deep * high * wide, all(a.stride == 1 for a in axes)
    most, rows = tuning.COLUMN_CHANNELS if channels else tuning.COLUMN_ROWS[columns]
    # Planes of a volume share the work on the rows of a window.
    if min(high, wide) < tuning.COLUMN_EACH or wide > most or (high if deep > 1 else axes[1].kernel) > rows:
        return False
    if deep * wide > tuning.COLUMN_DEEP[channels] or axes[0].stride * axes[1].kernel > tuning.COLUMN_SUMS:
        return False
    if deep > 1 and not ones:
        # Blocks of stride 2 are fast, but not in half types of channels.
        share = prod(a.kernel / a.stride for a in axes)
        blocks = axes[2].stride == 2 and not (channels and itemsize < 4)
        return not blocks or share >= tuning.COLUMN_VOLUME
    if overlap < tuning.COLUMN_OVERLAP[not ones]:
        return False
    # Blocks of an odd stride are written element by element.
    return channels or ones or axes[2].stride % 2 == 1 or overlap >= tuning.COLUMN_STRIDED


def _planes(axis: AxisPlan, sums: int, loads: int, n_lanes: int) -> int:
    """Planes of a lane: more read outputs less often, fewer leave more lanes and registers.

    A lane keeps `sums` sums for each plane, and has `loads` loads for each plane of outputs.
    """
    planes, deep = axis.stride, -(-axis.kernel // axis.stride)
    while planes < axis.kernel - axis.stride:
        registers = 2 * planes * sums + 2 * (deep + 2 * planes // axis.stride - 1) * loads
        lanes = n_lanes * -(-axis.size // (2 * planes))
        if registers > tuning.COLUMN_REGISTERS or lanes < tuning.COLUMN_LANES // 2:
            break
        planes *= 2
    return planes


def column_backward(
    axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int, gather: Gather
) -> Prepared | None:
    """Launcher for the column kernel, or None where others are faster."""
    d, h, last = axes
    rows = not layout.channels and layout.input_strides[5] == layout.output_strides[5] == 1
    pitches = (last.size, last.out, *layout.input_strides[1:5], *layout.output_strides[1:5])
    wide = tuning.COLUMN_VECTOR
    columns = rows and last.stride == 1 and itemsize < 16 and not any(pitch % wide for pitch in pitches)
    if any(a.origin > 0 for a in axes) or not _pays(axes, layout, itemsize, columns):
        return None
    images, most = layout.sizes[1] * layout.sizes[2], max(1, h.size // (2 * h.kernel))
    if columns:
        first, begin = divmod(-last.origin - last.kernel + 1, wide)
        vec, loads = wide, -(-(begin + wide - 1 + last.kernel) // wide)
        n_c, n_w = layout.sizes[0], last.size // vec
    else:
        vec = min(channel_vector(layout, itemsize), wide)
        first, begin, loads = 0, 0, -(-last.kernel // last.stride)
        all_lanes = layout.sizes[0] * last.size * images * -(-d.size // d.stride) * most
        deep = -(-d.kernel // d.stride)
        while vec > 1 and (
            d.stride * h.kernel * vec > tuning.COLUMN_SUMS
            or (deep > 1 and deep * loads * vec > tuning.COLUMN_AHEAD)
            or all_lanes < vec * tuning.COLUMN_FEW
        ):
            vec //= 2
        n_c, n_w = layout.sizes[0] // vec, last.size
    n_lanes = n_c * n_w * images
    lanes = lanes_for(n_lanes, tuning.THREADS)
    planes = _planes(d, h.kernel * vec, loads * vec, n_lanes * most)
    blocks_d = -(-(d.size + -d.origin % d.stride) // planes)
    # Chunks of rows read the outputs between them twice.
    height = -(-h.size // min(-(-tuning.COLUMN_LANES // (n_lanes * blocks_d)), most))
    chunks = -(-h.size // height)
    x_strides, y_strides = (
        [s // vec for s in both] for both in (layout.input_strides, layout.output_strides)
    )
    if vec > 1:
        x_strides[0] = y_strides[0] = 1
    shift = (last.kernel & -last.kernel).bit_length() - 1
    inverse = pow(last.kernel >> shift, -1, 2**32)
    block = Block(
        INVERSE=inverse - (inverse >> 31 << 32),  # as a signed number
        SHIFT=shift,
        COLUMNS=columns,
        FIRST=first * wide,
        BEGIN=begin,
        LOADS=loads,
        PLANES=planes,
        VEC=vec,
        LANES=lanes,
    )
    arguments = (
        lanes_of(n_lanes, n_c, n_w, layout),
        programs_of(chunks, *optional(d.kernel > 1 or d.size > 1, blocks_d)),
        strides_of(x_strides, layout, rows),
        strides_of(y_strides, layout, rows),
        Sizes(*(a.size for a in axes)),
        Sizes(*(a.out for a in axes)),
        height,
        window_of(axes),
        constant(block),
        memory_of(layout),
        constant(gather),
    )
    grid = -(-n_lanes // lanes) * blocks_d * chunks
    return launcher(column_backward_kernel, grid, arguments, lanes // 32, itemsize < 16)
