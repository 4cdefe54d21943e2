"""JAX arrays: PyTorch's results, every transform, dtypes and errors; by the core and by `jax.lax`.

`NDPOOL_TEST_ALL=1` compares all adaptive pairs with PyTorch instead of some, and
`tests/jax_draws.py` draws as many random calls as asked for.
"""

from __future__ import annotations

import os
from itertools import product

import numpy as np
import pytest

import cases
import ndpool
import ndpool.nn
import oracle
from helpers import hard_values, on_axes, plain, run_python

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy
import jax_draws  # noqa: E402
from jax_draws import WAYS, way  # noqa: E402

EVERYTHING = os.environ.get("NDPOOL_TEST_ALL") == "1"


@pytest.fixture(autouse=True)
def _wide():
    """64-bit types, as NumPy and PyTorch have them; restored after each test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=WAYS)
def each_way(request):
    """The test by the core, then by `jax.lax`."""
    with way(request.param):
        yield request.param


def numbers(*shape, seed=0, dtype=np.float64):
    """Distinct values in random order: no ties, and finite differences that change no maximum."""
    count = int(np.prod(shape))
    return jnp.asarray(np.random.default_rng(seed).permutation(count).reshape(shape).astype(dtype) / 7 + 0.5)


PLACES = np.stack([np.random.default_rng(i).permutation(168)[:42].reshape(6, 7) for i in (0, 1)])[None]

# Functions of one array (1, 2, 6, 7) whose derivatives exist.
SMOOTH = {
    "max": lambda x: ndpool.max_pool2d(x, 3, 2, 1),
    "max dilated": lambda x: ndpool.max_pool2d(x, 2, 1, 1, dilation=3),
    "min": lambda x: ndpool.pool(x, (2, 3), reduce="min", padding="same"),
    "avg": lambda x: ndpool.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "sum": lambda x: ndpool.pool(x, (2, 2), reduce="sum", stride=1, axes=(1, 3)),
    "lp": lambda x: ndpool.lp_pool2d(x, 3, 2),
    "norm": lambda x: ndpool.pool(x, (2, 2), reduce="lp", norm_type=2.5),
    "lp inf": lambda x: ndpool.lp_pool2d(x, np.inf, 2),
    "adaptive max": lambda x: ndpool.adaptive_max_pool2d(x, (4, 5)),
    "adaptive avg": lambda x: ndpool.adaptive_avg_pool2d(x, (4, 9)),
    "global": lambda x: ndpool.adaptive_avg_pool2d(x, 1) + ndpool.adaptive_max_pool2d(x, 1),
    "fractional": lambda x: ndpool.fractional_max_pool2d(x, 2, output_size=3, generator=3),
    "unpool": lambda x: ndpool.max_unpool2d(x, jnp.asarray(PLACES), 2),
}
BY_LAX = ("max dilated", "adaptive avg", "lp", "sum")  # the others differ in the plan alone
CALLS = [(name, "core") for name in SMOOTH] + [(name, "lax") for name in BY_LAX]


@pytest.mark.parametrize("family", cases.ORDER)
def test_equal_to_the_oracle(family):
    """Random calls, compiled and eager, and their gradients; `jax_draws.py` draws more."""
    rng = np.random.default_rng(len(family))
    names = [name for name in cases.NAMES if name[:-2] == family]
    in_core = family not in ("fractional_max_pool", "max_unpool")
    drawn = [
        jax_draws.without_subnormals(jax_draws.draw(rng, name)) for name in names * (5 if in_core else 2)
    ]
    with way("core"):
        jax_draws.check(drawn, jitted=True)
        jax_draws.check_gradients(drawn[::2], rng)
        jax_draws.check(drawn[: len(names)], jitted=False)
    if in_core:
        with way("lax"):
            jax_draws.check(drawn[: len(names)], jitted=True)
            jax_draws.check_gradients(drawn[-1:], rng)


def pairs():
    """Triples of (size, output) pairs: 3-D calls whose axes are all pairs up to 40, or some of them."""
    every = list(product(range(1, 41), repeat=2))
    np.random.default_rng(0).shuffle(every)
    every = every[: len(every) if EVERYTHING else 60]
    every += every[: -len(every) % 3]
    return [every[i : i + 3] for i in range(0, len(every), 3)]


def test_adaptive_pairs_equal_pytorch():
    """keras#18191, haliax#50, pytorch#190064: values, indices and gradients of all pairs up to 40."""
    torch = pytest.importorskip("torch")
    rng, together = np.random.default_rng(0), 16
    functional = torch.nn.functional

    def everything(xs, grads, outs):
        results = []
        for x, grad, out in zip(xs, grads, outs, strict=True):
            pooled = jax.vjp(lambda x: ndpool.adaptive_max_pool3d(x, out, True), x, has_aux=True)  # noqa: B023
            mean, back = jax.vjp(lambda x: ndpool.adaptive_avg_pool3d(x, out), x)  # noqa: B023
            results.append((pooled[0], pooled[2], pooled[1](grad)[0], mean, back(grad)[0]))
        return results

    triples = pairs()
    for k in range(0, len(triples), together):
        part = triples[k : k + together]
        outs = tuple(tuple(int(out) for _, out in triple) for triple in part)
        xs = [rng.integers(-9, 10, (1, *(size for size, _ in triple))).astype(np.float32) for triple in part]
        grads = [rng.integers(-9, 10, (1, *out)).astype(np.float32) for out in outs]
        got = jax.jit(everything, static_argnums=2)([*map(jnp.asarray, xs)], [*map(jnp.asarray, grads)], outs)
        for x, grad, out, mine in zip(xs, grads, outs, got, strict=True):
            tensors = [torch.from_numpy(x).requires_grad_() for _ in range(2)]
            values, indices = functional.adaptive_max_pool3d(tensors[0], out, True)
            mean = functional.adaptive_avg_pool3d(tensors[1], out)
            for result in (values, mean):
                result.backward(torch.from_numpy(grad))
            exact = (values, indices, tensors[0].grad)
            for have, want in zip(mine, exact, strict=False):
                assert np.array_equal(have, want.detach().numpy()), (x.shape, out)
            for have, want in zip(mine[3:], (mean, tensors[1].grad), strict=True):
                np.testing.assert_allclose(have, want.detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "out"), [(16, 3), (191, 3), (4096, 3), (7, 12)])
