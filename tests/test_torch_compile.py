"""PyTorch's compilers: operators with shape functions, derivatives and batching rules, no graph breaks.

Every registered operator passes PyTorch's opcheck. Compiled, exported and fake calls of every function agree
with eager calls, gradients included, for static and dynamic sizes.
"""

from __future__ import annotations

import warnings
from math import inf

import numpy as np
import pytest

import cases
import ndpool
from cases import as_tuple
from helpers import run_python

torch = pytest.importorskip("torch")
from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Skipping serialization:UserWarning"),  # PyTorch 2.6's own
]
F = torch.nn.functional


@pytest.fixture(autouse=True)
def reset_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def rand(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.5


SPATIAL = {1: (13,), 2: (9, 8), 3: (5, 6, 5)}
CALLS = [
    (f"{family}{n}d", SPATIAL[n], args, kwargs)
    for n in (1, 2, 3)
    for family, args, kwargs in [
        ("max_pool", (3, 2, 1), {}),
        ("max_pool", (2,), {"ceil_mode": True, "return_indices": True}),
        ("avg_pool", (3, 2, 1, True), {"count_include_pad": False}),
        ("avg_pool", ((2,) * n,), {"dtype": torch.float64}),
        ("lp_pool", (2, 3), {"stride": 2}),
        ("lp_pool", (inf, [2] * n), {}),
        ("adaptive_max_pool", (3,), {"return_indices": True}),
        ("adaptive_avg_pool", ((None, 3, 2)[-n:],), {}),
    ]
    + [("fractional_max_pool", (2, 3), {"generator": 3})] * (n > 1)
] + [
    ("pool", (7, 6), ((3, 2),), {"reduce": reduce, "padding": "same", "axes": (-1, 0)})
    for reduce in ("max", "min", "avg", "sum", "lp")
]
IDS = [f"{name}-{args}" for name, _, args, _ in CALLS]


def call(name, args, kwargs):
    def pool(x):
        return getattr(ndpool, name)(x, *args, **kwargs)

    return pool


def assert_equal(got, wanted):
    for a, b in zip(as_tuple(got), as_tuple(wanted), strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b, rtol=0 if a.dtype is torch.int64 else 1e-6, atol=0)


def gradient(pool, x):
    leaf = x.clone().requires_grad_()
    y = as_tuple(pool(leaf))[0]
    (g,) = torch.autograd.grad((y * y).sum(), leaf)
    return g


# Dynamic sizes in one to three dimensions, static sizes in two.
COMPILED = [(*c, True) for c in CALLS] + [(*c, False) for c in CALLS if len(c[1]) == 2]


@pytest.mark.parametrize(("name", "spatial", "args", "kwargs", "dynamic"), COMPILED)
def test_compiled_equals_eager(name, spatial, args, kwargs, dynamic):
    """pytorch#94775, pytorch#143801: one graph with eager's values, layouts and gradients for any size."""
    pool = call(name, args, kwargs)
    compiled = torch.compile(pool, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    x = rand(2, 3, *spatial)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        assert_equal(compiled(x), pool(x))
        torch.testing.assert_close(gradient(compiled, x), gradient(pool, x), rtol=1e-6, atol=0)
    other = rand(5, 2, *(size + 2 for size in spatial), seed=1)
    assert_equal(compiled(other), pool(other))


INDUCTOR = [
    ("avg_pool2d", (3, 2, 1, True), {}),
    ("max_pool2d", (3, 2, 1), {}),
    ("adaptive_avg_pool2d", (3,), {}),
    ("fractional_max_pool2d", (2, 3), {"generator": 3}),
]


def test_inductor(monkeypatch):
    """pytorch#198119, pytorch#183249: gradients of ceil-mode averages, samples from a seed, in one graph."""
    monkeypatch.setenv("CI", "true")  # where Inductor refuses operators that have a decomposition

    def net(x):
        return sum(
            getattr(ndpool, name)(x.sin(), *args, **kwargs).sum(0).sum((-1, -2))
            for name, args, kwargs in INDUCTOR
        )

    x = rand(2, 3, 8, 8)
    compiled = torch.compile(net, fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x))
    torch.testing.assert_close(gradient(compiled, x), gradient(net, x))


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"])
def test_no_recompilation_per_batch(name):
    """One graph is used for all batch sizes once it has become dynamic."""
    counter = CompileCounter()
    compiled = torch.compile(call(name, (2,), {}), fullgraph=True, backend=counter)
    for batch in (2, 3, 5, 8, 13, 21):
        x = rand(batch, 3, 8, 8)
        assert_equal(compiled(x), getattr(ndpool, name)(x, 2))
    assert counter.frame_count <= 2
    assert counter.op_count == counter.frame_count
    whole = torch.compile(call(name, (2,), {}), fullgraph=True, dynamic=True, backend="eager")
    whole(rand(2, 3, 8, 11))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch in (3, 5, 8):
            whole(rand(batch, 4, 9, 12))


def test_channels_last_compiled():
    """A compiled graph keeps the memory format, gradient included."""
    x = rand(2, 4, 8, 8).to(memory_format=torch.channels_last)
    for name in ("max_pool2d", "avg_pool2d", "adaptive_max_pool2d"):
        pool = call(name, (2,), {})
        compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
        assert compiled(x).is_contiguous(memory_format=torch.channels_last)
        g = gradient(compiled, x)
        assert g.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(g, gradient(pool, x), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("name", "args"), [("max_pool1d", (300, 7, 150)), ("adaptive_max_pool1d", (2,))])
def test_wide_windows_compiled(name, args):
    """pytorch#131659: wide windows need wider offsets, also for dynamic sizes."""
    pool = call(name, args, {})
    for dynamic in (False, True):
        compiled = torch.compile(pool, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for size in (700, 900):
            x = rand(2, 2, size, seed=size)
            assert torch.equal(gradient(compiled, x), gradient(pool, x))


def test_unpooling_compiled():
    x = rand(2, 3, 8, 8)

    def there_and_back(x):
        y, at = ndpool.max_pool2d(x, 2, return_indices=True)
        return ndpool.max_unpool2d(y * y, at, 2, output_size=x.shape)

    for dynamic in (False, True):
        compiled = torch.compile(there_and_back, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        assert_equal(compiled(x), there_and_back(x))
        torch.testing.assert_close(gradient(compiled, x), gradient(there_and_back, x))


def test_random_samples_compiled():
    """pytorch#183249: without samples, compiled and eager calls draw the same from PyTorch's generator."""
    x = rand(2, 3, 12, 12)

    def twice(x):
        return ndpool.fractional_max_pool2d(x, 2, 5), ndpool.fractional_max_pool2d(x, 2, 5)

    compiled = torch.compile(twice, fullgraph=True)
    torch.manual_seed(7)
    wanted = twice(x)
    torch.manual_seed(7)
    got = compiled(x)
    assert_equal(got, wanted)
    assert not torch.equal(*got)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    """An exported program accepts other batch sizes and can be differentiated."""

    class Net(torch.nn.Module):
        def forward(self, x):
            y = ndpool.max_pool2d(x, 3, 2, 1)
            return ndpool.adaptive_avg_pool2d(ndpool.avg_pool2d(y, 2, ceil_mode=True), 1)

    x = rand(2, 3, 16, 16)
    batch = torch.export.Dim("batch")
    program = torch.export.export(Net(), (x,), dynamic_shapes={"x": {0: batch}}, strict=strict)
    other = rand(7, 3, 16, 16, seed=2)
    module = program.module()
    assert_equal(module(other), Net()(other))
    assert sum("ndpool" in str(node.target) for node in program.graph.nodes) == 3
    torch.testing.assert_close(gradient(module, other), gradient(Net(), other))


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_aotinductor(tmp_path):
    """A program compiled ahead of time calls ndpool's operators, for every batch size."""

    class Net(torch.nn.Module):
        def forward(self, x):
            y, indices = ndpool.max_pool2d(ndpool.max_pool2d(x, 3, 2, 1), 2, return_indices=True)
            unpooled = ndpool.max_unpool2d(y, indices, 2, output_size=(9, 9))
            return unpooled, ndpool.adaptive_avg_pool2d(x, 3)

    sizes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    with torch.no_grad():
        program = torch.export.export(Net(), (rand(2, 2, 17, 18),), dynamic_shapes=sizes)
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "net.pt2"))
    compiled = torch._inductor.aoti_load_package(path)
    for batch in (2, 3):
        x = rand(batch, 2, 17, 18)
        torch.testing.assert_close(tuple(compiled(x)), Net()(x))


@pytest.mark.parametrize(("name", "spatial", "args", "kwargs"), CALLS, ids=IDS)
def test_fake_and_meta_tensors(name, spatial, args, kwargs):
    """Shapes, dtypes and strides without computing values."""
    pool = call(name, args, kwargs)
    x = rand(2, 3, *spatial)
    wanted = [(y.shape, y.dtype, y.stride()) for y in as_tuple(pool(x))]
    with FakeTensorMode() as mode:
        got = as_tuple(pool(mode.from_tensor(x)))
    assert [(y.shape, y.dtype, y.stride()) for y in got] == wanted
    if "fractional" not in name:
        meta = as_tuple(pool(x.to("meta")))
        assert [(y.shape, y.dtype, y.stride()) for y in meta] == wanted
        assert all(y.is_meta for y in meta)


def test_fake_tensors_of_other_devices():
    """Shapes and devices are computed without the device."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(2, 3, 8, 8, device="cuda")
        y, at = ndpool.max_pool2d(x, 2, return_indices=True)
    assert (y.shape, y.device.type, at.device.type) == ((2, 3, 4, 4), "cuda", "cuda")


def test_dispatch_modes_see_operators():
    """Dispatch modes see ndpool's operators."""
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = rand(1, 2, 6, 6)
    with Watch():
        y = ndpool.max_pool2d(x, 2)
    assert torch.equal(y, ndpool.max_pool2d(x, 2))
    assert seen == ["ndpool.pool.default"]


def test_subclasses_keep_their_class():
    class Image(torch.Tensor):
        pass

    x = rand(1, 2, 6, 6).as_subclass(Image)
    y = ndpool.max_pool2d(x, 2)
    assert type(y) is Image
    assert torch.equal(y, F.max_pool2d(x, 2))


OPERATORS = {
    "pool": lambda x: (x, [2, 3], "max_pool2d", "max", W, x.dtype, 0, 0.0),
    "pool.avg": lambda x: (x, [2, 3], "avg_pool2d", "avg", W, x.dtype, 0, 0.0),
    "pool.lp": lambda x: (x, [2, 3], "lp_pool2d", "lp", W, x.dtype, 0, 3.0),
    "pool.adaptive": lambda x: (x, [2, 3], "adaptive_avg_pool2d", "avg", [3, 4], x.dtype, 0, 0.0),
    "pool_offsets": lambda x: (x, [2, 3], "max_pool2d", "max", W),
    "pool_offsets.adaptive": lambda x: (x, [2, 3], "adaptive_max_pool2d", "max", [3, 4]),
    "pool_indices": lambda x: (x.detach(), [2, 3], "max_pool2d", "max", W),
    "sum_backward": lambda x: (x, [2, 3], "avg_pool2d", "avg", W, [13, 11], 0, False),
    "max_backward": lambda x: (
        x,
        AT[None, None].expand(x.shape).contiguous(),
        [2, 3],
        "max_pool2d",
        "max",
        W,
        [13, 11],
        False,
    ),
    "gather": lambda x: (
        x,
        AT[None, None, :4, :3].expand(2, 3, 4, 3).contiguous(),
        [2, 3],
        "max_pool2d",
        "max",
        W,
        False,
    ),
    "unpool": lambda x: (x, torch.arange(42).reshape(7, 6).expand(x.shape), [2, 3], "max_unpool2d", [14, 12]),
    "fractional": lambda x: (
        x.detach(),
        rand(2, 3, 2) - 0.5,
        [2, 3],
        "fractional_max_pool2d",
        [2, 2],
        [3, 3],
    ),
    "random_samples": lambda x: (x.detach(), [2, 3, 2], torch.float32, 5),
}
W = [3, 3, 2, 2, 1, 1, 1, 1, 1, 1, 0, 1]
AT = torch.full((7, 6), 4, dtype=torch.uint8)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_opcheck(operator, form):
    """pytorch#136332: PyTorch's opcheck of schema, shapes, autograd registration and tracing."""
    op = getattr(torch.ops.ndpool, operator.partition(".")[0]).default
    x = rand(2, 3, 7, 6).to(memory_format=form).requires_grad_()
    torch.library.opcheck(op, OPERATORS[operator](x))


def test_every_operator_is_checked():
    ndpool.max_pool2d(rand(1, 4, 4), 2)
    names = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    registered = {name for namespace, _, name in names if namespace == "ndpool"}
    assert registered == {name.partition(".")[0] for name in OPERATORS}


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "lp_pool2d"])
def test_operators_under_vmap_and_double_backward(name):
    """Batching rules and second derivatives of the operators themselves, as in a traced program."""
    args = (3.0, 2) if "lp" in name else (2,)
    compiled = torch.compile(call(name, args, {}), fullgraph=True, backend="eager", dynamic=False)
    x = rand(2, 3, 6, 6).double().requires_grad_()
    assert torch.autograd.gradcheck(compiled, (x,))
    assert torch.autograd.gradgradcheck(compiled, (x,))
    mapped = torch.compile(torch.func.vmap(call(name, args, {})), fullgraph=True, backend="eager")
    assert_equal(mapped(x.detach()[None]), getattr(ndpool, name)(x.detach(), *args)[None])


