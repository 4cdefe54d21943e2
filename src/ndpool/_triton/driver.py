"""Start compiled kernels through the CUDA driver, with all arguments packed once except addresses of arrays.

Triton's own launcher converts every argument on every call, several times the work of the launch itself, and
some versions call a C compiler for it. Called by `launch`, which falls back to Triton's launcher where
`starter` returns None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from struct import pack
from typing import Any

import triton

# Versions of Triton whose kernels take their arguments and then two addresses, of scratch memory, whose
# metadata have the sizes of that memory, and whose driver loads a binary as `_loaded` expects.
_KNOWN = ((3, 6), (3, 9))
_SERIALIZATION = 6  # the attribute that allows programmatic dependent launch
_CODES = {"i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q"}
_CODES |= {"fp32": "f", "fp64": "d"}  # of `struct`, whose alignment is that of kernels
_BUFFER, _SIZE, _END = 1, 2, 0  # what tells the driver that all arguments are in one buffer
_SCRATCH = 2  # addresses; null for kernels that need no such memory
_INVALID_CONTEXT = 201


class _Attribute(ctypes.Structure):
    """`CUlaunchAttribute`."""

    _fields_ = [("id", ctypes.c_int), ("value", ctypes.c_int64 * 8)]


class _Config(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("n_attributes", ctypes.c_uint),
    ]


@cache
def _driver() -> ctypes.CDLL | None:
    """The library that PyTorch has loaded, if it has this way to launch kernels of this version of Triton."""
    version = tuple(map(int, triton.__version__.split(".")[:2]))
    if not _KNOWN[0] <= version <= _KNOWN[1]:
        return None
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return library if hasattr(library, "cuLaunchKernelEx") else None


def _flat(values: Any) -> Iterator[Any]:
    """The elements of nested tuples, in order."""
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def starter(
    made: Any, grid: tuple[int, int, int], values: Sequence[Any], n_arrays: int = 3
) -> Callable[..., None] | None:
    """Function of a stream and addresses of arrays that starts a kernel; None for kernels of another form.

    `values` are the arguments after the arrays, in the order of the kernel's signature, constants
    included.
    """
    library = _driver()
    if library is None:
        return None
    about = made.metadata
    kinds = list(_flat(tuple(made.src.signature.values())))
    scratch = about.global_scratch_size or about.profile_scratch_size
    if about.num_ctas != 1 or about.launch_cooperative_grid or scratch:
        return None
    codes, fixed = "Q" * n_arrays, [0] * n_arrays
    for kind, value in zip(kinds[n_arrays:], _flat(tuple(values)), strict=True):
        pointer = isinstance(kind, str) and kind.startswith("*")
        if not pointer and kind not in _CODES and kind != "constexpr":
            return None
        if kind != "constexpr":
            codes += "Q" if pointer else _CODES[kind]
            fixed.append(value)
    packed = pack(codes + "Q" * _SCRATCH, *fixed, *[0] * _SCRATCH)
    kernel = _loaded(made, triton.runtime.driver.active.get_current_device())
    if kernel is None:
        return None
    context = ctypes.c_void_p()
    library.cuCtxGetCurrent(ctypes.byref(context))
    function, size = ctypes.c_void_p(kernel), ctypes.c_size_t(len(packed))
    padded = packed + bytes(-len(packed) % 8)
    attributes = (_Attribute * 1)()
    attributes[0].id, attributes[0].value[0] = _SERIALIZATION, 1
    block = (32 * about.num_warps, 1, 1)
    launch = library["cuLaunchKernelEx"]
    free: list[list[Any]] = []
    take, give = free.pop, free.append

    def new() -> list[Any]:
        words = (ctypes.c_uint64 * (len(padded) // 8)).from_buffer_copy(padded)
        config = _Config(
            grid, block, about.shared, None, ctypes.addressof(attributes), int(bool(about.launch_pdl))
        )
        given = (_BUFFER, ctypes.addressof(words), _SIZE, ctypes.addressof(size), _END)
        pointers = (ctypes.c_void_p * len(given))(*given)
        # Arguments that need no conversion.
        reference, arguments = (ctypes.c_void_p(ctypes.addressof(a)) for a in (config, pointers))
        return [None, words, config, reference, arguments, pointers]

    def start(stream: int, x: int, y: int, extra: int, *more: int) -> None:
        # Each call has its own memory for what changes: several threads may start the same kernel.
        try:
            memory = take()
        except IndexError:
            memory = new()
        last, words, config, reference, arguments, _ = memory
        words[0], words[1], words[2] = x, y, extra
        if more:
            words[3:n_arrays] = more
        if stream != last:
            config.stream = memory[0] = stream
        error = launch(reference, function, None, arguments)
        if error == _INVALID_CONTEXT:  # a thread has none before its first call of the CUDA runtime
            library.cuCtxSetCurrent(context)
            error = launch(reference, function, None, arguments)
        give(memory)
        if error:
            raise RuntimeError(f"ndpool: the CUDA driver could not start a kernel: {_text(library, error)}")

    return start


@cache  # a kernel is loaded once, however many sizes start it
def _loaded(made: Any, device: int) -> int | None:
    """The kernel, on the current device; None where Triton's launcher has to say what is wrong."""
    active = triton.runtime.driver.active
    if made.metadata.shared > active.utils.get_device_properties(device)["max_shared_mem"]:
        return None
    found = active.utils.load_binary(made.name, made.kernel, made.metadata.shared, device)
    _, function, _, _, threads = found
    return int(function) if 32 * made.metadata.num_warps <= threads else None


def _text(library: ctypes.CDLL, error: int) -> str:
    found = ctypes.c_char_p()
    library.cuGetErrorString(error, ctypes.byref(found))
    return f"{(found.value or b'unknown error').decode()} ({error})"