def test_adaptive_sizes_that_do_not_divide(each_way, size, out):
    """tensorflow/addons#2321, FlagGems#4915."""
    x = plain((2, 3, size), np.float32)
    got = ndpool.adaptive_max_pool1d(jnp.asarray(x), out, return_indices=True)
    want = oracle.adaptive_max_pool(x, [out])
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_ported_model_gives_the_same_numbers():
    """equinox#641: 10x90x90x50 to 4x4x4."""
    x = np.random.default_rng(0).standard_normal((10, 90, 90, 50)).astype(np.float32)
    got = ndpool.adaptive_avg_pool3d(jnp.asarray(x), 4)
    np.testing.assert_allclose(got, oracle.adaptive_avg_pool(x, [4] * 3), atol=1e-6)


@pytest.mark.parametrize(("name", "by"), CALLS)
def test_every_transform(name, by):
    """jax#274, jax#7815: grad, jvp, vmap, second derivatives and checkpoint, against finite differences."""
    with way(by):
        check_transforms(SMOOTH[name])


def check_transforms(f):
    x = numbers(1, 2, 6, 7)
    v, u = numbers(1, 2, 6, 7, seed=1) / 10, numbers(1, 2, 6, 7, seed=2) / 10

    def loss(x):
        return (f(x) ** 2).sum()

    @jax.jit
    def derivatives(x, v, u):
        gradient = jax.grad(jax.jit(loss))
        slope, curve = jax.jvp(gradient, (x,), (v,))
        checked = jax.grad(jax.checkpoint(loss))(x)
        forward = jax.jvp(f, (x,), (v,))[1]
        batch = jnp.stack([v, u])
        batched = jax.vmap(lambda t: jax.jvp(f, (x,), (t,))[1])(batch)
        twice = jax.grad(lambda x: (gradient(x) * u).sum())(x)
        mapped = jax.vmap(f, in_axes=1, out_axes=1)(jnp.moveaxis(jnp.stack([x, x + v]), 0, 1))
        pulled = jax.vmap(lambda t: jax.vjp(f, x)[1](t)[0])(jnp.stack([f(x), f(x)]))
        return slope, curve, checked, forward, batched, twice, mapped, pulled, f(x), f(x + v)

    slope, curve, checked, forward, batched, twice, mapped, pulled, y, moved = derivatives(x, v, u)
    step = 1e-6
    sides = [jax.jit(jax.value_and_grad(loss))(x + s * step * v) for s in (1, -1)]
    close = {"rtol": 1e-5, "atol": 1e-4}
    np.testing.assert_allclose((slope * v).sum(), (sides[0][0] - sides[1][0]) / (2 * step), **close)
    np.testing.assert_allclose(curve, (sides[0][1] - sides[1][1]) / (2 * step), **close)
    np.testing.assert_allclose((curve * u).sum(), (twice * v).sum(), rtol=1e-9)  # second derivatives commute
    np.testing.assert_allclose(checked, slope, rtol=1e-12)
    np.testing.assert_allclose((2 * y * forward).sum(), (slope * v).sum(), rtol=1e-9)
    np.testing.assert_allclose(batched[0], forward, rtol=1e-12)
    np.testing.assert_allclose(mapped[:, 0], y, rtol=1e-12)
    np.testing.assert_allclose(mapped[:, 1], moved, rtol=1e-12)
    np.testing.assert_allclose(2 * pulled[1], slope, rtol=1e-9)