def test_errors_while_tracing():
    """A wrong argument raises while tracing."""
    with FakeTensorMode() as mode:
        x = mode.from_tensor(rand(1, 2, 6, 6))
        for call_it, message in [
            (lambda: ndpool.max_pool2d(x, 9), "max_pool2d: the window must fit"),
            (lambda: ndpool.max_pool2d(x, 2, padding=2), "max_pool2d: padding must be at most half"),
            (lambda: ndpool.max_pool2d(x[0, 0], 2), "max_pool2d: input must have 3 axes"),
            (lambda: ndpool.adaptive_avg_pool2d(x, -1), "adaptive_avg_pool2d: output_size must be from 0"),
            (lambda: ndpool.pool(x, (2, 2), out=x), "pool: out must not be given"),
        ]:
            with pytest.raises(ValueError, match=message):
                call_it()


def test_first_call_may_be_compiled():
    """No eager call is needed before, and arrays of other types do not cause another compilation."""
    code = """
import numpy, torch, ndpool

def backend(graph, inputs):
    import ndpool.torch  # Inductor may import it, too: it searches all modules for names
    return graph.forward

f = torch.compile(lambda x: ndpool.avg_pool2d(ndpool.max_pool2d(x, 2), 2), fullgraph=True, backend=backend)
x = torch.ones(1, 2, 8, 8)
print(f(x).sum().item())

class Image(torch.Tensor):
    pass

with torch._dynamo.config.patch(error_on_recompile=True):
    f(x)
    ndpool.max_pool2d(numpy.ones((1, 4, 4)), 2)
    ndpool.max_pool2d(x.as_subclass(Image), 2)
    print(f(x).sum().item())
"""
    assert run_python(code).split() == ["8.0", "8.0"]


