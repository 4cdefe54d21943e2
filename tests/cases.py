"""Random legal calls of the named pooling functions, with adversarial values and memory layouts.

A ``Case`` is one call: name, input values, memory layout and arguments, all determined by the random
generator. It can call PyTorch and the oracle, and ``assert_same`` compares two results. Illegal arguments
are not drawn, and the package under test is not imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

import oracle
from oracle import Array, DType, entries, is_float

if TYPE_CHECKING:
    import torch

ORDER = {
    "max_pool": ["kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"],
    "avg_pool": ["kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"],
    "lp_pool": ["norm_type", "kernel_size", "stride", "ceil_mode"],
    "adaptive_max_pool": ["output_size", "return_indices"],
    "adaptive_avg_pool": ["output_size"],
    "max_unpool": ["indices", "kernel_size", "stride", "padding", "output_size"],
    "fractional_max_pool": [
        "kernel_size",
        "output_size",
        "output_ratio",
        "return_indices",
        "_random_samples",
    ],
}
DEFAULTS = {
    "padding": 0,
    "dilation": 1,
    "ceil_mode": False,
    "count_include_pad": True,
    "return_indices": False,
}
NAMES = [f"{family}{n}d" for family in ORDER for n in (1, 2, 3) if (family, n) != ("fractional_max_pool", 1)]

# Layer -> constructor arguments that are invalid for every input. Functions reject them too.
_WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 0},
    {"kernel_size": 2**31},
    {"kernel_size": 2.0},
    {"kernel_size": None},
    {"kernel_size": (2, 2, 2, 2)},
    {"kernel_size": 2, "stride": 0},
    {"kernel_size": 2, "stride": True},
    {"kernel_size": 2, "stride": (1, 1, 1, 1)},
]
_PADDED = [
    *_WINDOWS,
    {"kernel_size": 2, "padding": -1},
    {"kernel_size": 2, "padding": 0.5},
    {"kernel_size": 2, "padding": (1, 1, 1, 1)},
]
_LIMITED = [*_PADDED, {"kernel_size": 3, "padding": 2}, {"kernel_size": 2, "ceil_mode": np.ones(2)}]
_DILATED: list[dict[str, Any]] = [{"kernel_size": 2, "dilation": wrong} for wrong in (0, -1, 1.5, (1,) * 4)]
_ADAPTIVE: list[dict[str, Any]] = [
    {"output_size": wrong} for wrong in (-1, 2.0, True, (2,) * 4, (), None, {2})
]
WRONG: dict[str, list[dict[str, Any]]] = {
    "MaxPool": [*_LIMITED, *_DILATED, {"kernel_size": 2, "return_indices": np.ones(2)}],
    "AvgPool": [
        *_LIMITED,
        {"kernel_size": 2, "count_include_pad": np.ones(2)},
        {"kernel_size": 2, "divisor_override": 0},
        {"kernel_size": 2, "divisor_override": 1.5},
    ],
    "LPPool": [
        *({"norm_type": 2, **wrong} for wrong in _WINDOWS),
        {"norm_type": 0, "kernel_size": 2},
        {"norm_type": True, "kernel_size": 2},
        {"norm_type": None, "kernel_size": 2},
    ],
    "AdaptiveMaxPool": [*_ADAPTIVE, {"output_size": 2, "return_indices": np.ones(2)}],
    "AdaptiveAvgPool": _ADAPTIVE,
    "MaxUnpool": [*_PADDED, *_DILATED],
    "FractionalMaxPool": [
        *({"kernel_size": wrong, "output_size": 2} for wrong in (0, 2.0, (2,))),
        *({"kernel_size": 2, "output_size": wrong} for wrong in (-1, 2.0, (2,))),
        {"kernel_size": 2, "output_size": 2, "return_indices": np.ones(2)},
    ],
}

BOOL = np.dtype(np.bool_)
INTEGERS = [np.dtype(f"{kind}{width}") for kind in "iu" for width in (1, 2, 4, 8)]
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
SINGLES = [np.dtype(np.float32), np.dtype(np.float64)]
DTYPES = [BOOL, *INTEGERS, *HALVES, *SINGLES]


def torch_dtypes(family: str, n: int) -> list[DType]:
    """The dtypes that PyTorch's CPU kernels support."""
    if family == "max_pool":
        return [d for d in DTYPES if d.kind == "i" or d == np.uint8 or is_float(d)]
    if family in ("avg_pool", "lp_pool"):
        whole = [np.dtype(np.int64), BOOL] if family == "lp_pool" else [np.dtype(np.int64)]
        return whole + SINGLES if n == 3 else whole + HALVES + SINGLES
    return HALVES + SINGLES


