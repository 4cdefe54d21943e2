"""PyTorch tensors on the CPU: values, layouts, derivatives and function transforms.

Values and gradients of random calls are compared with PyTorch's where PyTorch is right; derivatives of any
order are compared with finite differences. Compilers are tested in test_torch_compile.py.
"""

from __future__ import annotations

import contextlib
import gc
import json
import warnings
from dataclasses import replace
from functools import partial
from itertools import permutations
from math import inf, prod

import numpy as np
import pytest

import cases
import ndpool
import oracle
from helpers import epsilon, not_sanitized, run_python

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad, gradcheck, gradgradcheck  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import ndpool.torch  # noqa: E402
from ndpool._native import core  # noqa: E402
from test_oracle import spoiled  # noqa: E402

# The first forward-mode derivative of a process makes PyTorch import a deprecated module of its own, and
# PyTorch 2.6's gradcheck calls a deprecated function.
DEPRECATED = ("ignore:`torch.jit:DeprecationWarning", "ignore:Please use `torch.vmap`:FutureWarning")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(*DEPRECATED),
    pytest.mark.usefixtures("poisoned"),
]
F = torch.nn.functional
DRAWS = 1000  # per function, compared with PyTorch: 20,000 in all
GRADIENTS = 300  # per function: 6,000 in all
# Where PyTorch gives contiguous results for channels-last inputs and ndpool keeps the format.
KEEPS = ("avg_pool3d", "lp_pool", "adaptive_max_pool3d", "adaptive_avg_pool3d", "max_unpool", "fractional")


def seeded(*shape, dtype=torch.float64, distinct=True):
    """Values far enough apart for finite differences."""
    g = torch.Generator().manual_seed(prod(shape))
    if not distinct:
        return torch.rand(shape, generator=g, dtype=dtype)
    return (torch.randperm(prod(shape), generator=g).to(dtype) / prod(shape) + 0.5).reshape(shape)


def has_pytorchs_layout(name, case):
    """Whether the result must have the same strides as PyTorch's."""
    if case.layout not in ("contiguous", "channels_last") or name.startswith(KEEPS):
        return False
    return not (name == "max_pool1d" and not case.named["return_indices"])


@pytest.mark.parametrize("name", cases.NAMES)
def test_equal_to_pytorch(name):
    """Values, indices, shapes, dtypes, and strides of contiguous and channels-last inputs."""
    rng = np.random.default_rng(2000 + cases.NAMES.index(name))
    judged = laid_out = 0
    while judged < DRAWS:
        case = cases.draw(rng, name)
        x = cases.to_torch(case.array())
        before = x.clone()
        got = case.call_tensor(ndpool, x)
        bad = spoiled(case)
        theirs = () if bad else case.call_tensor(F, x)
        wanted = case.call_oracle() if bad else tuple(map(cases.from_torch, theirs))
        cases.assert_same(tuple(map(cases.from_torch, got)), wanted, case)
        assert cases.same_bits(cases.from_torch(x), cases.from_torch(before)).all()
        judged += not bad
        if not bad and has_pytorchs_layout(name, case) and got[0].numel():
            laid_out += 1
            assert [t.stride() for t in got] == [t.stride() for t in theirs], str(case)
    assert laid_out > DRAWS / 20 or name.startswith(KEEPS)