def test_hessian(each_way):
    """jax#274: the Hessian of a pooled scalar."""
    x = numbers(16)
    hessian = jax.jit(jax.hessian(lambda x: (ndpool.max_pool2d(x.reshape(1, 4, 4), 2) ** 3).sum()))(x)
    best = np.asarray(ndpool.max_pool2d(x.reshape(1, 4, 4), 2)).ravel()
    assert np.allclose(np.sort(np.diag(hessian))[-4:], np.sort(6 * best))
    assert np.count_nonzero(hessian) == 4


def test_compositions_of_transforms(each_way):
    """functorch#1019: vmap(jvp(vjp)) for odd strides, on a transposed input."""
    x, v = numbers(3, 7, 9, 2).T, numbers(3, 7, 9, 2, seed=1).T  # (2, 9, 7, 3)

    def pulled(x):
        y, back = jax.vjp(lambda x: ndpool.max_pool2d(x, 3, stride=(3, 2), padding=1) ** 2, x)
        return back(y)[0]

    def pushed(x, v):
        return jax.jvp(pulled, (x,), (v,))[1]

    got = jax.vmap(pushed, in_axes=3, out_axes=3)(x, v)
    want = jnp.stack([pushed(x[..., i], v[..., i]) for i in range(3)], 3)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_indices_inside_jit_and_under_grad(each_way):
    """jax#9961, torchax#32: indices do not disturb the gradient, with or without jit."""
    x = jnp.asarray(hard_values((2, 3, 9, 8), np.float64, special=0))
    want = oracle.max_pool(np.asarray(x), [3, 3], 2, 1)

    def with_indices(x):
        values, indices = ndpool.max_pool2d(x, 3, 2, 1, return_indices=True)
        return (values**2).sum(), (values, indices)

    (_, got), slope = jax.jit(jax.value_and_grad(with_indices, has_aux=True))(x)
    assert np.array_equal(got[0], want[0])
    assert np.array_equal(got[1], want[1])
    assert got[1].dtype == np.int64
    alone = jax.grad(lambda x: (ndpool.max_pool2d(x, 3, 2, 1) ** 2).sum())(x)
    assert np.array_equal(slope, alone)


def test_ties_and_nan(each_way):
    """tensorflow#51682: the first of ties gets everything, the last NaN wins."""
    x = jnp.asarray(hard_values((40, 2, 7, 8), np.float32, special=0.1))
    values, indices = ndpool.max_pool2d(x, 3, 2, 1, return_indices=True)
    want = oracle.max_pool(np.asarray(x), [3, 3], 2, 1)
    assert np.array_equal(values, want[0], equal_nan=True)
    assert np.array_equal(indices, want[1])
    grad = jax.grad(lambda x: ndpool.max_pool2d(x, 3, 2, 1).sum())(x)
    back = oracle.max_pool_backward(np.ones(want[0].shape, np.float32), want[1], (7, 8))
    assert np.array_equal(grad, back)


def test_dilated_gradient_equals_pytorch(each_way):
    """pytorch/xla#534, nx#1679: XLA has no gradient of dilated windows."""
    torch = pytest.importorskip("torch")
    x = plain((2, 3, 11, 13), np.float32)
    tensor = torch.from_numpy(x).requires_grad_()
    torch.nn.functional.max_pool2d(tensor, 3, 2, 1, dilation=2).square().sum().backward()
    got = jax.grad(lambda x: (ndpool.max_pool2d(x, 3, 2, 1, dilation=2) ** 2).sum())(jnp.asarray(x))
    assert np.array_equal(got, tensor.grad.numpy())


def test_a_constant_input_has_no_tangent(each_way):
    """jax#39809: a symbolic zero tangent."""
    x = numbers(1, 4, 4)

    def pooled(scale):
        fixed = ndpool.max_pool2d(x, 2), ndpool.avg_pool2d(x, 2), ndpool.lp_pool2d(x, 2, 2)
        return (
            scale * sum(y.sum() for y in fixed) + ndpool.max_pool2d(jax.lax.stop_gradient(x) * 1.0, 2).sum()
        )

    value, slope = jax.jvp(pooled, (2.0,), (1.0,))
    assert np.isfinite(value)
    assert slope > 0
    tangent = jax.jvp(lambda x: ndpool.max_pool2d(jax.lax.stop_gradient(x), 2), (x,), (x,))[1]
    assert not tangent.any()


def test_large_inputs_need_no_base_dilation(each_way):
    """openxla/xla#48714: the gradient of a large strided pool, which XLA writes with base dilation."""
    x = jnp.asarray(plain((1, 1, 700, 901), np.float32))
    program = jax.jit(jax.grad(lambda x: ndpool.avg_pool2d(x, 3, 2, 1).sum())).lower(x)
    assert "base_dilations = array<i64: 1, 1, 2" not in program.as_text()
    got = program.compile()(x)
    covered = [np.array([1 + (i % 2 and i < size - 1) for i in range(size)]) for size in (700, 901)]
    np.testing.assert_allclose(got[0, 0], np.outer(*covered) / 9, rtol=1e-6)