def moved(x: Array, source: int, target: int) -> Array:
    """The same array with one axis at another position in memory."""
    return np.moveaxis(np.moveaxis(x, source, target).copy(), target, source)


def sliced(x: Array) -> Array:
    """Every other element of a larger array whose other elements are larger than any value."""
    poison = oracle.extremum_of_nothing(x.dtype, least=True)
    base = np.full((*(size + 1 for size in x.shape[:-1]), 2 * x.shape[-1] + 1), poison, x.dtype)
    view = base[(*(slice(1, None) for _ in x.shape[:-1]), slice(1, None, 2))]
    view[...] = x
    return view


def reversed_strides(x: Array) -> Array:
    """A view with negative strides only."""
    turned = (slice(None, None, -1),) * x.ndim
    return x[turned].copy()[turned]


def readonly(x: Array) -> Array:
    """A read-only copy."""
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS: dict[str, Callable[[Array, int], Array]] = {
    "contiguous": lambda x, n: x.copy(),
    "channels_last": lambda x, n: moved(x, -n - 1, -1),
    "transposed": lambda x, n: moved(x, -1, -2),
    "fortran": lambda x, n: x.copy("F"),
    "sliced": lambda x, n: sliced(x),
    "reversed": lambda x, n: reversed_strides(x),
    "broadcast_first": lambda x, n: np.broadcast_to(x[:1].copy(), x.shape),
    "broadcast_last": lambda x, n: np.broadcast_to(x[..., :1].copy(), x.shape),
    "readonly": lambda x, n: readonly(x),
}


def to_torch(x: Array) -> torch.Tensor:
    """A tensor over the same memory, or over a copy if strides are negative."""
    import torch

    x = x.copy("K") if min(x.strides, default=0) < 0 else x
    with warnings.catch_warnings():
        # PyTorch has no read-only tensors and warns about read-only arrays.
        warnings.simplefilter("ignore", UserWarning)
        if x.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(x)


def from_torch(x: torch.Tensor) -> Array:
    """The array over a tensor's memory."""
    import torch

    if x.dtype == torch.bfloat16:
        return x.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.detach().numpy()


def unpool_sizes(sizes: Sequence[int], kernel: Any, stride: Any, padding: Any) -> list[int]:
    """The default output sizes of unpooling."""
    n = len(sizes)
    axes = zip(
        sizes, kernel, kernel if stride is None else entries(stride, n), entries(padding, n), strict=True
    )
    return [(out - 1) * s + k - 2 * p for out, k, s, p in axes]


def as_tuple(result: Any) -> tuple[Any, ...]:
    """A result as a tuple, for functions that return one array or several."""
    return result if isinstance(result, tuple) else (result,)


