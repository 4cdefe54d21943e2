"""Calls with one wrong argument: they raise ValueError, TypeError or MemoryError, or return a result.

They must not crash, raise anything else, or change their input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cases import pick
from fences import lay
from fuzz.call import convert, invoke, memory
from fuzz.case import Case, Rng

NUMBERS = [0, -1, -7, 2.0, 2.5, True, None, "2", "same", b"2", 2**31 - 1, 2**31, 2**63, -(2**63), 10**30]
NUMBERS += [float("nan"), float("inf"), (), (1,), [2, 2], (1, 2, 3, 4, 5, 6, 7), (0, 1), (-1, 2), (2, None)]
NUMBERS += [np.int8(3), np.float64(2), np.array(2), np.array([2, 3]), {"a": 1}, object(), "max", 1j]
SMALL = [n for n in NUMBERS if not (isinstance(n, int) and n > 2**20)]
ALLOWED = (ValueError, TypeError, MemoryError)


def broken(rng: Rng, case: Case, x: Any, indices: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The arguments with one of them replaced by a wrong one."""
    more: dict[str, Any] = {}
    way = int(rng.integers(10))
    if way < 6:
        keys = [*case.kwargs, "padding", "stride", "dilation", "axes", "reduce", "nonsense"]
        key = pick(rng, keys)
        # A legal but enormous output size would only fill the memory.
        more[key] = pick(rng, SMALL if key in ("output_size", "padding") else NUMBERS)
    elif way < 8:
        shape = list(case.outs)
        if shape:
            shape[int(rng.integers(len(shape)))] += int(rng.choice([-1, 1]))
        targets: list[Any] = [
            np.zeros([max(0, s) for s in shape], case.dtype),
            np.zeros(case.outs, np.int16),
            np.zeros(case.outs, case.dtype)[..., None],
            (np.zeros(case.outs, case.dtype),),
            (np.zeros(case.outs, case.dtype), np.zeros(case.outs, np.int32)),
            [1, 2],
            "out",
            np.broadcast_to(np.zeros((), case.dtype), case.outs),
        ]
        target = pick(rng, targets)
        more["out"] = (
            tuple(convert(t.copy(), case.framework) for t in target)
            if isinstance(target, tuple)
            else convert(target, case.framework)
        )
    elif indices is not None:
        flat = np.array(case.indices)
        wrong = [-1, int(np.prod(case.sizes)), -(2**63), 2**63 - 1]
        if flat.size:
            flat.reshape(-1)[int(rng.integers(flat.size))] = pick(rng, wrong)
        options = [flat, flat.astype(np.float32), flat[..., :0], flat[..., None], list(range(3)), None]
        indices = convert(pick(rng, options), case.framework)
    else:
        values = case.values
        options = [values[..., None, None, None, None], values.astype(np.complex64), values.reshape(-1)]
        options += [[[1.0, 2.0]], None, "x", values[..., :0], np.float32(3), values.astype(object)]
        if case.layer and case.framework == "torch":
            options = [options[0], options[2]]  # modules pass unsupported inputs to PyTorch
        chosen = pick(rng, options)
        numeric = isinstance(chosen, np.ndarray) and chosen.dtype != object
        x = convert(chosen, case.framework) if numeric else chosen
    return x, indices, more


def check_illegal(case: Case) -> None:
    """Check a call with a wrong argument."""
    rng = np.random.default_rng(case.illegal)
    x = memory(case, case.values, case.layout, case.end)
    at = None if case.indices is None else lay(case.indices, case.indices_layout, case.end)
    given = convert(x.array, case.framework)
    indices = None if at is None else convert(at.array, case.framework)
    given, indices, more = broken(rng, case, given, indices)
    try:
        invoke(case, given, indices, **more)
    except ALLOWED:
        pass
    except RuntimeError as error:
        # PyTorch's allocator raises RuntimeError.
        if case.framework != "torch" or not any(w in str(error) for w in ("memory", "Storage size")):
            raise AssertionError(f"with {more or 'another array'}: {error!r}") from error
    except Exception as error:
        raise AssertionError(f"with {more or 'another array'}: {error!r}") from error
    x.check("the input")