def test_too_small_inputs_raise_while_tracing():
    """jax#3973: no negative shapes."""
    with pytest.raises(ValueError, match=r"max_pool2d: the window must fit into the padded input"):
        jax.eval_shape(lambda x: ndpool.max_pool2d(x, 5), jax.ShapeDtypeStruct((1, 3, 3), np.float32))


@pytest.mark.parametrize("reduce", ["max", "avg"])
def test_the_program_does_not_grow_with_the_output(each_way, reduce):
    """haliax#50: no loop over outputs in the program."""

    def equations(out):
        def pool(x):
            return jax.vjp(lambda x: ndpool.adaptive_pool(x, (out, out), reduce=reduce), x)[1](
                jnp.ones((1, out, out), np.float32)
            )

        x = jax.ShapeDtypeStruct((1, 97, 89), np.float32)
        lowered = jax.jit(pool).lower(x).as_text()
        return len(str(jax.make_jaxpr(pool)(x)).splitlines()), lowered.count("stablehlo.")

    few, many = equations(11), equations(40)
    assert few[0] == many[0]
    assert many[1] <= few[1] + 20  # a mask more or less


SMALL_WINDOWS = [
    lambda x: ndpool.max_pool2d(x, 2),
    lambda x: ndpool.max_pool2d(x, 3, 2, 1),
    lambda x: ndpool.max_pool2d(x, 7, 1, 3),
    lambda x: ndpool.avg_pool2d(x, 2),
]


@pytest.mark.parametrize("pool", SMALL_WINDOWS)
def test_gradients_on_gpus_are_elementwise_operations(pool):
    """XLA fuses them into one kernel; reductions, gathers and scatters would each be one of their own."""
    x = jax.ShapeDtypeStruct((2, 3, 20, 22), np.float32)
    gradient = jax.jit(lambda x, grad: jax.vjp(pool, x)[1](grad)[0])
    program = jax.export.export(gradient, platforms=["cuda"])(x, jax.eval_shape(pool, x)).mlir_module()
    for operation in ("reduce", "gather", "scatter", "concatenate", "while", "custom_call"):
        assert f"stablehlo.{operation}" not in program


def test_small_windows_as_on_gpus():
    """What other devices run, on the CPU: strides, padding, dilation, NaN, ties and nothing but -inf."""
    rng = np.random.default_rng(7)
    for _ in range(25):
        n = int(rng.integers(1, 4))
        sizes, most = rng.integers(1, [40, 16, 8][n - 1], n), [17, 8, 4][n - 1]
        given = {
            "window": rng.integers(1, most, n).tolist(),
            "stride": rng.integers(1, 5, n).tolist(),
            "padding": [tuple(pads) for pads in rng.integers(0, 4, (n, 2)).tolist()],
            "dilation": rng.choice([1, 1, 2], n).tolist(),
            "ceil_mode": bool(rng.integers(2)),
            "axes": rng.permutation(n + 1)[:n].tolist(),
        }
        shape = np.full(n + 1, 2)
        shape[given["axes"]] = sizes
        dtype = rng.choice(["float32", "float16", "int8", "bool"])
        x = hard_values(tuple(shape.tolist()), np.dtype(dtype), special=0.1 if dtype[0] == "f" else 0)
        if dtype == "float32":
            x = np.where(np.abs(x) < np.finfo(x.dtype).smallest_normal, np.copysign(np.float32(0), x), x)
            x = np.full_like(x, -np.inf) if rng.random() < 0.3 else x
        elif dtype == "float16":
            x = np.round(x, 1)
        try:
            want = ndpool.pool(x, **given, return_indices=True)
        except ValueError:
            continue

        def pull(x, grad):
            return jax.vjp(lambda x: ndpool.pool(x, **given), x)[1](grad)[0]  # noqa: B023

        with way("fused"):
            got = jax.jit(lambda x: ndpool.pool(x, **given, return_indices=True))(x := jnp.asarray(x))  # noqa: B023
            for have, need in zip(got, want, strict=True):
                assert np.array_equal(have, need, equal_nan=dtype[0] == "f"), (shape, dtype, given)
            if dtype == "float32":
                grad = jnp.asarray(rng.integers(-9, 10, want[0].shape).astype(np.float32))
                fused = jax.jit(pull)(x, grad)
        if dtype == "float32":
            assert np.array_equal(fused, pull(x, grad)), (shape, given)