@pytest.mark.parametrize("name", cases.NAMES)
def test_every_dtype(name):
    """bool, all integers and floats, including dtypes PyTorch lacks (pytorch#33086, pytorch#107412)."""
    rng = np.random.default_rng(3000 + cases.NAMES.index(name))
    for _ in range(DRAWS // 9):
        case = cases.draw(rng, name, beyond=True)
        x = cases.to_torch(case.array())
        if x.dtype is torch.bool and "avg" in name:
            with pytest.raises(TypeError, match=f"{name}: the average of dtype=bool"):
                case.call_tensor(ndpool, x)
        else:
            cases.assert_same(
                tuple(map(cases.from_torch, case.call_tensor(ndpool, x))), case.call_oracle(), case
            )


@pytest.mark.parametrize("name", cases.NAMES)
def test_gradients_equal_pytorch(name):
    """Random calls in any float dtype and layout; on ties the first maximum wins (tensorflow#51682)."""
    rng = np.random.default_rng(4000 + cases.NAMES.index(name))
    judged = 0
    while judged < GRADIENTS:
        case = cases.draw(rng, name)
        if case.family == "lp_pool":  # away from the poles
            case = replace(case.in_float64(), values=rng.uniform(0.5, 3, case.values.shape))
        elif cases.chance(rng, 0.5) or not oracle.is_float(case.values.dtype):
            case = case.in_float64()
        if spoiled(case, gradient=True):
            continue
        judged += 1
        x = cases.to_torch(case.array()).requires_grad_()
        y, *rest = case.call_tensor(ndpool, x)
        assert not any(r.requires_grad for r in rest)
        # Small integers, whose sums are exact in every dtype.
        grad = rng.integers(-2, 3, y.shape).astype(case.values.dtype)
        grad = cases.LAYOUTS[cases.pick(rng, ["contiguous", "channels_last", "transposed"])](grad, case.n)
        wanted = case.torch_gradient(grad)
        y.backward(cases.to_torch(grad))
        got = cases.from_torch(x.grad)
        assert got.dtype == wanted.dtype == case.values.dtype
        if "max" in name:
            assert np.array_equal(got, wanted), str(case)
            continue
        magnitude = case.in_float64().torch_gradient(np.abs(grad.astype(np.float64)))
        slack = 70 * epsilon(got.dtype) * np.abs(magnitude)  # PyTorch rounds after each of up to 64 additions
        assert (np.abs(got.astype(np.float64) - wanted.astype(np.float64)) <= slack).all(), str(case)


def samples(x, n):
    lead = x.shape[:-n] if x.dim() == n + 2 else (1, *x.shape[:-n])
    return seeded(*lead, n) - 0.5


# (name, shape of the pooled axes, args, kwargs): overlapping, padded, ceil mode; without indices
def differentiable():
    size = {1: (7,), 2: (5, 4), 3: (4, 3, 4)}
    for n in (1, 2, 3):
        spatial = size[n]
        yield f"max_pool{n}d", spatial, (3, 2, 1, 1, True), {}
        yield f"max_pool{n}d", spatial, (2, 1, 1, 2), {}
        yield f"avg_pool{n}d", spatial, (3, 2, 1, True, False), {}
        yield f"avg_pool{n}d", spatial, (2, 2, 1), {"divisor_override": -3}
        yield f"lp_pool{n}d", spatial, (2, 2), {}
        yield f"lp_pool{n}d", spatial, (3.5, 2, 1, True), {}
        yield f"lp_pool{n}d", spatial, (inf, 2), {}
        yield f"adaptive_max_pool{n}d", spatial, (3,), {}
        yield f"adaptive_avg_pool{n}d", spatial, (3,), {}
        if n > 1:
            yield f"fractional_max_pool{n}d", spatial, (2, 2), {}
    for reduce in ("max", "min", "avg", "sum", "lp"):
        yield "pool", (4, 5), ((3, 2),), {"reduce": reduce, "padding": "same", "stride": 2}
        yield "adaptive_pool", (4, 5), ((3, 2),), {"reduce": reduce}


DIFFERENTIABLE = list(differentiable())
IDS = [f"{name}-{args}-{kwargs.get('reduce', '')}" for name, _, args, kwargs in DIFFERENTIABLE]


def function(name, args, kwargs, x):
    """The call as a function of the input alone."""
    if "fractional" in name:
        kwargs = kwargs | {"_random_samples": samples(x, int(name[-2]))}
    return lambda x: getattr(ndpool, name)(x, *args, **kwargs)


@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize(("name", "spatial", "args", "kwargs"), DIFFERENTIABLE, ids=IDS)
def test_first_and_second_derivatives(name, spatial, args, kwargs, batch):
    """pytorch#4497, jax#274: reverse, forward and second derivatives agree with finite differences."""
    x = seeded(*(() if batch is None else (batch,)), 2, *spatial).requires_grad_()
    pool = function(name, args, kwargs, x.detach())
    assert gradcheck(
        pool, (x,), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert gradgradcheck(pool, (x,), check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_unpooling_derivatives(n):
    x = seeded(2, 3, *[5] * n)
    values, indices = getattr(ndpool, f"max_pool{n}d")(x, 2, return_indices=True)
    values.requires_grad_()

    def unpool(values):
        return getattr(ndpool, f"max_unpool{n}d")(values, indices, 2, output_size=x.shape)

    assert gradcheck(unpool, (values,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(unpool, (values,), check_fwd_over_rev=True)
    assert torch.equal(vmap(unpool)(values[None]), unpool(values)[None])


@pytest.mark.parametrize(("name", "spatial", "args", "kwargs"), DIFFERENTIABLE, ids=IDS)
def test_transforms(name, spatial, args, kwargs):
    """pytorch#112853, functorch#1019: vmap has a rule, and vmap(jvp(vjp)) is right for any strides."""
    # The mapped axis is the innermost, so that no slice is contiguous.
    batches = seeded(3, 2, 2, *spatial).movedim(0, -1)
    x, t = batches[..., 0], batches[..., 1]
    pool = function(name, args, kwargs, x)

    def both(x, t, ct):
        return jvp(lambda x: vjp(pool, x)[1](ct)[0], (x,), (t,))[1]

    y = pool(x)
    ct = seeded(*y.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # PyTorch's own, the first time
        mapped = vmap(pool, in_dims=-1)(batches)
        together = vmap(both, in_dims=(-1, None, None))(batches, t, ct)
        twice = vmap(vmap(pool, in_dims=-1), in_dims=0)(batches[None])
        per_sample = vmap(grad(lambda x: (pool(x) ** 2).sum()), in_dims=-1)(batches)
    torch.testing.assert_close(mapped, torch.stack([pool(b) for b in batches.unbind(-1)]))
    torch.testing.assert_close(twice[0], mapped)
    torch.testing.assert_close(together, torch.stack([both(b, t, ct) for b in batches.unbind(-1)]))
    leaf = batches.clone().requires_grad_()
    wanted = torch.autograd.grad(sum((pool(b) ** 2).sum() for b in leaf.unbind(-1)), leaf)[0]
    torch.testing.assert_close(per_sample.movedim(0, -1), wanted)


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "lp_pool2d", "adaptive_avg_pool2d"])
def test_hessian_and_jacobians(name):
    """jax#628: curvature of a pooled scalar, by both modes."""
    args = (3.0, 2) if "lp" in name else (2,)
    x = seeded(1, 4, 4)
    pool = partial(getattr(ndpool, name))

    def scalar(x):
        return (pool(x, *args) ** 3).sum()

    theirs = hessian(lambda x: (getattr(F, name)(x, *args) ** 3).sum())(x)
    torch.testing.assert_close(hessian(scalar)(x), theirs)
    assert theirs.abs().sum() > 0
    torch.testing.assert_close(jacfwd(scalar)(x), jacrev(scalar)(x))


NESTED = [
    ("max_pool2d", (2,)),
    ("avg_pool2d", (3, 2, 1)),
    ("lp_pool2d", (2, 2)),
    ("lp_pool2d", (3.5, 2, 1, True)),
    ("lp_pool1d", (3, 2)),
    ("lp_pool3d", (2.5, 2)),
    ("adaptive_max_pool2d", (3,)),
    ("adaptive_avg_pool2d", (3,)),
]


@pytest.mark.parametrize(("name", "args"), NESTED)
def test_second_derivatives_of_any_two_modes(name, args):
    """All combinations of modes, for a nonlinear function of a pool of a nonlinear function."""
    x = seeded(2, *{1: (6,), 2: (4, 5), 3: (2, 4, 3)}[int(name[-2])])

    def scalar(pool):
        return lambda x: (pool(x**3, *args) ** 2).sum()

    wanted = hessian(scalar(getattr(F, name)))(x)
    ours = scalar(getattr(ndpool, name))
    for outer in (jacfwd, jacrev):
        for inner in (jacfwd, jacrev):
            torch.testing.assert_close(outer(inner(ours))(x), wanted)
    torch.testing.assert_close(
        torch.autograd.functional.hessian(ours, x), wanted, msg=f"{name} without torch.func"
    )
    t, u = seeded(*x.shape) - 1, 2 - seeded(*x.shape)
    twice = jvp(lambda x: jvp(ours, (x,), (t,))[1], (x,), (u,))[1]
    torch.testing.assert_close(twice, t.flatten() @ wanted.reshape(x.numel(), -1) @ u.flatten())


def test_third_derivatives_in_forward_mode():
    """Of Lp pooling, which is itself nonlinear; PyTorch's are right unless a window is zero."""
    x = seeded(1, 6)
    third = [
        jacfwd(jacfwd(jacfwd(lambda x, pool=pool: pool(x, 3, 2).sum())))(x)
        for pool in (ndpool.lp_pool1d, F.lp_pool1d)
    ]
    torch.testing.assert_close(*third)
    assert third[0].abs().max() > 0.1


@pytest.mark.parametrize("reduce", ["max", "min", "avg", "sum", "lp"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_general_functions_twice_in_forward_mode(reduce, adaptive):
    """Compared with finite differences of first derivatives; PyTorch has no equivalent function."""
    x, t = seeded(4, 5), seeded(4, 5) - 1

    def scalar(x):
        if adaptive:
            return (ndpool.adaptive_pool(x**3, (3, 2), reduce=reduce) ** 2).sum()
        return (ndpool.pool(x**3, (3, 2), reduce=reduce, stride=1, padding="same", norm_type=3) ** 2).sum()

    def first(x):
        return jvp(scalar, (x,), (t,))[1]

    step = 1e-6
    numerical = (first(x + step * t) - first(x - step * t)) / (2 * step)
    torch.testing.assert_close(jvp(first, (x,), (t,))[1], numerical, rtol=1e-6, atol=1e-6)


SECOND = [
    (f"{family}{n}d", args, kwargs)
    for n in (1, 2, 3)
    for family, args, kwargs in [
        ("max_pool", (2,), {}),
        ("max_pool", (2,), {"return_indices": True}),
        ("max_pool", (3, 1, 1), {}),
        ("avg_pool", (2,), {}),
        ("adaptive_max_pool", (2,), {}),
        ("adaptive_avg_pool", (2,), {}),
    ]
]
SECOND += [("avg_pool2d", (2,), {"divisor_override": 3}), ("fractional_max_pool3d", (2, 2), {})]
SECOND += [("fractional_max_pool2d", (2, 2), {}), ("max_pool2d", (17, 1, 8), {}), ("lp_pool2d", (2, 2), {})]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("own", [True, False], ids=["leaf", "computed"])
@pytest.mark.parametrize(("name", "args", "kwargs"), SECOND)
def test_second_derivative_is_zero_and_not_missing(name, args, kwargs, own, large):
    """As in PyTorch, the gradient depends on the input and can be differentiated again."""
    size = {1: (20,), 2: (10, 10), 3: (4, 4, 4)}[int(name[-2])]
    found = []
    for module in (F, ndpool):
        torch.manual_seed(0)
        start = torch.rand((16, 50) if large else (2, 3), dtype=torch.float64)
        start = start[(...,) + (None,) * len(size)].expand(*start.shape, *size).contiguous().requires_grad_()
        middle = start if own else start * 2
        y = getattr(module, name)(middle if own else middle.view_as(middle), *args, **kwargs)
        y = y[0] if isinstance(y, tuple) else y
        (g,) = torch.autograd.grad(y.sum(), start, create_graph=True)
        assert g.requires_grad
        for source in (start, middle):  # the pooled view is gone, its graph is not
            (second,) = torch.autograd.grad(g.sum(), source, retain_graph=True)
            found.append(second)
        g.sum().backward()
        found.append(start.grad)
    for ours, theirs in zip(found[3:], found[:3], strict=True):
        torch.testing.assert_close(ours, theirs)


class Doubled(torch.autograd.Function):
    """A caller's function, whose context has attributes with names of PyTorch's nodes."""

    @staticmethod
    def forward(ctx, x):
        ctx.variable = ctx.link = "mine"
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool2d"])
def test_second_derivative_after_a_function_of_the_caller(name):
    x = torch.rand(1, 4, 4, requires_grad=True)
    (g,) = torch.autograd.grad(getattr(ndpool, name)(Doubled.apply(x), 2).sum(), x, create_graph=True)
    assert not torch.autograd.grad(g.sum(), x)[0].any()


@pytest.mark.parametrize("own", [True, False], ids=["leaf", "computed"])
@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool2d"])
def test_second_derivative_of_gradients_under_vmap(name, own):
    """The pooling is outside of `vmap`, its gradient inside."""
    x = torch.rand(1, 4, 4, requires_grad=True)
    y = getattr(ndpool, name)(x if own else x * 2, 2)
    g = vmap(lambda v: torch.autograd.grad(y, x, v, create_graph=True)[0])(torch.rand(3, *y.shape))
    assert not torch.autograd.grad(g.sum(), x)[0].any()


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool2d"])
def test_strict_hessian(name):
    x = torch.rand(1, 4, 4)
    for function in (lambda x: x, lambda x: x * 2):
        got = torch.autograd.functional.hessian(
            lambda x, f=function: getattr(ndpool, name)(f(x), 2).sum(), x, strict=True
        )
        assert not got.any()


def test_second_derivatives_keep_no_memory():
    """The link that makes second derivatives zero does not keep the input's memory alive."""
    x = (torch.rand(8, 16, 32, 32, requires_grad=True) * 2).contiguous()
    memory = StorageWeakRef(x.untyped_storage())
    y = ndpool.avg_pool2d(x, 2)
    assert saved_bytes(partial(ndpool.max_pool2d, x, 2)) == y.numel()
    assert not memory.expired()
    del x
    gc.collect()
    assert memory.expired()
    y.sum().backward()


def test_forward_mode_duals():
    """Dual tensors without torch.func, including tangents that are zero tensors without memory."""
    x, t = seeded(1, 2, 6, 6), seeded(1, 2, 6, 6) * 2
    for pool in (ndpool.max_pool2d, ndpool.avg_pool2d):
        with forward_ad.dual_level():
            y = pool(forward_ad.make_dual(x, t), 2)
            torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, pool(t, 2))
            still = pool(forward_ad.make_dual(x, torch._efficientzerotensor(x.shape, dtype=x.dtype)), 2)
            tangent = forward_ad.unpack_dual(still).tangent
            assert tangent is None or not tangent.any()
            assert forward_ad.unpack_dual(pool(x, 2)).tangent is None


@pytest.mark.parametrize("name", [name for name in cases.NAMES if "unpool" not in name])
def test_empty_batch(name):
    """pytorch#64306: forward, backward and double backward of an empty batch."""
    n = int(name[-2])
    args = (2, 2) if "lp" in name or "fractional" in name else (2,)
    x = torch.zeros(0, 3, *[6] * n, dtype=torch.float64, requires_grad=True)
    y = getattr(ndpool, name)(x, *args)
    (g,) = torch.autograd.grad(y.sum() + (y**2).sum(), x, create_graph=True)
    assert g.shape == x.shape
    (gg,) = torch.autograd.grad((g**2).sum(), x, allow_unused=True)
    assert gg is None or gg.shape == x.shape


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_empty_output_has_zero_gradient(kind, n):
    """pytorch#78868: an empty output gives a gradient of zeros."""
    x = torch.ones(2, 3, *[4] * n, requires_grad=True)
    y = getattr(ndpool, f"adaptive_{kind}_pool{n}d")(x, 0)
    y.sum().backward()
    assert not x.grad.any()
    assert x.grad.shape == x.shape


def test_empty_window_has_no_gradient():
    """A dilated window without an input element gives -inf and no gradient (pytorch#114216)."""
    x = torch.ones(1, 3, 3, dtype=torch.float64, requires_grad=True)
    y = ndpool.max_pool2d(x, (1, 2), stride=(3, 1), padding=(0, 1), dilation=(1, 4))
    assert (y == -inf).all()
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert not g.any()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
        y = ndpool.max_pool2d(dual, (1, 2), stride=(3, 1), padding=(0, 1), dilation=(1, 4))
        assert not forward_ad.unpack_dual(y).tangent.any()


@pytest.mark.parametrize("norm", [1, 2, 3, 2.5, 4])
def test_lp_gradient_of_zero_window(norm):
    """pytorch#6765: a window of zeros has a zero gradient of any order; others have PyTorch's."""
    x = torch.tensor([[[0.0, 0, 0, 2, 3, 1]]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 2, 3], dtype=torch.float64)
    theirs = torch.autograd.grad((F.lp_pool1d(x, norm, 2) * weights).sum(), x)[0]
    (got,) = torch.autograd.grad((ndpool.lp_pool1d(x, norm, 2) * weights).sum(), x, create_graph=True)
    torch.testing.assert_close(got.detach(), theirs)
    assert got[0, 0, :2].tolist() == [0, 0]
    assert torch.autograd.grad((got**2).sum(), x)[0].isfinite().all()


def test_indices_do_not_change_the_gradient():
    """torchax#32: bitwise identical with and without return_indices."""
    x = seeded(2, 3, 9, 9, dtype=torch.float32)
    grads = []
    for indices in (False, True):
        leaf = x.clone().requires_grad_()
        y = ndpool.max_pool2d(leaf, 3, 1, 1, return_indices=indices)
        (y[0] if indices else y).cos().sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "dilation"),
    [
        ((1, 130, 35, 120), (3, 48), (2, 1), (2, 1)),  # wide rows of many channels
        ((2, 3, 90, 90), (17, 17), (1, 1), (1, 1)),  # more taps than a byte counts
        ((1, 2, 150, 140), (70, 66), (3, 3), (1, 1)),  # more than a table
        ((1, 1, 1, 3000), (1, 5), (1, 2), (1, 3)),
        ((40, 16, 9, 8), (3, 3), (2, 2), (1, 1)),  # many small planes
    ],
)
def test_gradients_add_up_in_the_order_of_pytorch(shape, kernel, stride, dilation, last):
    """Windows of max pooling that share inputs: every layout gives the bits of PyTorch."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    args = (kernel, stride, tuple(min(1, k // 2) for k in kernel), dilation)
    wanted = F.max_pool2d(x, *args)
    grad = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(2))
    (expected,) = torch.autograd.grad(wanted, x, grad)
    assert torch.equal(torch.autograd.grad(ndpool.max_pool2d(x, *args), x, grad)[0], expected)


@pytest.mark.parametrize("taps", [127, 128, 255, 256, 257, 300])
def test_wide_windows(taps):
    """pytorch#131659: offsets around the limits of a byte give PyTorch's gradients."""
    x = seeded(2, 2, 700).requires_grad_()
    ours = ndpool.max_pool1d(x, taps, 7, taps // 2)
    theirs = F.max_pool1d(x, taps, 7, taps // 2)
    weights = seeded(*ours.shape)
    got, wanted = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (ours, theirs))
    assert torch.equal(got, wanted)
    torch.testing.assert_close(jvp(lambda x: ndpool.max_pool1d(x, taps, 7, taps // 2), (x,), (x,))[1], ours)


def test_cropped_windows():
    """Windows much wider than the input have correct gradients and tangents."""
    x = seeded(2, 3, 6, 5).requires_grad_()

    def pool(x):
        return ndpool.pool(x, (301, 7), stride=(5, 2), padding=((150, 150), (3, 3)))

    assert gradcheck(pool, (x,), check_forward_ad=True)
    assert gradgradcheck(pool, (x,))


def saved_bytes(call):
    total = 0

    def pack(t):
        nonlocal total
        total += t.numel() * t.element_size()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        call()
    return total


@pytest.mark.parametrize("args", [(2,), (3, 2, 1)])
def test_saved_memory(args):
    """pytorch#85485, pytorch#103785: max pooling saves one byte per output, average pooling nothing."""
    x = torch.rand(2, 8, 32, 32, requires_grad=True)
    ours, theirs = (saved_bytes(lambda f=f: f(x, *args)) for f in (ndpool.max_pool2d, F.max_pool2d))
    assert 0 < ours <= theirs / 8
    assert ours == F.max_pool2d(x, *args).numel()
    for name in ("avg_pool2d", "adaptive_avg_pool2d"):
        assert saved_bytes(lambda name=name: getattr(ndpool, name)(x, 2)) == 0
    assert saved_bytes(lambda: ndpool.max_pool2d(x, 17, 1)) == 4 * F.max_pool2d(x, 17, 1).numel()


DETERMINISTIC = [
    ("max_pool3d", 3, (3, 2, 1)),
    ("avg_pool3d", 3, (3, 2, 1)),
    ("adaptive_max_pool1d", 1, (8,)),
    ("adaptive_max_pool2d", 2, (7,)),
    ("adaptive_avg_pool2d", 2, ((None, 1),)),
    ("adaptive_avg_pool2d", 2, (7,)),
    ("adaptive_avg_pool3d", 3, (5,)),
    ("lp_pool2d", 2, (2, 3, 1)),
]


@pytest.mark.parametrize(("name", "n", "args"), DETERMINISTIC)
def test_deterministic(name, n, args):
    """pytorch#50198, #131972, #59783, #110698, #84860: bitwise reproducible for any thread count."""
    x = torch.rand(4, 16, *{1: (999,), 2: (61, 53), 3: (19, 18, 17)}[n])
    results = []
    threads = ndpool.get_num_threads()
    torch.use_deterministic_algorithms(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for workers in (1, 2, 3, 2, 1):
                ndpool.set_num_threads(workers)
                leaf = x.clone().requires_grad_()
                y = getattr(ndpool, name)(leaf, *args)
                (g,) = torch.autograd.grad((y * y).sum(), leaf, create_graph=True)
                (gg,) = torch.autograd.grad((g * g).sum(), leaf)
                results.append((y.detach(), g.detach(), gg))
    finally:
        torch.use_deterministic_algorithms(False)
        ndpool.set_num_threads(threads)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_unpooling_repeated_indices():
    """pytorch#78249: with repeated indices the last value wins, in every run."""
    values = torch.rand(2, 3, 40, 40)
    indices = torch.randint(0, 50, values.shape)
    wanted = torch.from_numpy(oracle.max_unpool(values.numpy(), indices.numpy(), (80, 80)))
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(20):
            assert torch.equal(ndpool.max_unpool2d(values, indices, 2), wanted)
    finally:
        torch.use_deterministic_algorithms(False)


def test_half_gradients_accumulate_in_float32():
    """cubek#639: gradients in half precision are accumulated in float32."""
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.zeros(1, 1, 1, dtype=dtype, requires_grad=True)
        ndpool.adaptive_avg_pool2d(x, 64).sum().backward()
        assert x.grad.item() == 4096


def test_autocast():
    """Under autocast, pooling keeps the dtype of its input, forward and backward."""
    x = torch.rand(2, 3, 8, 8, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = x.to(torch.bfloat16)
        for name in ("max_pool3d", "avg_pool3d", "adaptive_avg_pool3d", "adaptive_max_pool3d"):
            y = getattr(ndpool, name)(half, 2)
            assert y.dtype is torch.bfloat16
            assert getattr(ndpool, name)(x, 2).dtype is torch.float32
            (g,) = torch.autograd.grad(y.sum(), x)
            assert g.dtype is torch.float32
        y = ndpool.lp_pool3d(half, 2, 2)
        assert y.dtype is torch.bfloat16
        assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


def _shrunk(offsets):
    offsets.untyped_storage().resize_(16)
    return offsets


@pytest.mark.parametrize("side", [8, 40])
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[:1],
        lambda t: t.flatten()[:10],
        lambda t: t.to("meta"),
        lambda t: t[..., :1],
        lambda t: t.to(torch.int16),
        lambda t: t.to(torch.int8),
        lambda t: t.float(),
        _shrunk,
    ],
)
def test_offsets_that_a_hook_changed_are_not_read_past_their_end(change, side):
    x = torch.randn(2, 64, side, side, requires_grad=True)
    for _ in range(2):  # the second call is a prepared one
        with torch.autograd.graph.saved_tensors_hooks(change, lambda t: t):
            y = ndpool.max_pool2d(x, 3, 2)
        with pytest.raises(ValueError, match=r"max_pool2d: (saved offsets|a tensor)"):
            y.sum().backward()


def of_freed_memory(t):
    shrunk = t.detach().clone()
    shrunk.untyped_storage().resize_(0)
    return shrunk


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        (lambda t: t.detach().clone(), False),
        (lambda t: t.detach().transpose(2, 3).contiguous().transpose(2, 3), False),
        (lambda t: t.detach().double(), False),
        (lambda t: t.detach()[:, :, :3, :3], True),
        (lambda t: t.detach()[:, :3], True),
        (of_freed_memory, True),
    ],
)
def test_what_a_hook_made_of_norms_is_not_read_past_its_end(change, fails):
    """Lp pooling saves its input and its output; hooks may replace them by anything."""
    x = seeded(2, 64, 12, 12).abs().float().requires_grad_()
    grad = seeded(2, 64, 5, 5).float()
    for _ in range(2):  # the second call is a prepared one
        wanted = torch.autograd.grad(ndpool.lp_pool2d(x, 2, 3, 2), x, grad)[0]
        with torch.autograd.graph.saved_tensors_hooks(change, lambda t: t):
            y = ndpool.lp_pool2d(x, 2, 3, 2)
        if fails:
            with pytest.raises((ValueError, RuntimeError)):
                torch.autograd.grad(y, x, grad)
        else:
            assert torch.allclose(torch.autograd.grad(y, x, grad)[0], wanted)


@pytest.mark.parametrize("name", ["max_pool2d", "lp_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("dense", [True, False])
def test_what_was_saved_is_looked_at_once(name, dense):
    """As checkpointing demands; and the error of a hook is the caller's."""
    from torch.utils.checkpoint import checkpoint

    def pool(x):
        return getattr(ndpool, name)(x, *((2, 2) if name == "lp_pool2d" else (2,)))

    x = seeded(2, 64, 40, 40).float().abs().requires_grad_()
    looks = []

    def unpack(t):
        looks.append(t.shape)
        if len(looks) > 10:
            raise KeyError("no more")
        return t

    for _ in range(2):  # the second call is a prepared one
        y = checkpoint(pool, x, use_reentrant=False)
        grad = torch.ones_like(y) if dense else torch.ones(1, device="cpu").expand_as(y)
        wanted = torch.autograd.grad(pool(x), x, torch.ones_like(y))[0]
        assert torch.allclose(torch.autograd.grad(y, x, grad)[0], wanted)
        looks.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            y = pool(x)
        torch.autograd.grad(y, x, grad, retain_graph=True)
        assert len(looks) == {"max_pool2d": 1, "lp_pool2d": 2, "avg_pool2d": 0}[name]
        if looks:
            looks.extend([x.shape] * 10)
            with pytest.raises(KeyError, match="no more"):
                torch.autograd.grad(y, x, grad)


@pytest.mark.parametrize("name", ["max_pool2d", "lp_pool2d", "avg_pool2d"])
def test_a_pullback_outlives_its_function(name):
    args = (2, 2) if name == "lp_pool2d" else (2,)
    x, grad = seeded(2, 3, 8, 8).abs(), seeded(2, 3, 4, 4)
    ours, theirs = (
        torch.func.vjp(lambda x, f=f: f(x, *args), x)[1](grad)[0]
        for f in (getattr(ndpool, name), getattr(F, name))
    )
    assert torch.allclose(ours, theirs)


def test_parameters_have_the_gradients_of_tensors():
    x = torch.full((1, 1, 4), 1e-5, dtype=torch.float16)
    for like in (x.clone().requires_grad_(), torch.nn.Parameter(x.clone())):
        grad = torch.autograd.grad(ndpool.lp_pool1d(like, 2, 2, 2).sum(), like)[0]
        assert (grad - 0.7).abs().max() < 0.1


def test_checkpoint_hooks_retain_and_anomalies():
    """pytorch#111466: checkpointing, hooks, retained graphs and anomaly detection."""
    from torch.utils.checkpoint import checkpoint

    x = seeded(2, 3, 8, 8).requires_grad_()

    def net(x):
        return ndpool.avg_pool2d(ndpool.max_pool2d(x.sin(), 3, 1, 1), 2).cos()

    wanted = torch.autograd.grad(net(x).sum(), x)[0]
    assert torch.equal(torch.autograd.grad(checkpoint(net, x, use_reentrant=False).sum(), x)[0], wanted)
    y = net(x)
    seen = []
    y.grad_fn.next_functions[0][0].register_hook(lambda *_: seen.append(1))
    x.register_hook(lambda g: seen.append(g.shape))
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly(check_nan=True):
        first = torch.autograd.grad(net(x).sum(), x)[0]
    assert torch.equal(first, wanted)
    for _ in range(2):
        assert torch.equal(torch.autograd.grad(y.sum(), x, retain_graph=True)[0], wanted)
    assert x.shape in seen


def test_modes_without_gradients():
    x = torch.rand(1, 2, 6, 6, requires_grad=True)
    with torch.no_grad():
        assert not ndpool.max_pool2d(x, 2).requires_grad
    with torch.inference_mode():
        assert ndpool.max_pool2d(x, 2).is_inference()
    assert ndpool.max_pool2d(x, 2).requires_grad
    assert not ndpool.max_pool2d(x, 2, return_indices=True)[1].requires_grad
    assert isinstance(ndpool.avg_pool2d(torch.nn.Parameter(x.detach()), 2), torch.Tensor)
    assert not ndpool.max_pool2d(torch.arange(16).reshape(1, 4, 4), 2).requires_grad


def test_unusual_memory():
    """Negated views, misaligned memory and expanded tensors."""
    z = torch.randn(1, 2, 6, 6, dtype=torch.complex64)
    negated = z.conj().imag
    assert negated.is_neg()
    assert torch.equal(ndpool.max_pool2d(negated, 2), F.max_pool2d(negated, 2))
    raw = np.zeros(4 * 2 * 36 + 1, np.uint8)[1:].view(np.float32).reshape(1, 2, 6, 6)
    raw[...] = np.random.default_rng(0).random(raw.shape)
    odd = torch.from_numpy(raw)
    assert odd.data_ptr() % 4
    assert torch.equal(ndpool.avg_pool2d(odd, 2), ndpool.avg_pool2d(odd.clone(), 2))
    wide = torch.rand(1, 1, 6, 6).expand(3, 5, 6, 6).requires_grad_()
    ndpool.max_pool2d(wide, 2).sum().backward()
    assert wide.grad.sum() == 3 * 5 * 9


@pytest.mark.usefixtures("restore_settings")
@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_cached_calls(make, leaf):
    """A cached call is reused only for the same types, layout and instruction set."""
    if make is np.asarray and leaf:
        pytest.skip("arrays have no gradients")

    def pool(x, *args, name="max_pool2d"):
        x = make(x)
        y = getattr(ndpool, name)(x.requires_grad_() if leaf else x, *args)
        return torch.as_tensor(y.detach() if leaf else y)

    data = np.random.default_rng(0).random((2, 3, 9, 8), np.float32)
    for _ in range(3):
        t = torch.from_numpy(data)
        for x in (t, t.to(memory_format=torch.channels_last), t.mT, t[..., ::2], t.double(), t[:1, :1]):
            for args in ((2,), ((2, 2),), ([2, 2],), (2, 1), ((2, 3), [1, 2], (1, 1)), (3, 2, 1, 1, True)):
                assert torch.equal(pool(x.numpy(), *args), F.max_pool2d(x, *args))
                torch.testing.assert_close(
                    pool(x.numpy(), *args[:3], name="avg_pool2d"), F.avg_pool2d(x, *args[:3])
                )
            for out in (1, (3, None), [2, 5]):
                assert torch.equal(
                    pool(x.numpy(), out, name="adaptive_max_pool2d"), F.adaptive_max_pool2d(x, out)
                )
        for wrong in (
            (True,),
            (2.0,),
            ((2, True),),
            (2, None, False),
            (2, 1, 0, True),
            (2, 1, 2),
            ([2] * 99,),
        ):
            with pytest.raises((TypeError, ValueError), match="max_pool2d: "):
                pool(data, *wrong)
    raw = np.zeros(4 * data.size + 1, np.uint8)[1:].view(np.float32).reshape(data.shape)
    raw[...] = data
    assert torch.equal(pool(raw, 2), pool(data, 2))  # the aligned call is cached
    for size in range(2, 1200):  # more than the cache keeps
        assert pool(np.arange(size, dtype=np.float32)[None], 2, name="max_pool1d")[0, -1] == size // 2 * 2 - 1
    assert torch.equal(pool(data, 2), F.max_pool2d(torch.from_numpy(data), 2))
    for name in core.isa_names():
        core.set_isa(name)
        assert torch.equal(pool(data, 2), F.max_pool2d(torch.from_numpy(data), 2))


def test_cached_calls_are_for_plain_memory_only():
    """Special tensors of the same shape and dtype do not use the cached call of a plain tensor."""
    x = torch.rand(1, 3, 8, 8)
    wanted = ndpool.max_pool2d(x, 2)
    assert torch.equal(ndpool.max_pool2d(torch._neg_view(x), 2), F.max_pool2d(-x, 2))
    assert not ndpool.max_pool2d(torch._efficientzerotensor(x.shape), 2).any()
    assert ndpool.max_pool2d(x.to("meta"), 2).is_meta
    for other in (x.to_sparse(), x.to_mkldnn()):
        with pytest.raises(TypeError, match=r"max_pool2d: input must (be a strided|have a supported)"):
            ndpool.max_pool2d(other, 2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert (forward_ad.unpack_dual(ndpool.max_pool2d(dual, 2)).tangent == 1).all()
    assert torch.equal(vmap(lambda x: ndpool.max_pool2d(x, 2))(x[None])[0], wanted)
    with torch.inference_mode():
        inside = ndpool.max_pool2d(torch.rand(1, 3, 10, 10), 2)
    assert inside.is_inference()
    assert not ndpool.max_pool2d(torch.rand(1, 3, 10, 10), 2).is_inference()


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(
    "family", ["max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool", "max_unpool"]
)
def test_channels_last_is_kept(family, n):
    """pytorch#61544: channels-last in, channels-last out, gradient included, in 2-D and 3-D."""
    form = torch.channels_last if n == 2 else torch.channels_last_3d
    x = torch.rand(2, 3, *[6] * n).to(memory_format=form).requires_grad_()
    args = (2,)
    if family == "max_unpool":
        args = (torch.arange(6**n).reshape([6] * n).expand(x.shape), 2)
    y = getattr(ndpool, f"{family}{n}d")(x, *args)
    assert y.is_contiguous(memory_format=form)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert g.is_contiguous(memory_format=form) or family == "max_unpool"


LAYOUTS = [  # (n, axes from outermost to innermost in memory); channels-last are PyTorch's memory formats
    (1, (0, 1, 2)),
    (1, (0, 2, 1)),
    (1, (1, 0)),
    (2, (0, 1, 2, 3)),
    (2, (0, 2, 3, 1)),
    (2, (1, 0, 2, 3)),
    (2, (1, 2, 0)),
    (2, (0, 2, 1)),
    (3, (0, 2, 3, 4, 1)),
    (3, (1, 0, 2, 3, 4)),
    (3, (1, 2, 3, 0)),
    (3, (0, 2, 3, 1)),
    (3, (3, 2, 1, 0)),
]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("n", "order"), LAYOUTS)
@pytest.mark.parametrize(
    "family", ["max_pool", "avg_pool", "lp_pool", "adaptive_max_pool", "adaptive_avg_pool"]
)
def test_layouts_are_pytorchs(family, n, order, traced, cut):
    """Strides of values and indices, batched or not; all 3-D functions keep channels-last."""
    shape = ((2, 3) if len(order) == n + 2 else (3,)) + (8, 6, 4)[:n]
    memory = torch.rand([shape[a] for a in order])
    x = memory.permute([order.index(a) for a in range(len(order))])
    x = x[..., :-1] if cut and n == 2 else x
    unbatched_volume = n == 3 and len(order) == 4
    keeps = "max_pool3d"  # the only 3-D function of PyTorch that keeps the memory format
    results = []
    for module in (F, ndpool):
        name = keeps if module is F and n == 3 else f"{family}{n}d"
        args = (2, 2) if "lp" in name else (2,)
        kwargs = {"return_indices": True} if "max" in name and "max" in family else {}
        leaf = x.detach().requires_grad_()
        if module is F and unbatched_volume and order == (0, 2, 3, 1):
            # PyTorch rejects unbatched volumes with the strides of channels-last images.
            with pytest.raises(RuntimeError, match="memory format"):
                getattr(module, name)(leaf, *args, **kwargs)
            y = torch.empty([3, *(side // 2 for side in shape[1:])])
            y = (y, y) if kwargs else y
        else:
            with PassThrough() if traced and module is ndpool else contextlib.nullcontext():
                y = getattr(module, name)(leaf, *args, **kwargs)
        results.append([t.stride() for t in (y if kwargs else (y,))])
    if "adaptive" in family and n == 3:  # of other sizes
        sizes = [[sorted(range(len(s)), key=lambda a, s=s: (s[a], -a)) for s in one] for one in results]
        assert sizes[0] == sizes[1]
    else:
        assert results[0] == results[1]


def test_out_and_dtype():
    """`out` and `dtype`, as for NumPy arrays."""
    x = torch.arange(32, dtype=torch.int32).reshape(2, 4, 4)
    wanted = ndpool.avg_pool2d(x.numpy(), 2, dtype="float64")
    got = ndpool.avg_pool2d(x, 2, dtype=torch.float64)
    assert got.dtype is torch.float64
    np.testing.assert_array_equal(got.numpy(), wanted)
    out = torch.zeros(2, 2, 2, dtype=torch.float64)
    assert ndpool.avg_pool2d(x, 2, dtype=torch.float64, out=out) is out
    assert torch.equal(out, got)
    pair = (torch.zeros(2, 2, 2, dtype=torch.int32), torch.zeros(2, 2, 2, dtype=torch.int64))
    assert ndpool.max_pool2d(x, 2, return_indices=True, out=pair) is pair
    assert all(map(torch.equal, pair, ndpool.max_pool2d(x, 2, return_indices=True)))
    assert ndpool.pool(x, (2, 2), reduce="sum").dtype is torch.int64
    assert ndpool.pool(x.to(torch.uint8), (2, 2), reduce="sum").dtype is torch.uint64
    assert ndpool.pool(x, (2, 2), reduce="max", dtype=torch.float32).dtype is torch.float32
    out, strided = torch.zeros(2, 2, 2), torch.zeros(2, 4, 2)
    version = out._version
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "copy_", None)  # results must be written directly, not copied
        for target in (out, strided[:, ::2], strided.mT[:, :, 1::2].mT):
            ndpool.max_pool2d(x.float(), 2, out=target)
            assert torch.equal(target, F.max_pool2d(x.float(), 2))
    assert out._version > version
    with torch.inference_mode():
        target = torch.zeros(2, 2, 2)
        for one in (target, torch.zeros_like(out), out.clone()):
            assert torch.equal(ndpool.max_pool2d(x.float(), 2, out=one), out)
        ndpool.max_pool2d(x.float(), 2, out=out)
    with pytest.raises(RuntimeError, match="inference tensor"):
        ndpool.max_pool2d(x.float(), 2, out=target)
    memory = np.random.default_rng(0).random(40).astype(np.float32)
    shared, target = torch.from_numpy(memory[:32]).view(2, 4, 4), torch.from_numpy(memory[4:12]).view(2, 2, 2)
    want = F.max_pool2d(shared, 2)  # two tensors over the same memory
    assert torch.equal(ndpool.max_pool2d(shared, 2, out=target), want)
    inside = torch.rand(2, 4, 4)
    copy = inside.clone()
    ndpool.max_pool2d(inside, 2, 1, out=inside[:, :3, :3])
    assert torch.equal(inside[:, :3, :3], ndpool.max_pool2d(copy, 2, 1))
    leaf = torch.rand(2, 4, 4, dtype=torch.float64, requires_grad=True)
    for dtype in (torch.float32, torch.float64):
        assert ndpool.avg_pool2d(leaf, 2, dtype=dtype).dtype is dtype
    half = torch.rand(2, 4, 4).half().requires_grad_()
    (g,) = torch.autograd.grad(ndpool.avg_pool2d(half, 2, dtype=torch.float32).sum(), half)
    assert g.dtype is torch.float16
    assert (g == 0.25).all()


def test_general_functions():
    """Any axes and reduction, and unpooling."""
    x = torch.rand(3, 6, 5, 2, dtype=torch.float64)
    for reduce in ("max", "min", "avg", "sum", "lp"):
        for axes in ((1, 2), (2, 0), (3,), (0, 1, 2, 3)):
            window = (2,) * len(axes)
            got = ndpool.pool(x, window, reduce=reduce, axes=axes, padding="same", stride=1)
            wanted = ndpool.pool(x.numpy(), window, reduce=reduce, axes=axes, padding="same", stride=1)
            np.testing.assert_array_equal(got.numpy(), wanted)
            got = ndpool.adaptive_pool(x, 2, reduce=reduce, axes=axes)
            np.testing.assert_array_equal(
                got.numpy(), ndpool.adaptive_pool(x.numpy(), 2, reduce=reduce, axes=axes)
            )
    values, indices = ndpool.pool(x, (2, 2), axes=(0, 2), return_indices=True)
    back = ndpool.unpool(values, indices, (3, 5), axes=(0, 2))
    assert torch.equal(torch.where(back != 0, x, 0), back)
    assert (back != 0).sum() == values.numel()


AXES = [axes for n in (1, 2, 3, 4) for axes in permutations(range(4), n)]


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_axes_in_any_order(axes, traced):
    """Values, indices, gradients and unpooling equal NumPy's for any order of the pooled axes."""
    x = seeded(3, 4, 5, 6)
    windows = tuple((2, 3, 2, 1)[a] for a in axes)
    sizes = tuple(x.shape[a] for a in axes)
    grad = torch.from_numpy(np.random.default_rng(0).integers(1, 9, x.shape).astype(float))

    def pool(x, reduce, **how):
        return ndpool.pool(x, windows, reduce=reduce, axes=axes, stride=1, **how)

    def tensors(function, *args):
        if not traced:
            return function(*args)
        with PassThrough():
            return function(*args)

    for reduce in ("max", "min", "avg", "sum", "lp"):
        wanted = pool(x.numpy(), reduce)
        leaf = x.clone().requires_grad_()
        y = tensors(pool, leaf, reduce)
        np.testing.assert_array_equal(y.detach().numpy(), wanted)
        # The expected gradient is that of a pool over the same axes, moved to the end in order.
        order = [a for a in range(4) if a not in axes] + sorted(axes)
        moved = x.permute(order).contiguous().requires_grad_()
        sorted_windows = tuple((2, 3, 2, 1)[a] for a in sorted(axes))
        plain = ndpool.pool(moved, sorted_windows, reduce=reduce, stride=1)
        weights = grad[tuple(map(slice, y.shape))]
        y.backward(weights)
        plain.backward(weights.permute(order).contiguous())
        torch.testing.assert_close(leaf.grad.permute(order), moved.grad)
        got = tensors(partial(ndpool.adaptive_pool, x, 2, reduce=reduce, axes=axes))
        np.testing.assert_array_equal(got, ndpool.adaptive_pool(x.numpy(), 2, reduce=reduce, axes=axes))
    values, indices = tensors(lambda: pool(x, "max", return_indices=True))
    wanted = pool(x.numpy(), "max", return_indices=True)
    np.testing.assert_array_equal(values, wanted[0])
    np.testing.assert_array_equal(indices, wanted[1])
    leaf = x.clone().requires_grad_()
    with_indices = tensors(lambda: pool(leaf, "max", return_indices=True))
    np.testing.assert_array_equal(with_indices[1], wanted[1])
    back = tensors(lambda: ndpool.unpool(values, indices, sizes, axes=axes))
    np.testing.assert_array_equal(back, ndpool.unpool(*wanted, sizes, axes=axes))


class PassThrough(TorchDispatchMode):
    """A dispatch mode that runs every operator unchanged."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_fractional_samples_and_seeds():
    """pytorch#51622, pytorch#183249: the shape of the samples, and reproducible calls."""
    x = torch.rand(2, 3, 20, 20)
    torch.manual_seed(1)
    theirs = F.fractional_max_pool2d(x, 3, 7)
    torch.manual_seed(1)
    assert torch.equal(ndpool.fractional_max_pool2d(x, 3, 7), theirs)
    once = ndpool.fractional_max_pool2d(x, 3, 7, generator=5)
    assert torch.equal(once, ndpool.fractional_max_pool2d(x, 3, 7, generator=5))
    assert torch.equal(
        once, ndpool.fractional_max_pool2d(x, 3, 7, generator=torch.Generator().manual_seed(5))
    )
    assert not torch.equal(once, ndpool.fractional_max_pool2d(x, 3, 7, generator=6))
    mapped = vmap(lambda x: ndpool.fractional_max_pool2d(x, 3, 7, generator=5), randomness="same")(x[None])
    assert torch.equal(mapped[0], once)
    with pytest.raises(ValueError, match=r"_random_samples must have shape \(1, 3, 2\)"):
        ndpool.fractional_max_pool2d(x[0], 3, 7, _random_samples=torch.rand(3, 2))
    with pytest.raises(TypeError, match="generator must be"):
        ndpool.fractional_max_pool2d(x, 3, 7, generator="seed")
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda x: ndpool.fractional_max_pool2d(x, 3, 7))(x[None])


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("batch", [None, 1, 2])
@pytest.mark.parametrize("surplus", [0, 3])
def test_fractional_samples_that_pytorch_accepts(n, batch, surplus):
    """The first axis may be longer than the batch (1 if unbatched); extra samples are ignored."""
    x = seeded(*(() if batch is None else (batch,)), 3, *[9] * n)
    samples = torch.rand(
        (batch or 1) + surplus, 3, n, dtype=x.dtype, generator=torch.Generator().manual_seed(1)
    )
    wanted = getattr(F, f"fractional_max_pool{n}d")(x, 2, 4, return_indices=True, _random_samples=samples)
    pool = getattr(ndpool, f"fractional_max_pool{n}d")
    got = pool(x, 2, 4, return_indices=True, _random_samples=samples)
    assert all(map(torch.equal, got, wanted))
    arrays = pool(x.numpy(), 2, 4, return_indices=True, _random_samples=samples.numpy())
    assert all(map(np.array_equal, arrays, wanted))
    module = getattr(ndpool.torch, f"FractionalMaxPool{n}d")(2, 4, _random_samples=samples)
    assert torch.equal(module(x), wanted[0])
    with ndpool.torch.patch():
        assert torch.equal(
            getattr(F, f"fractional_max_pool{n}d")(x, 2, 4, _random_samples=samples), wanted[0]
        )


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("batch", [None, 2])
def test_fractional_samples_that_pytorch_rejects(n, batch):
    """ValueError and TypeError from ndpool, PyTorch's error under a patch."""
    x = seeded(*(() if batch is None else (batch,)), 3, *[9] * n)
    lead = batch or 1
    wrong = [torch.rand(shape, dtype=x.dtype) for shape in [(3, n), (lead, 4, n), (lead, 1, n)]]
    wrong += [torch.rand(shape, dtype=x.dtype) for shape in [(lead, 3, n + 1), (lead - 1, 3, n), (n,)]]
    wrong += [torch.rand(lead, 3, n, dtype=torch.float32), torch.zeros(lead, 3, n, dtype=torch.int64)]
    for samples in wrong:
        with pytest.raises((ValueError, TypeError), match=f"fractional_max_pool{n}d: _random_samples must"):
            getattr(ndpool, f"fractional_max_pool{n}d")(x, 2, 4, _random_samples=samples)
        call = partial(getattr(torch.nn, f"FractionalMaxPool{n}d")(2, 4, _random_samples=samples), x)
        with pytest.raises(RuntimeError) as wanted:
            call()
        with ndpool.torch.patch(), pytest.raises(RuntimeError) as got:
            call()
        assert str(got.value) == str(wanted.value)


def freed(*shape, dtype=torch.float32, left=0):
    x = torch.zeros(shape, dtype=dtype)
    x.untyped_storage().resize_(left)
    return x


def freed_view():
    x = torch.rand(2, 3, 8, 8)
    view = x[1:]  # its address is not null
    x.untyped_storage().resize_(0)
    return view


def freed_before_backward():
    x = torch.rand(1, 3, 4, 4, requires_grad=True)
    y = ndpool.lp_pool2d(x, 2, 2)
    x.untyped_storage().resize_(0)
    y.sum().backward()


FREED = {
    "small": lambda: ndpool.max_pool2d(freed(1, 3, 4, 4), 2),
    "large": lambda: ndpool.max_pool2d(freed(2, 3, 64, 64), 2),
    "average": lambda: ndpool.avg_pool2d(freed(1, 3, 4, 4), 2),
    "norm": lambda: ndpool.lp_pool2d(freed(1, 3, 4, 4), 2, 2),
    "indices": lambda: ndpool.max_pool2d(freed(1, 3, 4, 4), 2, return_indices=True),
    "general": lambda: ndpool.pool(freed(4, 4), (2, 2), axes=(1, 0)),
    "adaptive": lambda: ndpool.adaptive_pool(freed(4, 4), (2, 2), reduce="sum"),
    "trained": lambda: ndpool.max_pool2d(freed(1, 3, 4, 4).requires_grad_(), 2),
    "trained with indices": lambda: ndpool.max_pool2d(
        freed(1, 3, 4, 4).requires_grad_(), 2, return_indices=True
    ),
    "integer norm": lambda: ndpool.lp_pool2d(freed(1, 3, 4, 4, dtype=torch.int32), 2, 2),
    "infinite norm": lambda: ndpool.lp_pool2d(freed(1, 3, 4, 4), float("inf"), 2),
    "infinite norm, trained": lambda: ndpool.lp_pool2d(freed(1, 3, 4, 4).requires_grad_(), float("inf"), 2),
    "other dtype": lambda: ndpool.avg_pool2d(freed(1, 3, 4, 4), 2, dtype=torch.float64),
    "negated": lambda: ndpool.max_pool2d(torch._neg_view(freed(1, 3, 4, 4)), 2),
    "input of a norm's gradient": lambda: freed_before_backward(),
    "gradient of a norm": lambda: ndpool.lp_pool2d(leaf(1, 3, 4, 4), 2, 2).backward(freed(1, 3, 2, 2)),
    "view": lambda: ndpool.max_pool2d(freed_view(), 2),
    "cut": lambda: ndpool.max_pool2d(freed(2, 3, 64, 64, left=400), 2),
    "out": lambda: ndpool.max_pool2d(torch.rand(1, 3, 4, 4), 2, out=freed(1, 3, 2, 2)),
    "gradient": lambda: ndpool.max_pool2d(leaf(1, 3, 4, 4), 2).backward(freed(1, 3, 2, 2)),
    "gradient of averages": lambda: ndpool.avg_pool2d(leaf(1, 3, 4, 4), 2).backward(freed(1, 3, 2, 2)),
    "other gradient": lambda: ndpool.pool(leaf(4, 4), (2, 2), axes=(1, 0)).backward(freed(2, 2)),
    "unpooled": lambda: ndpool.max_unpool2d(freed(1, 3, 2, 2), torch.zeros(1, 3, 2, 2, dtype=torch.int64), 2),
    "unpooled indices": lambda: ndpool.max_unpool2d(
        torch.rand(1, 3, 2, 2), freed(1, 3, 2, 2, dtype=torch.int64), 2
    ),
    "fractional": lambda: ndpool.fractional_max_pool2d(freed(1, 3, 8, 8), 2, 3),
    "operator": lambda: torch.ops.ndpool.pool_indices(freed(4, 4), [0, 1], "pool", "max", [2, 2]),
}


def leaf(*shape):
    return torch.rand(shape, requires_grad=True)


@pytest.mark.parametrize("entry", FREED)
def test_freed_memory_is_not_touched(entry):
    """Tensors whose storage was resized to zero or too few bytes."""
    # Cache the calls of this shape first.
    ndpool.max_pool2d(torch.rand(1, 3, 4, 4), 2), ndpool.avg_pool2d(torch.rand(1, 3, 4, 4), 2)
    with pytest.raises(ValueError, match=r"a tensor's memory was freed or shrunk; its storage has \d+ bytes"):
        FREED[entry]()


def test_empty_tensors_need_no_memory():
    for x in (torch.zeros(0, 3, 4, 4), freed(0, 3, 4, 4), torch._efficientzerotensor((1, 3, 4, 4))):
        assert not ndpool.max_pool2d(x, 2).any()


BEYOND_MEMORY = [
    "ndpool.adaptive_avg_pool2d(x, 512)",
    "ndpool.adaptive_max_pool2d(x, 512, return_indices=True)",
    "ndpool.adaptive_avg_pool2d(x.detach().requires_grad_(), 512)",
    "ndpool.adaptive_pool(x, (512, 512), reduce='sum')",
    "ndpool.max_unpool2d(x, torch.zeros_like(x, dtype=torch.int64), 512)",
]


@pytest.fixture(scope="module")
def raised_without_memory():
    """What each of these calls raises in a process whose memory is limited: is it each error, its message."""
    code = """
import json, resource, sys, torch, ndpool
torch.set_num_threads(1)
ndpool.max_pool2d(torch.rand(1, 4, 4), 2)
x = torch.rand(1, 1, 4, 4).expand(64, 64, 4, 4)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
raised = {}
for call in sys.argv[1:]:
    try:
        eval(call)
    except Exception as error:
        raised[call] = isinstance(error, MemoryError), isinstance(error, RuntimeError), str(error)
print(json.dumps(raised))
"""
    return json.loads(run_python(code, *BEYOND_MEMORY))


@not_sanitized
@pytest.mark.parametrize("call", BEYOND_MEMORY)
def test_out_of_memory_is_a_memory_error(call, raised_without_memory):
    """MemoryError as for NumPy arrays and also RuntimeError as in PyTorch, naming the function."""
    memory_error, runtime_error, message = raised_without_memory[call]
    assert memory_error
    assert runtime_error
    assert message.startswith(f"{call[7 : call.index('(')]}: ")


X = torch.rand(1, 2, 6, 6)
AT = torch.zeros(1, 2, 6, 6, dtype=torch.int64)
WRONG = [
    ("max_pool2d", (X.to(torch.complex64), 2), {}, TypeError, "supported dtype; got dtype=complex64"),
    ("max_pool2d", (X.to_sparse(), 2), {}, TypeError, "layout=torch.sparse_coo"),
    ("max_pool2d", (X, 2), {"out": X}, ValueError, "out must have shape"),
    ("max_pool2d", (X, 2), {"out": AT[..., :3, :3]}, TypeError, "out must have dtype"),
    ("max_pool2d", (X, 1), {"out": X[..., :1].expand(X.shape)}, ValueError, "out must not overlap itself"),
    ("max_pool2d", (X, 2), {"out": 3}, TypeError, "out must be a tensor"),
    ("max_pool2d", (X, 1), {"out": X.clone().requires_grad_()}, ValueError, "must not require"),
    ("max_pool2d", (X.clone().requires_grad_(), 1), {"out": X}, ValueError, "derivative"),
    ("max_pool2d", (X, 1, 1, 0, 1, False, True), {"out": X}, TypeError, "pair"),
    ("max_pool2d", (AT, 1, 1, 0, 1, False, True), {"out": (AT, AT)}, ValueError, "share no memory"),
    ("avg_pool2d", (X, 2), {"dtype": "float64"}, TypeError, "dtype must be a supported torch.dtype"),
    ("avg_pool2d", (X, 2), {"dtype": torch.int32}, TypeError, "dtype must be one that avg pooling"),
    ("max_unpool2d", (X, AT - 1, 1), {}, ValueError, "got index -1"),
    ("max_unpool2d", (X, AT.float(), 1), {}, TypeError, "indices must be integers"),
    ("max_unpool2d", (X, AT[:, :1], 1), {}, ValueError, "indices must have the input's shape"),
    ("max_unpool2d", (X, AT.numpy(), 1), {}, TypeError, "indices must be a tensor"),
    ("lp_pool2d", (AT, -2, 2), {}, ValueError, "norm_type must be from 1"),
    ("fractional_max_pool2d", (X, 2, 2), {"_random_samples": X.numpy()}, TypeError, "must be a tensor"),
]


@pytest.mark.parametrize(("name", "args", "kwargs", "error", "message"), WRONG)
def test_errors(name, args, kwargs, error, message):
    """pytorch#132041: errors are raised before anything is computed."""
    with pytest.raises(error, match=message):
        getattr(ndpool, name)(*args, **kwargs)


@pytest.mark.parametrize("kernel", [0, -1, 9, 2.0, (2, 2, 2), True])
def test_errors_equal_numpys(kernel):
    """The same type and message for every framework."""
    raised = []
    for x in (X, X.numpy()):
        with pytest.raises((ValueError, TypeError)) as caught:
            ndpool.max_pool2d(x, kernel)
        raised.append((caught.type, str(caught.value)))
    assert raised[0] == raised[1]


def test_other_devices_go_through_the_cpu(monkeypatch):
    """Tensors on a device without kernels are pooled on the CPU and moved back, with one warning."""
    from ndpool._call import Call
    from ndpool.frameworks.torch import kernels

    class Elsewhere(torch.Tensor):
        is_cpu, device = False, torch.device("meta")

        def cpu(self):
            return self.as_subclass(torch.Tensor)

    x = seeded(1, 2, 6, 6)
    seen = []
    kernels._warn.cache_clear()
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: seen.append(self) or device)
    plan = ndpool.geometry.sliding("max_pool2d", (6, 6), 2, 2, 0, 1, False, strict=True)
    call = Call("max_pool2d", ndpool.reductions.REDUCTIONS["max"], (2, 3), plan, dtype=x.dtype)
    with pytest.warns(UserWarning, match="no kernels for meta: such tensors are pooled on the CPU"):
        assert kernels.pool(call, x.as_subclass(Elsewhere)) == torch.device("meta")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernels.pool(call, x.as_subclass(Elsewhere))
    monkeypatch.undo()
    assert len(seen) == 2
    assert all(torch.equal(y, F.max_pool2d(x, 2)) for y in seen)


LAZY = """
import warnings, torch, ndpool, torch._lazy.ts_backend as backend

backend.init()
x = torch.arange(420.0).mul(7).sin().reshape(2, 3, 7, 10)
calls = [
    lambda x: (ndpool.adaptive_avg_pool2d(x, (3, 4)),),
    lambda x: ndpool.adaptive_max_pool2d(x, (3, 12), return_indices=True),
    lambda x: torch.autograd.functional.vjp(lambda x: ndpool.adaptive_max_pool2d(x, 3).sum(), x),
]
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for call in calls:
        for far, near in zip(call(x.to("lazy")), call(x), strict=True):
            assert far.device.type == "lazy"
            assert torch.equal(far.cpu(), near)
print(len(seen), seen[0].message)
"""


def test_a_device_without_kernels_gives_the_results_of_the_cpu():
    """pytorch#96056, as on MPS: the lazy device is the one without kernels that every PyTorch has."""
    warned = "1 ndpool has no kernels for lazy: such tensors are pooled on the CPU"
    assert run_python(LAZY).strip() == warned


def test_pooling_an_array_does_not_import_torch():
    code = "import sys, numpy as np, ndpool; ndpool.max_pool2d(np.ones((1, 4, 4)), 2)"
    assert run_python(code + "; print('torch' in sys.modules)").strip() == "False"
