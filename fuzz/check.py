"""Checks one case: results equal the reference, and variations of the call give bitwise identical results.

A failure is an AssertionError that says what differs. The parent process reports crashes.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

import ndpool
from fences import Memory, poisoned_results
from fuzz import reference
from fuzz.call import arrays, convert, invoke, memory, run
from fuzz.case import Case
from ndpool._native import core
from oracle import Array, counts, is_float


class Want(NamedTuple):
    """The expected result: values, the allowed error of each (None: exact), indices of max and min."""

    values: Array
    slack: Array | None
    indices: Array | None


def expected(case: Case) -> Want:
    """The reference result."""
    if case.indices is not None:
        return Want(reference.unpool(case.values, case.indices, case.sizes, case.axes), None, None)
    flat, lead = reference.planes(case.values, case.axes)
    sizes = [case.shape[a] for a in case.axes]
    if "_random_samples" in case.kwargs and not case.plans:
        return Want(np.empty(case.outs, case.dtype), None, np.empty(case.outs, np.int64))
    if len(case.plans) > 1:
        parts = [
            reference.select(flat[i : i + 1], reference.table(plan, sizes), False)
            for i, plan in enumerate(case.plans)
        ]
        found: tuple[Any, ...] = tuple(np.concatenate(part) for part in zip(*parts, strict=True))
        slack = None
    else:
        found, slack = reduced(case, flat, reference.table(case.plans[0], sizes))
    back = [
        None if a is None else reference.unplanes(a, lead, [len(axis) for axis in case.plans[0]], case.axes)
        for a in (found[0], slack, found[1])
    ]
    return Want(*back)


def reduced(case: Case, flat: Array, windows: reference.Table) -> tuple[tuple[Array, Any], Any]:
    """The reference result for planes, and its allowed error."""
    plan, dtype, kwargs = case.plans[0], case.dtype, case.kwargs
    real = is_float(dtype)
    if case.has_index:
        return reference.select(flat, windows, case.reduce == "min"), None
    requested = np.dtype(kwargs["dtype"]) if "dtype" in kwargs else None
    if abs(case.norm) == inf:
        if not case.taps and not real:  # a true norm of integers
            found = reference.select(np.abs(flat.astype(np.float64)), windows, case.norm < 0)[0]
            return (found.astype(requested or np.float32), None), None
        return (reference.select(np.abs(flat), windows, case.norm < 0)[0], None), None
    padded = kwargs.get("count_include_pad", True)
    with np.errstate(all="ignore"):
        if case.reduce == "lp":
            share = counts(plan, padded).ravel() if case.taps else None
            if not case.taps:  # a true norm
                flat = np.abs(flat.astype(np.float64))
            result = requested or (dtype if real else np.dtype(np.float32))
            want = reference.lp_norm(flat, windows, case.norm, case.taps, share)
            size = np.abs(flat.astype(np.float64))
            magnitude = reference.lp_norm(size, windows, float(case.norm), case.taps, share)
            # The kernel computes in the narrower of the two dtypes.
            rounded = min(result, dtype if real else result, key=lambda d: d.itemsize)
            slack = reference.norm_slack(want, magnitude, windows.taps, rounded, case.norm)
            return (want.astype(result), None), slack
        sums = reference.total(flat, windows)
        magnitude = reference.total(np.abs(flat.astype(np.float64)), windows)
        if case.reduce == "avg":
            override = kwargs.get("divisor_override")
            divisor = reference.divisors(plan, padded and "adaptive" not in case.function, override)
            magnitude = magnitude / np.abs(divisor)
            want = reference.divided(sums.astype(np.float64) if requested else sums, divisor)
            result = requested or dtype
        else:
            want, result = sums, requested or (dtype if real else sums.dtype)
        if not is_float(result):
            return (want.astype(result), None), None
        want = want.astype(np.float64)
        exact = result == np.float64 and (dtype == np.float64 or not real)
        rounded = result if not real else min(result, dtype, key=lambda d: d.itemsize)
        slack = reference.sum_slack(want, magnitude, windows.taps, rounded, exact)
        return (want.astype(result), None), slack


def same(a: Array, b: Array, zeros: bool) -> Array:
    """Where two arrays are bitwise equal; all NaNs are equal, and with `zeros` both signs of zero."""
    if not is_float(a.dtype):
        bits = f"u{a.dtype.itemsize}"
        return np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    bits = f"u{a.dtype.itemsize}"
    equal = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    equal |= np.isnan(a) & np.isnan(b)
    return equal | ((a == 0) & (b == 0)) if zeros else equal


def alike(what: str, have: Array, need: Array, slack: Array | None = None, zeros: bool = True) -> None:
    """Fail unless two arrays agree."""
    assert have.dtype == need.dtype, f"{what}: dtype {have.dtype}, not {need.dtype}"
    assert have.shape == need.shape, f"{what}: shape {have.shape}, not {need.shape}"
    agree = same(have, need, zeros)
    if slack is not None and not agree.all():
        with np.errstate(invalid="ignore"):
            distance = np.abs(have.astype(np.float64) - need.astype(np.float64))
            agree |= (distance <= slack) | (slack == inf)
    if not agree.all():
        wrong = np.argwhere(~agree)
        at = tuple(map(int, wrong[0]))
        raise AssertionError(
            f"{what}: {len(wrong)} of {have.size} differ; {have[at]}, not {need[at]}, at {at}"
        )


def compare(what: str, got: tuple[Array, ...], want: Want) -> None:
    """Fail unless results agree with the definition."""
    indexed = len(got) == 2
    alike(f"{what}: values", got[0], want.values, want.slack, zeros=not indexed)
    if indexed:
        assert want.indices is not None
        alike(f"{what}: indices", got[1], want.indices)


def equal(what: str, got: tuple[Array, ...], first: tuple[Array, ...]) -> None:
    """Fail unless two calls gave bitwise identical results."""
    for have, need in zip(got, first, strict=True):
        alike(what, have, need, zeros=len(got) == 1)


def configure(threads: int, isa: int) -> None:
    """Set the number of threads and the instruction set."""
    ndpool.set_num_threads(threads)
    name = core.isa_names()[isa]
    assert core.set_isa(name)


def check(case: Case) -> None:
    """Run a case with all its variations."""
    configure(case.threads, case.isa)
    with poisoned_results(lambda: case.result_end):
        if case.illegal:
            from fuzz.illegal import check_illegal

            return check_illegal(case)
        want = case.want or expected(case)
        first = run(case, case.values, case.layout, case.end, case.indices)
        compare("result", first, want)
        vary(case, first)
        check_parts(case, first)
        if case.out:
            check_out(case, first)
        if case.gradient:
            from fuzz.gradient import check_gradient

            check_gradient(case, want)


def vary(case: Case, first: tuple[Array, ...]) -> None:
    """Call again with another layout, number of threads and instruction set."""
    assert case.others is not None
    threads, isa, layout = case.others
    configure(threads, isa)
    got = run(case, case.values, layout, case.end, case.indices)
    equal(f"with layout {layout.tags}, {threads} threads, {core.isa()}", got, first)
    configure(case.threads, case.isa)


def check_parts(case: Case, first: tuple[Array, ...]) -> None:
    """Pooling a part of the input gives the part of the result."""
    rng = np.random.default_rng(case.seed)
    lead = [a for a in range(len(case.shape)) if a not in case.axes and case.shape[a] > 1]
    if lead and len(case.plans) < 2 and "_random_samples" not in case.kwargs:
        axis = lead[int(rng.integers(len(lead)))]
        begin = int(rng.integers(case.shape[axis]))
        end = int(rng.integers(begin, case.shape[axis])) + 1
        part = (slice(None),) * axis + (slice(begin, end),)
        at = None if case.indices is None else case.indices[part]
        if len(case.kwargs.get("output_size", ())) > len(case.axes) and case.indices is not None:
            return
        got = run(case, case.values[part], None, case.end, at)
        equal(f"{begin}:{end} of axis {axis} alone", got, tuple(a[part] for a in first))
    kwargs = case.kwargs
    sliding = "kernel_size" in kwargs or "window" in kwargs
    if not sliding or case.indices is not None or "_random_samples" in kwargs or not prod(case.outs):
        return
    if kwargs.get("ceil_mode") or "padding" in kwargs or len(first) == 2:
        return
    o = int(rng.integers(len(case.axes)))
    axis, windows = case.axes[o], case.plans[0][o]
    begin = int(rng.integers(len(windows)))
    end = int(rng.integers(begin, len(windows))) + 1
    needed = slice(windows[begin].positions[0], windows[end - 1].positions[-1] + 1)
    part, outs = ((slice(None),) * axis + (s,) for s in (needed, slice(begin, end)))
    got = run(case, case.values[part], None, case.end)
    equal(f"outputs {begin}:{end} of axis {axis} alone", got, tuple(a[outs] for a in first))


def check_out(case: Case, first: tuple[Array, ...]) -> None:
    """Calls with `out` write the results there, and nothing next to it."""
    assert case.out is not None
    targets = [
        Memory(a.shape, a.dtype, layout, case.out_end).keep()
        for a, layout in zip(first, case.out, strict=False)
    ]
    x = memory(case, case.values, case.layout, case.end)
    given = [convert(t.array, case.framework) for t in targets]
    out = tuple(given) if len(given) == 2 else given[0]
    if len(given) == 2 and case.framework == "torch" and not prod(first[0].shape):
        return  # empty tensors share their null address
    result = invoke(case, convert(x.array, case.framework), out=out)
    x.check("the input")
    for target in targets:
        target.check("out", written=True)
    same_objects = result is out if len(given) == 1 else all(a is b for a, b in zip(result, out, strict=True))
    assert same_objects, "out was not returned"
    equal(f"in out={[layout.tags for layout in case.out[: len(given)]]}", arrays(result), first)


def tags(case: Case) -> dict[str, list[str]]:
    """The properties of a case, for the counts."""
    found = {
        "function": [case.function],
        "reduction": [case.reduce],
        "framework": [case.framework],
        "dtype": [case.dtype.name],
        "layout": [
            *case.layout.tags,
            *(f"out {tag}" for layout in (case.out or ())[:1] for tag in layout.tags),
        ],
        "instruction set": [core.isa_names()[case.isa]],
        "threads": [str(case.threads)],
        "kind": ["illegal arguments"] if case.illegal else ["gradient"] * case.gradient + ["forward"],
    }
    return found