def test_jit_trace():
    """TorchScript's tracer records an operator, not a constant."""
    x, other = rand(1, 2, 6, 6), rand(1, 2, 6, 6, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda x: ndpool.max_pool2d(x, 2), (x,))
    assert torch.equal(traced(other), ndpool.max_pool2d(other, 2))


def test_random_calls_compiled():
    """pytorch#100987: random calls of every function with dynamic sizes."""
    rng = np.random.default_rng(0)
    with torch._dynamo.config.patch(cache_size_limit=10_000):
        for name in cases.NAMES:
            for _ in range(2):
                case = cases.draw(rng, name)
                args = [cases.to_torch(a) if isinstance(a, np.ndarray) else a for a in case.args]
                kwargs = {
                    k: cases.to_torch(a) if isinstance(a, np.ndarray) else a for k, a in case.kwargs.items()
                }
                x = cases.to_torch(case.array())
                compiled = torch.compile(
                    lambda x, name=name, args=args, kwargs=kwargs: getattr(ndpool, name)(x, *args, **kwargs),
                    fullgraph=True,
                    dynamic=True,
                    backend="eager",
                )
                cases.assert_same(
                    tuple(map(cases.from_torch, as_tuple(compiled(x)))), case.call_oracle(), case
                )


def with_argument(place, value):
    return lambda args: (*args[:place], value(args[place]) if callable(value) else value, *args[place + 1 :])


