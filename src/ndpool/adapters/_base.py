"""What adapters share: open the arrays of a call, run it on what is inside, close the results.

An adapter says how one array is opened and closed. One that also translates arguments, as named dimensions,
overrides the calls themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ndpool._arguments import input_name
from ndpool._call import PLAIN, Asked, Call, Function, Unpool
from ndpool._dispatch import framework_of

_NOTHING: AbstractContextManager[Any] = nullcontext()


class Adapter:
    """How arrays of one kind are pooled as arrays of another."""

    plain = False  # whether an array is nothing but its memory, so that it can be a block of a larger one

    def open(self, fn: str, name: str, x: Any) -> Any:
        """What is inside an array, without a copy where that is possible."""
        raise NotImplementedError

    def close(self, fn: str, x: Any, result: Any) -> Any:
        """One result as an array of the kind of `x`."""
        raise NotImplementedError

    def open_out(self, fn: str, name: str, out: Any) -> Any:
        """The memory of an array to write to."""
        return self.open(fn, name, out)

    def dtype(self, fn: str, x: Any, dtype: Any) -> Any:
        """A dtype asked for, as the framework of what is inside names it."""
        return dtype

    def scope(self, x: Any) -> AbstractContextManager[Any]:
        """What is in force while kernels start."""
        return _NOTHING

    def pool(
        self,
        run: Callable[..., Any],
        function: Function,
        x: Any,
        arguments: tuple[Any, ...],
        indices: Any,
        asked: Asked,
    ) -> Any:
        """`_run.run` for an array of this kind."""
        fn = function.name
        inside = self.open(fn, input_name(fn), x)
        out = asked.out
        if asked is not PLAIN:
            asked = self.opened(fn, x, asked)
        with self.scope(x):
            result = run(function, inside, arguments, indices, asked)
        return self.closed(fn, x, result) if out is None else out

    def fractional(
        self,
        run: Callable[..., Any],
        function: Function,
        x: Any,
        arguments: tuple[Any, ...],
        indices: Any,
        samples: Any,
        generator: Any,
    ) -> Any:
        """`_run.run_fractional` for an array of this kind."""
        fn = function.name
        inside = self.open(fn, input_name(fn), x)
        if samples is not None:
            samples = self.open(fn, "_random_samples", samples)
        with self.scope(x):
            result = run(function, inside, arguments, indices, samples, generator)
        return self.closed(fn, x, result)

    def unpool(
        self,
        run: Callable[..., Any],
        fn: str,
        values: Any,
        indices: Any,
        n_axes: int,
        arguments: tuple[Any, ...],
    ) -> Any:
        """`_run.run_unpool` for arrays of this kind."""
        inside, places = self.open(fn, input_name(fn), values), self.open(fn, "indices", indices)
        with self.scope(values):
            result = run(fn, inside, places, n_axes, arguments)
        return self.close(fn, values, result)

    def general_unpool(
        self, run: Callable[..., Any], values: Any, indices: Any, output_size: Any, axes: Any
    ) -> Any:
        """`_run.run_general_unpool` for arrays of this kind."""
        fn = "unpool"
        inside, places = self.open(fn, input_name(fn), values), self.open(fn, "indices", indices)
        with self.scope(values):
            result = run(inside, places, output_size, axes)
        return self.close(fn, values, result)

    def opened(self, fn: str, x: Any, asked: Asked) -> Asked:
        """What was asked for, with dtype and `out` opened."""
        dtype, out, divisor, norm = asked
        if dtype is not None:
            dtype = self.dtype(fn, x, dtype)
        if isinstance(out, tuple):
            out = tuple(self.open_out(fn, f"out[{i}]", target) for i, target in enumerate(out))
        elif out is not None:
            out = self.open_out(fn, "out", out)
        return Asked(dtype, out, divisor, norm)

    def closed(self, fn: str, x: Any, result: Any) -> Any:
        """A result or a pair of them as arrays of the kind of `x`."""
        if isinstance(result, tuple):
            return tuple([self.close(fn, x, part) for part in result])
        return self.close(fn, x, result)


class Adapted:
    """An adapter as a framework, for calls that are already made: blocks of a larger array, coordinates."""

    quick = None
    traced = None

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter

    @staticmethod
    def plain(x: Any) -> bool:
        """There are no prepared calls."""
        return False

    def run(self, call: Call, x: Any) -> Any:
        """Pool what is inside `x`."""
        fn, adapter = call.function, self.adapter
        inside = adapter.open(fn, input_name(fn), x)
        asked = adapter.opened(fn, x, Asked(call.dtype, call.out))
        with adapter.scope(x):
            result = framework_of(fn, inside).run(call._replace(dtype=asked.dtype, out=asked.out), inside)
        return adapter.closed(fn, x, result) if call.out is None else call.out

    def fractional(self, call: Call, x: Any, samples: Any, generator: Any) -> Any:
        """Pool what is inside `x`, over windows that random samples place."""
        fn, adapter = call.function, self.adapter
        inside = adapter.open(fn, input_name(fn), x)
        if samples is not None:
            samples = adapter.open(fn, "_random_samples", samples)
        with adapter.scope(x):
            result = framework_of(fn, inside).fractional(call, inside, samples, generator)
        return adapter.closed(fn, x, result)

    def unpool(self, call: Unpool, values: Any, indices: Any) -> Any:
        """Unpool what is inside `values`."""
        fn, adapter = call.function, self.adapter
        inside, places = adapter.open(fn, input_name(fn), values), adapter.open(fn, "indices", indices)
        with adapter.scope(values):
            result = framework_of(fn, inside).unpool(call, inside, places)
        return adapter.close(fn, values, result)
