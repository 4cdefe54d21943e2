"""ONNX models of single poolings, without PyTorch.

`export_pool` writes one pooling as a small ONNX model of standard operators, and needs the package onnx
alone. Models of PyTorch are exported by `torch.onnx.export`, which needs nothing from here. The operators
that a pooling becomes are chosen in `_lowering`.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from typing import Any, NamedTuple

from ndpool import _lowering, geometry
from ndpool._arguments import check_flag, check_int, check_range, count_axes, normalize_axes, show
from ndpool._policy import arithmetic, check_divisor, check_norm
from ndpool.reductions import find

__all__ = ["export_pool"]

_FN = "export_pool"
_OLDEST = 8  # the first opset whose MaxPool has indices
_PROBE = 2**20  # stands for an unknown size where arguments are checked

Ints = int | Sequence[int]


def export_pool(
    shape: Sequence[int | str | None],
    window: Ints | None = None,
    path: str | PathLike[str] | None = None,
    *,
    output_size: int | Sequence[int | None] | None = None,
    reduce: str = "max",
    stride: Ints | None = None,
    padding: Any = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    axes: Ints | None = None,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    norm_type: float = 2.0,
    return_indices: bool = False,
    dtype: str = "float32",
    opset: int = 18,
) -> Any:
    """
    One pooling as an ONNX model of standard operators.

    The model computes `ndpool.pool`, or `ndpool.adaptive_pool` if `output_size` is given, of its input ``x``;
    its outputs are ``y`` and, with `return_indices`, ``indices``. It has no attribute ``ceil_mode``, which
    runtimes read differently: padding is explicit there.

    Parameters
    ----------
    shape : sequence of int, str or None
        Shape of the input. A string names a size that is known only when the model runs; so does None,
        without a name.
    window : int or sequence of int, default None
        Window size along each pooled axis, as in `pool`.
    path : path, default None
        File to write the model to.
    output_size : int or sequence of int or None, default None
        Output size along each pooled axis, as in `adaptive_pool`; instead of `window`.
    reduce : {"max", "min", "avg", "sum", "lp"}, default "max"
        Reduction applied to each window.
    stride, padding, dilation, ceil_mode, axes, count_include_pad, divisor_override, norm_type
        As in `pool`.
    return_indices : bool, default False
        Whether the model also has the int64 index of each max or min in the flattened plane.
    dtype : str, default "float32"
        Dtype of the input: a floating point type, bool or integers of up to 32 bits.
    opset : int, default 18
        Version of ONNX's operators.

    Returns
    -------
    onnx.ModelProto
        The model, checked by `onnx.checker`.

    Examples
    --------
    >>> import ndpool.onnx
    >>> model = ndpool.onnx.export_pool(("N", 3, "H", "W"), (3, 3), stride=2, padding=1)
    >>> [node.op_type for node in model.graph.node]
    ['MaxPool']
    >>> model = ndpool.onnx.export_pool((1, 3, "H", "W"), output_size=(1, 1), reduce="avg")
    >>> [node.op_type for node in model.graph.node]
    ['ReduceMean']
    """
    if (window is None) == (output_size is None):
        raise ValueError(
            f"{_FN}: one of window and output_size must be given; "
            f"got window={show(window)}, output_size={show(output_size)}"
        )
    sliding = (window, stride, padding, dilation, ceil_mode, count_include_pad)
    if output_size is not None and (*sliding, divisor_override) != (None, None, 0, 1, False, True, None):
        raise ValueError(
            f"{_FN}: stride, padding, dilation, ceil_mode, count_include_pad and divisor_override are for "
            f"window=; got one with output_size="
        )
    asked = _Asked(
        function="pool" if output_size is None else "adaptive_pool",
        shape=_check_shape(shape),
        arguments=sliding if output_size is None else (output_size,),
        axes=axes,
        reduce=reduce,
        divisor=divisor_override,
        norm=norm_type,
        indices=check_flag(_FN, "return_indices", return_indices),
        dtype=_check_dtype(dtype),
        opset=_check_opset(opset),
    )
    try:
        model = _model(asked)
    except (ValueError, TypeError, MemoryError) as error:
        # Windows are checked in the name of the function that the model computes.
        prefix = f"{asked.function}: "
        if str(error).startswith(prefix):
            raise type(error)(f"{_FN}: {str(error).removeprefix(prefix)}") from None
        raise
    if path is not None:
        import onnx

        onnx.save(model, fspath(path))
    return model


class _Asked(NamedTuple):
    """The arguments of `export_pool`."""

    function: str
    shape: tuple[int | str | None, ...]
    arguments: tuple[Any, ...]  # those of `geometry.plan`
    axes: Any
    reduce: Any
    divisor: Any
    norm: Any
    indices: bool
    dtype: str
    opset: int


def _check_shape(shape: object) -> tuple[int | str | None, ...]:
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise TypeError(f"{_FN}: shape must be a sequence of sizes and names; got shape={show(shape)}")
    sizes: list[int | str | None] = []
    for size in shape:
        if size is None or isinstance(size, str):
            sizes.append(size)
        else:
            sizes.append(check_range(_FN, "shape", check_int(_FN, "shape", size), 0))
    return tuple(sizes)


def _check_dtype(dtype: object) -> str:
    if not isinstance(dtype, str) or dtype not in _lowering.COMPUTE:
        raise TypeError(
            f"{_FN}: dtype must be the name of a dtype that runtimes pool; got dtype={dtype!r} "
            f"(supported: {', '.join(_lowering.COMPUTE)})"
        )
    return dtype


def _check_opset(opset: object) -> int:
    from onnx.defs import onnx_opset_version

    newest = onnx_opset_version()
    version = check_int(_FN, "opset", opset)
    if not _OLDEST <= version <= newest:
        raise ValueError(
            f"{_FN}: opset must be from {_OLDEST} to {newest}, the newest of this onnx; got opset={version}"
        )
    return version


def _model(asked: _Asked) -> Any:
    """The checked model."""
    import onnx
    from onnx import helper

    from ndpool._onnx_graph import Nodes, tensor_type

    reduction = find(asked.function, asked.reduce)
    if asked.indices and not reduction.has_index:
        raise ValueError(f"{_FN}: return_indices is for max and min; got it with reduce={asked.reduce!r}")
    if asked.divisor is not None and (reduction.norm or not reduction.divides):
        raise ValueError(f"{_FN}: divisor_override is for averages; got it with reduce={asked.reduce!r}")
    divisor = check_divisor(_FN, asked.divisor)
    norm = check_norm(_FN, asked.norm) if reduction.norm else 0.0
    how = arithmetic(asked.function, reduction, asked.dtype, None, divisor, float(norm))
    named = "window" if asked.function == "pool" else "output_size"
    n_axes = count_axes(_FN, named, asked.arguments[0], asked.axes)
    axes = normalize_axes(_FN, asked.axes, len(asked.shape), n_axes)
    outs = _outputs(asked, axes)
    nodes = Nodes(_FN, asked.opset)
    x: Any = nodes.input("x", asked.dtype, asked.shape)
    sizes = tuple(nodes.size(x, a) for a in axes)
    windows = _windows(asked, sizes)
    pooled = x
    if how.magnitudes:
        pooled = abs(x)
        pooled.shape = x.shape
    job = _lowering.Job(
        asked.function,
        how.reduction.name,
        axes,
        sizes,
        windows,
        how.result,
        divisor,
        float(norm) if how.reduction.norm else 0.0,
        asked.indices,
    )
    results = _lowering.pool(nodes, pooled, job)
    results = results if asked.indices else (results,)
    shape = [outs[axes.index(a)] if a in axes else size for a, size in enumerate(asked.shape)]
    outputs = []
    for name, value in zip(("y", "indices"), results, strict=False):
        nodes.rename(value, name)
        outputs.append(helper.make_tensor_value_info(name, tensor_type(value.dtype), shape))
    graph = helper.make_graph(
        nodes.used([output.name for output in outputs]),
        f"{asked.function}_{asked.reduce}",
        [helper.make_tensor_value_info("x", tensor_type(asked.dtype), asked.shape)],
        outputs,
        nodes.initializers(),
    )
    opsets = [helper.make_opsetid("", asked.opset)]
    model = helper.make_model(
        graph,
        producer_name="ndpool",
        opset_imports=opsets,
        # The oldest that reads this opset, from the first that needs no inputs for constants.
        ir_version=max(4, helper.find_min_ir_version_for(opsets)),
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _windows(asked: _Asked, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The windows as in `geometry.flatten`, with values for sizes that are unknown."""
    if asked.function == "adaptive_pool":
        wanted = geometry.check_adaptive(_FN, len(sizes), asked.arguments[0], False)
        return tuple(size if out is None else out for size, out in zip(sizes, wanted, strict=True))
    _, stride, padding, *_ = asked.arguments
    known = all(isinstance(size, int) for size in sizes)
    if padding in ("same", "same_lower") and not known and stride not in (1, (1,) * len(sizes)):
        raise ValueError(
            f"{_FN}: padding={padding!r} with a stride other than 1 depends on the input's size, which shape "
            f"must give; got stride={show(stride)} with shape={show(asked.shape)}"
        )
    return geometry.flatten(asked.function, sizes, asked.arguments, False)


def _outputs(asked: _Asked, axes: Sequence[int]) -> list[int | None]:
    """The output sizes that are known; raises for arguments that no size allows."""
    given = [asked.shape[a] for a in axes]
    probes = tuple(size if isinstance(size, int) else _PROBE for size in given)
    plan = geometry.plan(asked.function, probes, asked.arguments, False)
    fixed = asked.function == "adaptive_pool"
    wanted = geometry.check_adaptive(_FN, len(axes), asked.arguments[0], False) if fixed else ()
    return [
        out if isinstance(size, int) or (fixed and wanted[i] is not None) else None
        for i, (size, out) in enumerate(zip(given, plan.out, strict=True))
    ]