OFFSETS = [
    (with_argument(1, lambda o: o.to(torch.int64)), TypeError, "offsets must be torch.uint8 or torch.int32"),
    (with_argument(1, lambda o: o.to(torch.int8)), TypeError, "offsets must be"),
    (with_argument(1, lambda o: o.to(torch.float32)), TypeError, "offsets must be"),
    (with_argument(1, lambda o: o.to_sparse()), TypeError, "offsets must be"),
    (with_argument(1, lambda o: o[..., :1]), ValueError, "offsets must have shape"),
    (with_argument(1, lambda o: o[0]), ValueError, "offsets must have shape"),
    (with_argument(1, lambda o: o + 5), ValueError, r"offsets must number the taps .* got 9 \(limit 8\)"),
    (with_argument(1, lambda o: o.to(torch.int32) - 5), ValueError, "got -1"),
    (with_argument(1, lambda o: o.to(torch.int32) + 2**30), ValueError, "offsets must number"),
]


def wrong_calls():
    """(operator, change that makes its arguments in OPERATORS invalid, error, message)."""
    for op in ("pool", "pool_offsets", "pool_indices", "sum_backward", "max_backward", "gather"):
        first = 2 if op in ("max_backward", "gather") else 1  # the position of axes
        for axes, message in [([2, 2], "differ"), ([2, 4], "from"), ([-2, -1], "from"), ([], "1 to 6 axes")]:
            yield op, with_argument(first, axes), ValueError, f"axes must .*{message}|axes must be 1"
        for windows in ([5], [3] * 11, []):
            yield op, with_argument(first + 3, windows), ValueError, "windows must be 2 or 12 integers"
        yield op, with_argument(first + 2, "mode"), ValueError, "reduce must be one of"
        yield op, with_argument(0, lambda x: x.detach().to(torch.complex64)), TypeError, "must be"
        yield op, with_argument(0, lambda x: x.detach().to_sparse()), TypeError, "must be a strided tensor"
    for op in ("pool_offsets", "pool_indices", "max_backward", "gather"):
        at = 4 if op in ("max_backward", "gather") else 3
        yield op, with_argument(at, "avg"), ValueError, "reduce must be one of max, min"
    for op in ("max_backward", "gather"):
        for change, error, message in OFFSETS:
            yield op, change, error, message
    for op in ("sum_backward", "max_backward"):
        at = 6 if op == "max_backward" else 5
        yield op, with_argument(at, [13]), ValueError, "sizes must"
        yield op, with_argument(at, [0, 11]), ValueError, "sizes must"
        yield op, with_argument(at, [13, 12, 11]), ValueError, "sizes must"
        yield op, with_argument(at, [99, 11]), ValueError, r"grad must have sizes \(50, 6\)"
        yield op, with_argument(0, lambda x: x.detach().to(torch.int32)), TypeError, "grad must be floating"
    yield "sum_backward", with_argument(3, "max"), ValueError, "reduce must be one of sum, avg"
    for dtype in (torch.float64, torch.int8, torch.complex64):
        yield "pool", with_argument(5, dtype), TypeError, "dtype must fit reduce='max'"
    for norm in (0.0, inf, -inf, float("nan")):
        yield "pool.lp", with_argument(7, norm), ValueError, "norm must be a finite number"
    for dtype in (torch.int32, torch.uint8, torch.float64, torch.bool):
        yield "unpool", with_argument(1, lambda i, d=dtype: i.to(d)), TypeError, "indices must be torch.int64"
    yield "unpool", with_argument(1, lambda i: i[..., :3]), ValueError, "indices must have shape"
    yield "unpool", with_argument(1, lambda i: i - 1), ValueError, "indices must lie in the plane"
    yield "unpool", with_argument(4, [5, 5]), ValueError, "indices must lie in the plane"
    yield "unpool", with_argument(4, [14]), ValueError, "sizes must"
    yield "unpool", with_argument(4, [14, -12]), ValueError, "sizes must"
    yield "unpool", with_argument(2, [3, 3]), ValueError, "axes must differ"
    yield "fractional", with_argument(1, lambda s: s[:1]), ValueError, "samples must have shape"
    yield "fractional", with_argument(1, lambda s: s[..., :1]), ValueError, "samples must have shape"
    yield "fractional", with_argument(1, lambda s: s + 3), ValueError, "samples must be in"
    yield "fractional", with_argument(1, lambda s: s.long()), TypeError, "samples must be floating point"
    yield "fractional", with_argument(4, [0, 2]), ValueError, "kernel_size must"
    yield "fractional", with_argument(5, [9, 9]), ValueError, "must fit"
    yield "fractional", with_argument(2, [2, 7]), ValueError, "axes must be from"


