"""Large windows in several passes: axis by axis, long windows in two steps, huge windows in pieces.

Plans in, plans out. Called by the CUDA part of the PyTorch framework, which runs the passes.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt, prod

from ndpool._triton import tuning
from ndpool._triton.launch import folds_rows, three_axes
from ndpool.geometry import AxisPlan, Plan


@lru_cache(1024)
def passes(plan: Plan, long: int) -> tuple[Plan, Plan] | None:
    """Split into the leading axes and the last, if windows overlap so much that two passes are faster."""
    if len(plan.axes) < 2 or not all(a.regular for a in plan.axes):
        return None
    sizes = [a.kernel // a.stride for a in plan.axes[-2:]]
    deep = len(plan.axes) == 3 and prod(a.kernel // a.stride for a in plan.axes) >= tuning.DEEP_TAPS
    if min(sizes) >= long or (max(sizes) >= 64 and min(sizes) > 1) or (deep and sizes[1] > 1):
        return Plan(plan.axes[:-1]), Plan(plan.axes[-1:])
    return None


@lru_cache(1024)
def steps(plan: Plan) -> tuple[Plan, Plan] | None:
    """Split a long window along one axis into a dense pass and a dilated pass over its results."""
    (a,) = plan.axes if len(plan.axes) == 1 else (None,)
    if a is None or not a.regular or a.step > 1 or a.kernel < 64 or a.kernel < 16 * a.stride:
        return None
    step = isqrt(a.kernel)
    far = (a.kernel - step) // step
    short = a.kernel - far * step
    between = (a.out - 1) * a.stride + 1 + far * step
    near = AxisPlan(a.size, between, short, 1, 1, a.origin, a.bounds)
    return Plan([near]), Plan([AxisPlan(between, a.out, far + 1, a.stride, step, 0, (0, between))])


@lru_cache(1024)
def pieces(plan: Plan, n_planes: int, channels: bool) -> tuple[Plan, int] | None:
    """Cut windows along their first axis if they are too few to fill the device; also how many pieces."""
    three, first = three_axes(plan), plan.axes[0]
    outs = prod(a.out for a in (three if channels else three[:2]))
    programs = outs * n_planes
    n = min(256, first.kernel // 8, plan.taps // tuning.PIECE, -(-tuning.PROGRAMS // max(programs, 1)))
    if (
        (len(plan.axes) < 2 and plan.out != (1,))
        or n < 2
        or not programs
        or not folds_rows(three, tuning.MANY_TAPS)
    ):
        return None
    cut = first.divided(n)
    return None if cut is None else (Plan([cut, *plan.axes[1:]]), n)