@dataclass(frozen=True, eq=False)
class Case:
    """One call of a named function: ``name(array(), *args, **kwargs)``."""

    name: str
    values: Array = field(repr=False)
    layout: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        return f"{self!r} on {self.values.dtype}{self.values.shape}:\n{self.array()!r}"

    @property
    def family(self) -> str:
        """The name without the number of dimensions."""
        return self.name[:-2]

    @property
    def n(self) -> int:
        """The number of pooled axes."""
        return int(self.name[-2])

    @property
    def named(self) -> dict[str, Any]:
        """All arguments by name, defaults included."""
        order = ORDER[self.family]
        return (
            {key: DEFAULTS.get(key) for key in order}
            | dict(zip(order, self.args, strict=False))
            | self.kwargs
        )

    def array(self) -> Array:
        """A fresh input in the layout of the case."""
        return LAYOUTS[self.layout](self.values, self.n)

    def operands(self) -> dict[str, Any]:
        """The arguments of the oracle's function of the same family."""
        a, n, sizes = self.named, self.n, self.values.shape[-self.n :]
        a.pop("return_indices", None)
        if "kernel_size" in a:
            a["kernel"] = entries(a.pop("kernel_size"), n)
        if self.family == "max_unpool":
            outs = a["output_size"] or unpool_sizes(sizes, a["kernel"], a["stride"], a["padding"])
            return {"indices": a["indices"], "output_size": outs[-n:]}
        if self.family == "fractional_max_pool":
            ratio, samples = a.pop("output_ratio"), a.pop("_random_samples")
            outs = a["output_size"] or [int(size * r) for size, r in zip(sizes, ratio, strict=True)]
            return a | {"output_size": entries(outs, n), "samples": samples}
        return a | {"output_size": entries(a["output_size"], n)} if "output_size" in a else a

    def solve(self, x: Array | None = None) -> tuple[Array, ...]:
        """The oracle's results including indices, for the input of the case or another one."""
        return as_tuple(getattr(oracle, self.family)(self.array() if x is None else x, **self.operands()))

    def call_oracle(self) -> tuple[Array, ...]:
        """The oracle's results as the call returns them."""
        return self.solve() if self.named.get("return_indices") else self.solve()[:1]

    def call_torch(self) -> tuple[Array, ...]:
        """The results of ``torch.nn.functional``."""
        from torch.nn import functional

        return tuple(map(from_torch, self.call_tensor(functional, to_torch(self.array()))))

    def oracle_gradient(self, grad: Array) -> Array:
        """The oracle's gradient of the input, given that of the values."""
        sizes = self.values.shape[-self.n :]
        if self.family == "max_unpool":
            return oracle.max_unpool_backward(grad, self.named["indices"], self.n)
        if self.family in ("avg_pool", "adaptive_avg_pool", "lp_pool"):
            shape = self.array() if self.family == "lp_pool" else sizes
            return getattr(oracle, f"{self.family}_backward")(grad, shape, **self.operands())
        return oracle.max_pool_backward(grad, self.solve()[1], sizes)

    def torch_gradient(self, grad: Array) -> Array:
        """PyTorch's gradient of the input."""
        from torch.nn import functional

        x = to_torch(self.array()).clone().requires_grad_()
        self.call_tensor(functional, x)[0].backward(to_torch(grad))
        assert x.grad is not None
        return from_torch(x.grad)

    def call_tensor(self, module: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results of a module's function for a tensor, with the other arrays converted to tensors."""
        args = [to_torch(a) if isinstance(a, np.ndarray) else a for a in self.args]
        kwargs = {key: to_torch(a) if isinstance(a, np.ndarray) else a for key, a in self.kwargs.items()}
        return as_tuple(getattr(module, self.name)(x, *args, **kwargs))

    def in_float64(self) -> Case:
        """The same call with float64 arrays."""

        def real(a: Any) -> Any:
            return a.astype(np.float64) if isinstance(a, np.ndarray) and is_float(a.dtype) else a

        kwargs = {key: real(a) for key, a in self.kwargs.items()}
        return replace(
            self, values=self.values.astype(np.float64), args=tuple(map(real, self.args)), kwargs=kwargs
        )

    @property
    def taps(self) -> int:
        """The maximum number of elements in a window."""
        a, n = self.named, self.n
        if "kernel_size" in a:
            return prod(entries(a["kernel_size"], n))
        plan = oracle.adaptive_plan(self.values.shape, entries(a["output_size"], n))
        return int(oracle.counts(plan, padded=False).max(initial=1))

    def tolerance(self, want: Array) -> Array | None:
        """The allowed error of each value, or None if values must be exact.

        A sum may have one rounding of the sum of magnitudes per tap, in float32 or better. Lp pooling may
        also round powers, mean and exponent to the dtype of the result.
        """
        power = self.named.get("norm_type", 1)
        averages = "avg" in self.name or self.family == "lp_pool"
        if not averages or not is_float(want.dtype) or abs(power) == inf:
            return None
        eps, tiny = (
            float(getattr(ml_dtypes.finfo(want.dtype), key)) for key in ("eps", "smallest_subnormal")
        )
        rounding = (self.taps + 4) * (eps if want.dtype == np.float64 else float(np.finfo(np.float32).eps))
        want = want.astype(np.float64)
        with np.errstate(all="ignore"):
            magnitude = np.abs(self.solve(np.abs(self.array().astype(np.float64)))[0])
            if self.family != "lp_pool":
                return rounding * magnitude + eps * np.abs(want) + tiny
            sums = want**power
            slip = (rounding + 4 * eps) * magnitude**power + 4 * self.taps * tiny
            ends = np.where(sums < 0, sums - slip, np.maximum(sums - slip, 0)), sums + slip
            spans = [np.nan_to_num(np.abs(end ** (1 / power) - want), posinf=0) for end in ends]
            exponent = np.nan_to_num(np.log(np.abs(sums)) / power, posinf=0, neginf=0)
            return np.maximum(*spans) + (4 + np.abs(exponent)) * eps * np.abs(want) + tiny


def same_bits(got: Array, want: Array, zeros: bool = False) -> Array:
    """Where arrays of one dtype are bitwise equal; all NaNs are equal, with `zeros` both signs of zero."""
    if not is_float(want.dtype):
        return got == want
    bits = f"u{want.dtype.itemsize}"
    same = (got.view(bits) == want.view(bits)) | (np.isnan(got) & np.isnan(want))
    return same | ((got == 0) & (want == 0)) if zeros else same


def assert_same(got: tuple[Array, ...], want: tuple[Array, ...], case: Case) -> None:
    """Fail unless results are equal, or for averages of floats, each element is within its tolerance.

    Values without indices may have zeros of either sign.
    """
    assert len(got) == len(want), f"{len(got)} results, not {len(want)}\n{case}"
    for have, need in zip(got, want, strict=True):
        assert have.dtype == need.dtype, f"{have.dtype}, not {need.dtype}\n{case}"
        assert have.shape == need.shape, f"{have.shape}, not {need.shape}\n{case}"
        tolerance = case.tolerance(need)
        same = same_bits(have, need, zeros=len(got) == 1)
        if tolerance is not None:
            with np.errstate(invalid="ignore"):
                distance = np.abs(have.astype(np.float64) - need.astype(np.float64))
            same |= (have == need) | (np.isfinite(have) & np.isfinite(need) & (distance <= tolerance))
        if not same.all():
            at = tuple(map(int, np.argwhere(~same)[0]))
            raise AssertionError(f"{have[at]!r}, not {need[at]!r}, at {at}\n{case}")


Generator = np.random.Generator


def chance(rng: Generator, probability: float) -> bool:
    """True with this probability."""
    return bool(rng.random() < probability)


def pick(rng: Generator, options: Sequence[Any]) -> Any:
    """One of the options."""
    return options[int(rng.integers(len(options)))]


def several(rng: Generator, limits: Sequence[int], least: int = 1) -> list[int]:
    """One integer up to each limit; often the same for all."""
    if chance(rng, 0.5):
        return [int(rng.integers(least, min(limits) + 1))] * len(limits)
    return [int(rng.integers(least, limit + 1)) for limit in limits]


def spell(rng: Generator, values: Sequence[Any]) -> Any:
    """A tuple or a list, or a single number if all entries are the same."""
    forms = [tuple(values), list(values)]
    if len(set(values)) == 1 and values[0] is not None:
        forms += [values[0]] * 2
    return pick(rng, forms)


def draw_sliding(rng: Generator, sizes: Sequence[int], family: str) -> dict[str, Any]:
    """Legal window arguments of a family for these sizes, in any form."""
    n, most_dilation = len(sizes), 4 if family == "max_pool" else 1
    while True:
        kernel, stride, dilation = (several(rng, [most] * n) for most in (4, 4, most_dilation))
        if n == 3 and family != "max_pool":
            # PyTorch's 3-D average pooling rejects kernels larger than the input.
            kernel = [min(pair) for pair in zip(kernel, sizes, strict=True)]
        pad = several(rng, [k // 2 for k in kernel], 0) if family != "lp_pool" else [0] * n
        stride, ceil = kernel if chance(rng, 0.3) else stride, chance(rng, 0.5)
        axes = zip(sizes, kernel, stride, [(p, p) for p in pad], dilation, strict=True)
        if min(oracle.output_size(*axis, ceil) for axis in axes) >= 1:
            break
    lists = {"kernel_size": kernel, "stride": stride, "padding": pad, "dilation": dilation}
    named = {key: spell(rng, a) for key, a in lists.items() if key in ORDER[family]} | {"ceil_mode": ceil}
    return named | {"stride": None} if stride == kernel and chance(rng, 0.5) else named


def draw_avg(rng: Generator, shape: tuple[int, ...], n: int, dtype: DType, beyond: bool) -> dict[str, Any]:
    """Arguments of ``avg_pool``; the 1-D function has no divisor."""
    divisor = pick(rng, [None, None, 1, 2, 7] if dtype.kind == "u" else [None, None, 1, 2, -3])
    more = {"count_include_pad": chance(rng, 0.5), "divisor_override": None if n == 1 else divisor}
    return draw_sliding(rng, shape[-n:], "avg_pool") | more


def draw_lp(rng: Generator, shape: tuple[int, ...], n: int, dtype: DType, beyond: bool) -> dict[str, Any]:
    """Arguments of ``lp_pool``; integer powers are positive, or infinite if max pooling supports it."""
    norms: list[float] = [1, 2, 3, 2.0, 1.5]
    if is_float(dtype):
        norms += [4, 3.0, 2.5, 0.5, -1, -2.0, inf, -inf]
    elif beyond or (dtype != BOOL and n > 1):
        norms += [inf]
    named = draw_sliding(rng, shape[-n:], "lp_pool")
    if n == 1:
        named["kernel_size"] = entries(named["kernel_size"])[0]
    return named | {"norm_type": pick(rng, norms)}


def draw_adaptive(
    rng: Generator, shape: tuple[int, ...], n: int, dtype: DType, beyond: bool
) -> dict[str, Any]:
    """Arguments of the adaptive functions: sizes below and above the input's, rarely 0, sometimes None."""
    outs: list[int | None] = [
        *several(rng, [size + 3 for size in shape[-n:]], least=0 if chance(rng, 0.05) else 1)
    ]
    if n > 1 and chance(rng, 0.2):
        outs[int(rng.integers(n))] = None
    return {"output_size": spell(rng, outs)}


def draw_unpool(rng: Generator, shape: tuple[int, ...], n: int, dtype: DType, beyond: bool) -> dict[str, Any]:
    """Arguments of ``max_unpool``: indices anywhere in the result, repeated or not."""
    while True:
        kernel, stride = several(rng, [4] * n), several(rng, [4] * n)
        pad = several(rng, [k // 2 for k in kernel], 0)
        default = unpool_sizes(shape[-n:], kernel, stride, pad)
        sizes = [int(size + rng.integers(1 - s, s)) for size, s in zip(default, stride, strict=True)]
        if min(default + sizes) >= 1:
            break
    explicit = chance(rng, 0.6)
    positions, count = prod(sizes if explicit else default), prod(shape[-n:])
    indices = rng.integers(positions, size=(*shape[:-n], count))
    if positions >= count and chance(rng, 0.7):
        indices = np.argsort(rng.random((*shape[:-n], positions)), axis=-1)[..., :count]
    full = [*shape[:2], *sizes] if len(shape) == n + 2 and chance(rng, 0.3) else sizes
    lists = {"kernel_size": kernel, "stride": stride, "padding": pad}
    named = {key: spell(rng, a) for key, a in lists.items()} | {
        "indices": indices.reshape(shape).copy(pick(rng, "CF"))
    }
    return named | {"output_size": pick(rng, [tuple, list])(full) if explicit else None}


def draw_fractional(
    rng: Generator, shape: tuple[int, ...], n: int, dtype: DType, beyond: bool
) -> dict[str, Any]:
    """Arguments of ``fractional_max_pool``; PyTorch's 3-D function needs an extra element per axis."""
    usable = [size - (n == 3) for size in shape[-n:]]
    kernel = several(rng, [min(3, size) for size in usable])
    outs = several(rng, [size - k + 1 for size, k in zip(usable, kernel, strict=True)])
    lead = (1, *shape[:-n]) if len(shape) == n + 1 else shape[:-n]
    samples = np.minimum(rng.random((*lead, n)), 0.99).astype(dtype if is_float(dtype) else np.float32)
    ratio = tuple((out + 0.5) / size for out, size in zip(outs, shape[-n:], strict=True))
    size = {"output_ratio": ratio} if chance(rng, 0.3) else {"output_size": spell(rng, outs)}
    return size | {"kernel_size": spell(rng, kernel), "_random_samples": samples}


DRAWERS: dict[str, Callable[[Generator, tuple[int, ...], int, DType, bool], dict[str, Any]]] = {
    "max_pool": lambda rng, shape, n, dtype, beyond: draw_sliding(rng, shape[-n:], "max_pool"),
    "avg_pool": draw_avg,
    "lp_pool": draw_lp,
    "adaptive_max_pool": draw_adaptive,
    "adaptive_avg_pool": draw_adaptive,
    "max_unpool": draw_unpool,
    "fractional_max_pool": draw_fractional,
}


def draw_integers(rng: Generator, shape: tuple[int, ...], dtype: DType, limit: int) -> Array:
    """Booleans or integers of at most this magnitude: few values, extremes, one sign or any."""
    if dtype == BOOL:
        return rng.random(shape) < rng.random()
    high = min(limit, int(np.iinfo(dtype).max))
    low = max(-limit, int(np.iinfo(dtype).min))
    ends = [(0, 3), (max(low, -2), 2), (low, max(low // 2, -1)) if low else (high // 2, high), (low, high)]
    if chance(rng, 0.25):
        return rng.choice(np.array([low, low + 1, 0, high - 1, high], dtype), shape)
    return rng.integers(*pick(rng, ends), shape, dtype, endpoint=True)


def draw_floats(rng: Generator, shape: tuple[int, ...], dtype: DType, kinds: Sequence[str]) -> Array:
    """Floats of one of these kinds."""
    kind = pick(rng, kinds)
    if kind == "normal":
        return rng.normal(size=shape).clip(-4, 4).astype(dtype)
    if kind == "negative":
        return (-0.1 - np.abs(rng.normal(size=shape))).clip(-4).astype(dtype)
    limits = ml_dtypes.finfo(dtype)
    end, small, least = (
        float(getattr(limits, key)) for key in ("max", "smallest_normal", "smallest_subnormal")
    )
    choices = {
        "ties": [-2.0, -1.0, 0.0, 1.0, 2.0],
        "zeros": [0.0, -0.0],
        "nan": [np.nan, -1.0, 0.0, 1.0, 2.0],
        "inf": [-inf, -inf, -inf, inf, 1.0],
        "extremes": [end, -end, small, least, -least, -0.0, -inf],
        "powers": [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0],
    }
    return rng.choice(np.array(choices[kind]), shape).astype(dtype)


def draw_values(rng: Generator, shape: tuple[int, ...], dtype: DType, family: str, norm_type: float) -> Array:
    """Difficult input values whose result does not depend on the order of additions."""
    if not is_float(dtype):
        return draw_integers(rng, shape, dtype, {"avg_pool": 2**40, "lp_pool": 20}.get(family, 2**64))
    kinds = ["normal", "negative", "ties", "zeros", "nan", "inf"]
    if family == "lp_pool" and (norm_type < 0 or norm_type % 2 == 1) and norm_type not in (1, -inf):
        # Odd powers cancel and negative ones have poles: with powers of two the sign of the sum is exact.
        kinds = ["powers"]
    elif family == "lp_pool" and norm_type < 1:
        # PyTorch's dtypes disagree about the root of -inf.
        kinds.remove("inf")
    elif "max" in family:
        kinds.append("extremes")
    return draw_floats(rng, shape, dtype, kinds)


def phrase(
    rng: Generator, family: str, n: int, named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments split into positional and keyword ones, some defaults omitted."""
    order = [key for key in ORDER[family] if (key, n) != ("divisor_override", 1)]
    cut = int(rng.integers(len(order) + 1))
    args = tuple(named.get(key, DEFAULTS.get(key)) for key in order[:cut])
    rest = {key: named[key] for key in order[cut:] if key in named}
    return args, {key: a for key, a in rest.items() if a is not DEFAULTS.get(key) or chance(rng, 0.3)}


def draw(rng: Generator, name: str | None = None, beyond: bool = False) -> Case:
    """A random legal call of a named function; ``beyond`` adds the dtypes that PyTorch does not support."""
    name = pick(rng, NAMES) if name is None else name
    family, n = name[:-2], int(name[-2])
    dtype = pick(rng, DTYPES if beyond else torch_dtypes(family, n))
    batch = () if chance(rng, 0.25) else (0 if chance(rng, 0.05) else int(rng.integers(1, 4)),)
    channels = 65 if chance(rng, 0.05) else pick(rng, [1, 2, 3, 5, 17])
    least = 2 if name == "fractional_max_pool3d" else 1
    shape = (*batch, channels, *(int(rng.integers(least, {1: 14, 2: 9, 3: 6}[n])) for _ in range(n)))
    named = DRAWERS[family](rng, shape, n, dtype, beyond)
    # PyTorch's max_pool1d supports integers only with indices.
    needed = name == "max_pool1d" and not (is_float(dtype) or beyond)
    named["return_indices"] = needed or chance(rng, 0.7)
    values = draw_values(rng, shape, dtype, family, named.get("norm_type", 1))
    return Case(name, values, pick(rng, list(LAYOUTS)), *phrase(rng, family, n, named))