def test_strict_rules_of_promotion(each_way):
    """What users set against their own mistakes does not reach ndpool's arithmetic."""
    x = jnp.asarray(plain((2, 3, 8, 9), np.float32))

    def everything(x):
        values, indices = ndpool.max_pool2d(x, 3, 2, 1, return_indices=True)
        adaptive = (
            ndpool.adaptive_max_pool2d(x, (3, 4)).sum() + ndpool.avg_pool2d(x, 3, 2, 1, True, False).sum()
        )
        random = ndpool.fractional_max_pool2d(x, 2, output_size=3, generator=0).sum()
        return ndpool.max_unpool2d(values, indices, 3, 2, 1, output_size=(8, 9)).sum() + adaptive + random

    want = jax.grad(everything)(x)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        got = jax.grad(everything)(x)
    assert np.array_equal(got, want)


def test_programs_for_several_devices():
    """jax.export: the core's call must be allowed by name; one program may have the way of each device."""
    x = jnp.asarray(plain((2, 3, 8, 9), np.float32))
    gradient = jax.jit(jax.grad(lambda x: ndpool.max_pool2d(x, 3, 2, 1).sum()))
    allowed = [jax.export.DisabledSafetyCheck.custom_call("ndpool_pool")]
    with jax.enable_x64(False):
        program = jax.export.export(gradient, platforms=["cpu", "cuda"], disabled_checks=allowed)(x)
        again = jax.export.deserialize(program.serialize())
        assert np.array_equal(again.call(x), gradient(x))


SHARDED = """
import jax, numpy as np, ndpool
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("b",))
x = np.random.default_rng(0).standard_normal((4, 2, 8, 12)).astype(np.float32)
pool = lambda x: ndpool.max_pool2d(x, 3, 2, 1, return_indices=True)
gradient = jax.grad(lambda x: ndpool.max_pool2d(x, 3, 2, 1).sum())
want = *pool(jax.numpy.asarray(x)), gradient(jax.numpy.asarray(x))
for spec in (P("b"), P(None, None, "b"), P(None, None, None, "b")):
    parts = jax.device_put(x, NamedSharding(mesh, spec))
    for got in ((*pool(parts), gradient(parts)), (*jax.jit(pool)(parts), jax.jit(gradient)(parts))):
        assert all(map(np.array_equal, got, want)), spec
mapped = jax.shard_map(pool, mesh=mesh, in_specs=P("b"), out_specs=P("b"))(x)
assert all(map(np.array_equal, mapped, want))
print(len(jax.devices()))
"""


def test_sharded_arrays():
    """Arrays over several devices, along the batch or a pooled axis, equal one array."""
    assert run_python(SHARDED, XLA_FLAGS="--xla_force_host_platform_device_count=4").strip() == "4"


def test_channels_last(each_way):
    """flax#5201, tensorflow#2660: any axes, in any order."""
    x = plain((2, 9, 11, 16), np.float32)
    for axes in ((1, 2), (2, 1), (3, 0)):
        got = ndpool.pool(jnp.asarray(x), (3, 2), stride=2, axes=axes, return_indices=True)
        want = on_axes(oracle.max_pool, x, axes, [3, 2], 2)
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
        back = jax.grad(lambda x: ndpool.pool(x, (3, 2), stride=2, axes=axes).sum())(jnp.asarray(x))  # noqa: B023
        other = jax.grad(
            lambda x: ndpool.max_pool2d(jnp.moveaxis(x, axes, (2, 3)), (3, 2), 2).sum()  # noqa: B023
        )(jnp.asarray(x))
        assert np.array_equal(back, other)
    mean = ndpool.adaptive_pool(jnp.asarray(x), (1, 1), axes=(1, 2), reduce="avg")
    np.testing.assert_allclose(mean, x.mean((1, 2), keepdims=True), atol=1e-6)


def test_averages_as_in_pytorch(each_way):
    """flax#1848, equinox#175: count_include_pad, divisor_override and ceil_mode."""
    torch = pytest.importorskip("torch")
    x = plain((1, 2, 7, 9), np.float32)
    for include, divisor, ceil in (
        (False, None, True),
        (True, None, True),
        (True, 5, False),
        (False, -3, True),
    ):
        given = (3, 2, 1, ceil, include, divisor)
        got = ndpool.avg_pool2d(jnp.asarray(x), *given)
        want = torch.nn.functional.avg_pool2d(torch.from_numpy(x), *given).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_ceil_mode_over_small_shapes():
    """equinox#175: sizes, kernels, strides and paddings up to 5, in one program; indices too."""
    torch = pytest.importorskip("torch")
    grid = [
        (size, k, s, p)
        for size, k, s, p in product(range(1, 6), repeat=4)
        if p - 1 <= k // 2 and size + 2 * p - 2 >= k
    ][::3]
    xs = [plain((1, 1, size), np.float32, seed=size) for size, *_ in grid]

    def everything(xs):
        return [
            ndpool.max_pool1d(x, k, s, p - 1, ceil_mode=True, return_indices=True)
            for x, (_, k, s, p) in zip(xs, grid, strict=True)
        ]

    for x, (_, k, s, p), got in zip(xs, grid, jax.jit(everything)(xs), strict=True):
        want = torch.nn.functional.max_pool1d(torch.from_numpy(x), k, s, p - 1, 1, True, True)
        assert all(np.array_equal(a, b.numpy()) for a, b in zip(got, want, strict=True))