@pytest.mark.parametrize(("operator", "change", "error", "message"), list(wrong_calls()))
def test_operators_check_their_arguments(operator, change, error, message):
    """Operators are public: dtype, shape, axes, windows and values are checked before a kernel runs."""
    op = getattr(torch.ops.ndpool, operator.partition(".")[0]).default
    args = OPERATORS[operator](rand(2, 3, 7, 6))
    op(*args)
    with pytest.raises(error, match=message):
        op(*change(args))


def test_operators_need_wide_offsets_for_wide_windows():
    """289 taps do not fit in a byte: uint8 offsets would be ambiguous."""
    windows = [17, 17, 1, 1, 0, 0, 0, 0, 1, 1, 0, 1]
    x = rand(1, 20, 20)
    _, offsets = torch.ops.ndpool.pool_offsets(x, [1, 2], "max_pool2d", "max", windows)
    assert offsets.dtype is torch.int32
    for op, more in (("max_backward", ([20, 20],)), ("gather", ())):
        given = torch.ones(1, 4, 4) if more else x
        call = getattr(torch.ops.ndpool, op)
        call(given, offsets, [1, 2], "max_pool2d", "max", windows, *more, False)
        with pytest.raises(TypeError, match=r"offsets must be torch\.int32, for windows of 289 elements"):
            call(given, offsets.to(torch.uint8), [1, 2], "max_pool2d", "max", windows, *more, False)


@pytest.mark.parametrize("operator", ["max_backward", "gather", "unpool", "fractional"])
def test_operators_need_tensors_on_one_device(operator):
    op = getattr(torch.ops.ndpool, operator).default
    args = OPERATORS[operator](rand(2, 3, 7, 6))
    with pytest.raises(ValueError, match="must be on device cpu; got device=meta"):
        op(args[0], args[1].to("meta"), *args[2:])