def test_fractional_with_a_key():
    """A key, old or new, or a seed; the same key gives the same windows, also inside jit and vmap."""
    x = numbers(2, 3, 9, 8, dtype=np.float32)
    pool = jax.jit(lambda x, key: ndpool.fractional_max_pool2d(x, 2, output_size=(4, 5), generator=key))
    keys = jax.random.key(1), jax.random.PRNGKey(1), 1
    got = [ndpool.fractional_max_pool2d(x, 2, output_size=(4, 5), generator=key) for key in keys]
    assert all(np.array_equal(got[0], other) for other in (*got[1:], pool(x, keys[0])))
    each = jax.vmap(pool, in_axes=(None, 0))(x, jax.random.split(jax.random.key(2), 3))
    assert each.shape == (3, 2, 3, 4, 5)
    assert not np.array_equal(each[0], each[1])
    for wrong in (None, True, -1, "key", jnp.zeros(3), np.random.default_rng(0)):
        with pytest.raises(TypeError, match=r"fractional_max_pool2d: generator must be a JAX key"):
            ndpool.fractional_max_pool2d(x, 2, output_size=4, generator=wrong)
    with pytest.raises(ValueError, match=r"_random_samples must be in \[0, 1\]; got 2.0 to 2.0"):
        ndpool.fractional_max_pool2d(x, 2, output_size=4, _random_samples=jnp.full((2, 3, 2), 2, np.float32))


def test_fractional_in_half_precision_equals_numpy():
    """Windows are placed in the samples' own precision, which compilers like to widen."""
    rng = np.random.default_rng(3)
    for dtype in cases.HALVES:
        x = rng.standard_normal((20, 3, 7, 211)).astype(dtype)
        samples = np.minimum(rng.random((20, 3, 2)), 0.99).astype(dtype)
        given = {"output_size": (3, 97), "return_indices": True}
        want = ndpool.fractional_max_pool2d(x, 2, **given, _random_samples=samples)
        got = ndpool.fractional_max_pool2d(jnp.asarray(x), 2, **given, _random_samples=jnp.asarray(samples))
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_unpool(each_way):
    """tensorflow#2169: from indices and sizes alone; the last of repeated indices wins; channels-last too."""
    x = jnp.asarray(plain((2, 3, 7, 9), np.float32))
    values, indices = ndpool.max_pool2d(x, 3, 2, return_indices=True)
    got = jax.jit(lambda v, i: ndpool.max_unpool2d(v, i, 3, 2, output_size=x.shape))(values, indices)
    assert np.array_equal(got, oracle.max_unpool(np.asarray(values), np.asarray(indices), [7, 9]))
    last = ndpool.unpool(jnp.moveaxis(values, 1, 3), jnp.moveaxis(indices, 1, 3), (7, 9), axes=(1, 2))
    assert np.array_equal(jnp.moveaxis(last, 3, 1), got)
    slope = jax.grad(lambda v: (ndpool.unpool(v, indices, (7, 9)) * jnp.arange(9)).sum())(values)
    assert np.array_equal(slope, indices % 9)
    repeated = ndpool.unpool(jnp.array([[1.0, 2.0, 3.0]]), jnp.array([[2, 2, 0]]), (4,))
    assert repeated.tolist() == [[3, 0, 2, 0]]


def test_indices_outside_the_plane():
    """Known ones raise; those of a compiled program are dropped."""
    values = jnp.ones((1, 2))
    with pytest.raises(ValueError, match=r"unpool: indices must lie in the plane .* got index -1"):
        ndpool.unpool(values, jnp.array([[0, -1]]), (4,))
    with pytest.raises(ValueError, match=r"got index 4 with output sizes \(4,\) \(limit 3\)"):
        ndpool.unpool(values, jnp.array([[0, 4]], np.uint8), (4,))
    got = jax.jit(lambda v, i: ndpool.unpool(v, i, (4,)))(values, jnp.array([[-1, 7]]))
    assert not got.any()
    with pytest.raises(TypeError, match="unpool: indices must be a JAX array; got ndarray"):
        ndpool.unpool(values, np.zeros((1, 2), np.int64), (4,))


@pytest.mark.parametrize(
    "name", ["bool", "int8", "uint8", "int32", "uint64", "float16", "bfloat16", "float64"]
)
def test_dtypes_are_those_of_numpy(each_way, name):
    """Values and dtypes of every reduction; half types accumulate in float32."""
    dtype = np.dtype(jnp.dtype(name))
    x = hard_values((2, 9, 10), dtype, special=0)
    asked = [None, "float32"] if name in ("bool", "uint8", "float16") else [None]
    calls = [("max", None), ("min", None), ("sum", None), ("lp", None)]
    calls += [("avg", kind) for kind in asked if (name, kind) != ("bool", None)]
    for reduce, kind in calls:
        got = ndpool.pool(jnp.asarray(x), (3, 3), stride=2, padding=1, reduce=reduce, dtype=kind)
        want = ndpool.pool(x, (3, 3), stride=2, padding=1, reduce=reduce, dtype=kind)
        assert got.dtype == want.dtype
        eps = float(jnp.finfo(got.dtype).eps) if jnp.issubdtype(got.dtype, jnp.floating) else 0
        np.testing.assert_allclose(np.asarray(got, np.float64), want.astype(np.float64), rtol=4 * eps)
    if name in ("float16", "bfloat16"):
        ones = jnp.ones((1, 64, 64), dtype)
        assert ndpool.pool(ones, (64, 64), reduce="sum").item() == 4096
        slope = jax.grad(lambda x: ndpool.adaptive_avg_pool2d(x, 64).sum().astype(np.float32))(
            ones[:, :1, :1]
        )
        assert slope.item() == 4096


def test_without_64_bit_types(each_way):
    """JAX's rule: indices and sums of integers are int32 then; averages are still added up in 64 bits."""
    with jax.enable_x64(False):
        x = jnp.asarray(plain((1, 2, 9, 9), np.float32))
        values, indices = jax.jit(lambda x: ndpool.max_pool2d(x, 3, 2, return_indices=True))(x)
        want = oracle.max_pool(np.asarray(x), [3, 3], 2)
        assert indices.dtype == np.int32
        assert np.array_equal(indices, want[1])
        assert np.array_equal(values, want[0])
        large = jnp.full((1, 4, 4), 2**30, np.int32)
        assert ndpool.avg_pool2d(large, 4).item() == 2**30
        assert ndpool.pool(large // 2**20, (4, 4), reduce="sum").dtype == np.int32
        assert ndpool.lp_pool2d(large // 2**28, 2, 4).item() == 16
        assert jax.grad(lambda x: ndpool.max_pool2d(x, 2).sum())(x).dtype == np.float32


def test_empty_batches(each_way):
    """pytorch#64306: values, gradient and second derivative of an empty batch."""
    x = jnp.zeros((0, 2, 6, 6))
    gradient = jax.grad(lambda x: (ndpool.max_pool2d(x, 2) ** 2).sum() + ndpool.avg_pool2d(x, 2).sum())
    assert ndpool.max_pool2d(x, 2, return_indices=True)[1].shape == (0, 2, 3, 3)
    assert gradient(x).shape == x.shape
    assert jax.jvp(gradient, (x,), (x,))[1].shape == x.shape


def test_arguments_that_do_not_apply():
    x = jnp.ones((1, 4, 4))
    for function, out in ((ndpool.max_pool2d, x), (ndpool.avg_pool2d, np.ones((1, 2, 2)))):
        with pytest.raises(TypeError, match=rf"{function.__name__}: out must not be given for JAX arrays"):
            function(x, 2, out=out)
    with pytest.raises(TypeError, match="pool: dtype must be a dtype of JAX"):
        ndpool.pool(x, (2, 2), reduce="avg", dtype="no dtype")
    with pytest.raises(
        TypeError, match="max_pool2d: input must have a supported dtype; got dtype=complex128"
    ):
        ndpool.max_pool2d(x * 1j, 2)
    with pytest.raises(TypeError, match=r"max_pool2d: input must be readable by numpy\.asarray; got jax"):
        ndpool.max_pool2d(jax.random.split(jax.random.key(0), (1, 4, 4)), 2)


def test_layers_inside_a_model():
    """flax#5201: layers are plain functions, in Equinox and Flax models alike."""
    x = numbers(1, 3, 8, 8, dtype=np.float32)
    layers = ndpool.nn.MaxPool2d(2), ndpool.nn.AdaptiveAvgPool2d((3, 2))

    def model(x):
        for layer in layers:
            x = layer(x)
        return x

    want = ndpool.adaptive_avg_pool2d(ndpool.max_pool2d(np.asarray(x), 2), (3, 2))
    np.testing.assert_allclose(jax.jit(model)(x), want, rtol=1e-6)
    assert jax.grad(lambda x: model(x).sum())(x).shape == x.shape
    equinox = pytest.importorskip("equinox", reason="Equinox is not installed")
    stack = equinox.nn.Sequential([equinox.nn.Lambda(layer) for layer in layers])
    np.testing.assert_allclose(equinox.filter_jit(stack)(x), want, rtol=1e-6)
    linen = pytest.importorskip("flax.linen", reason="Flax is not installed")
    module = linen.Sequential(layers)
    np.testing.assert_allclose(module.apply({}, x), want, rtol=1e-6)


def test_explain():
    x = jnp.ones((1, 4, 4), np.float32)
    assert str(ndpool.explain("max_pool2d", x, 2).forward) == "forward: core, called by XLA on jax cpu"
    with way("lax"):
        assert ndpool.explain("max_pool2d", x, 2).forward.engine == "jax.lax"


def test_jax_is_not_imported_for_others():
    code = (
        "import sys, numpy, ndpool; ndpool.max_pool2d(numpy.ones((1, 2, 2)), 2); print('jax' in sys.modules)"
    )
    assert run_python(code).strip() == "False"


def test_the_environment_leaves_all_to_xla():
    code = (
        "import jax, ndpool\nf = jax.jit(lambda x: ndpool.max_pool2d(x, 2))\n"
        "print('ndpool_pool' in f.lower(jax.ShapeDtypeStruct((1, 2, 2), 'float32')).as_text())"
    )
    assert run_python(code, NDPOOL_JAX="lax").strip() == "False"


def test_wrong_calls_of_the_handler_are_errors_of_xla():
    """The handler reads nothing that the call does not announce."""
    from ndpool.frameworks.jax import native

    x = jnp.ones((1, 4, 4), np.float32)
    jax.jit(lambda x: ndpool.max_pool2d(x, 2))(x)  # registers it
    plan = ndpool.geometry.sliding("f", (4, 4), 2, None, 0, 1, False, strict=True)
    words = native._words(0, 0, x.dtype, x.dtype, (0, False, 0, 0.0), plan, (-2, -1))
    shape = jax.ShapeDtypeStruct((1, 2, 2), np.float32)

    def call(words, shape=shape):
        return jax.jit(lambda x: jax.ffi.ffi_call("ndpool_pool", [shape])(x, call=words))(x)

    assert call(words)[0].shape == (1, 2, 2)
    wrong = [words[:-1], np.append(words, 0), words[:0]]
    far = ((15, 2**63 - 1), (16, -(2**63)), (16, 2**62), (20, 2**62))
    for place, value in ((0, 2), (2, 9), (4, 3), (9, 7), (10, -4), (11, 5), (13, 0), (21, 3), *far):
        wrong.append(words.copy())
        wrong[-1][place] = value
    for bad in wrong:
        with pytest.raises(Exception, match="ndpool: "):
            jax.block_until_ready(call(bad))
    for other in ((1, 2, 3), (2, 2), (2, 2, 2)):
        with pytest.raises(Exception, match="ndpool: "):
            jax.block_until_ready(call(words, jax.ShapeDtypeStruct(other, np.float32)))
    # The gradient of a maximum without offsets, and offsets of a sum.
    gradient, offsets = words.copy(), words.copy()
    gradient[1], offsets[2], offsets[3] = 1, 2, 1
    results = [shape, jax.ShapeDtypeStruct((1, 2, 2), np.uint8)]
    for bad, array, wanted in (
        (gradient, jnp.ones((1, 2, 2), np.float32), [jax.ShapeDtypeStruct(x.shape, x.dtype)]),
        (offsets, x, results),
    ):
        with pytest.raises(Exception, match="ndpool: the operation and its offsets do not agree"):
            jax.block_until_ready(jax.ffi.ffi_call("ndpool_pool", wanted)(array, call=bad))


def test_threads_and_instruction_sets_give_the_same_bits(restore_settings):
    from ndpool._native import core

    x = jnp.asarray(np.random.default_rng(0).standard_normal((8, 16, 90, 90)).astype(np.float32))
    pool = jax.jit(jax.value_and_grad(lambda x: (ndpool.avg_pool2d(x, 3, 2, 1) ** 2).sum()))
    wanted = None
    for isa, threads in product(core.isa_names(), (1, 2)):
        core.set_isa(isa)
        core.set_num_threads(threads)
        got = [np.asarray(a).tobytes() for a in pool(x)]
        wanted = wanted or got
        assert got[1] == wanted[1]


def test_shard_map():
    """Arrays of two devices give the same results; inside `shard_map` each shard is pooled on its own."""
    code = """
import jax, numpy as np, ndpool
from jax.sharding import Mesh, NamedSharding, PartitionSpec

by = PartitionSpec("batch")
mesh = Mesh(np.array(jax.devices()), ("batch",))
x = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
shards = jax.device_put(x, NamedSharding(mesh, by))
pool = lambda x: ndpool.max_pool2d(x, 3, 2, 1)
each = jax.shard_map(pool, mesh=mesh, in_specs=by, out_specs=by)
print(all(np.array_equal(f(shards), pool(x)) for f in (jax.jit(pool), each, jax.jit(each))))
gradients = [jax.grad(lambda x, f=f: (f(x) ** 2).sum())(shards) for f in (pool, each)]
print(np.array_equal(*gradients), len(each(shards).sharding.device_set))
"""
    if not hasattr(jax, "shard_map"):
        pytest.skip("this JAX has no jax.shard_map")
    flags = "--xla_force_host_platform_device_count=2"
    assert run_python(code, XLA_FLAGS=flags).split() == ["True", "True", "2"]
