"""`ndpool.torch`: the modules, `accelerate` and `patch`.

Every result is compared with PyTorch's. The `calls` fixture shows whether ndpool computed it: it records
every call that looks up its framework.
"""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import re
import sys
import threading

import pytest

import cases
import ndpool
from helpers import routed_functions, run_python
from ndpool import _run

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import ndpool.torch as nt  # noqa: E402

F, nn = torch.nn.functional, torch.nn
ROUTED = routed_functions()

FAMILIES = {
    "MaxPool": ((3,), {"stride": 2, "padding": 1, "ceil_mode": True}),
    "AvgPool": ((3, 2), {"padding": 1, "count_include_pad": False}),
    "LPPool": ((2, 3), {"stride": 2}),
    "AdaptiveMaxPool": ((4,), {"return_indices": True}),
    "AdaptiveAvgPool": ((3,), {}),
    "FractionalMaxPool": ((2,), {"output_ratio": 0.5, "return_indices": True}),
    "MaxUnpool": ((2,), {}),
}
NAMES = [
    f"{family}{n}d" for family in FAMILIES for n in (1, 2, 3) if f"{family}{n}d" != "FractionalMaxPool1d"
]


@pytest.fixture
def calls(monkeypatch):
    """The names of the ndpool functions that were called, in order."""
    seen, framework_of, package_of = [], _run.framework_of, _run.package_of

    def package(kind):  # `run` asks for nothing else in every call
        caller = sys._getframe(1)
        if caller.f_code.co_name == "run":
            seen.append(caller.f_locals["function"].name)
        return package_of(kind)

    monkeypatch.setattr(_run, "framework_of", lambda fn, x: seen.append(fn) or framework_of(fn, x))
    monkeypatch.setattr(_run, "package_of", package)
    return seen


@pytest.fixture(autouse=True)
def no_patch_remains():
    before = {(owner, name): getattr(owner, name) for owner, name in ROUTED}
    yield
    assert all(getattr(owner, name) is function for (owner, name), function in before.items())


def function_name(name):
    return re.sub("(?<!^)(?=Max|Avg|Pool|Unpool)", "_", name).lower()


def make(name, module=nn, **more):
    args, kwargs = FAMILIES[name[:-2]]
    return getattr(module, name)(*args, **{**kwargs, **more})


def inputs(name, dtype=torch.float64):
    """A batch to pool, or for unpooling, the result of a max pool."""
    n = int(name[-2])
    generator = torch.Generator().manual_seed(n)
    x = torch.randn((2, 3, *(10, 8, 6)[:n]), generator=generator, dtype=dtype)
    if name.startswith("MaxUnpool"):
        return getattr(F, f"max_pool{n}d")(x, 2, return_indices=True)
    return (x,)


def answer(module, given):
    """All results and the gradient of the first input, with the same random numbers each time."""
    torch.manual_seed(0)
    x = given[0].clone().requires_grad_()
    results = cases.as_tuple(module(x, *given[1:]))
    (results[0] * torch.arange(results[0].numel()).reshape(results[0].shape)).sum().backward()
    return *(result.detach() for result in results), x.grad


def assert_equal(got, wanted, exact):
    tolerance = {"rtol": 0, "atol": 0} if exact else {}
    torch.testing.assert_close(got, wanted, **tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_modules_equal_pytorchs(name, calls):
    given = inputs(name)
    got = answer(make(name, nt), given)
    assert calls == [function_name(name)]
    assert_equal(got, answer(make(name), given), exact="Max" in name)


@pytest.mark.parametrize("name", NAMES)
def test_modules_have_pytorchs_signature_repr_and_state(name):
    ours, theirs = make(name, nt), make(name)
    assert isinstance(ours, getattr(nn, name))
    assert repr(ours) == repr(theirs)
    signature = inspect.signature(type(ours))
    if name.startswith("MaxUnpool"):  # also has the dilation of the pool
        *parameters, dilation = signature.parameters.values()
        assert (dilation.name, dilation.default, dilation.kind) == ("dilation", 1, dilation.KEYWORD_ONLY)
        assert [p.name for p in parameters] == list(inspect.signature(type(theirs)).parameters)
    else:
        assert signature == inspect.signature(type(theirs))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert vars(ours).keys() == vars(theirs).keys()


@pytest.mark.parametrize("name", NAMES)
def test_modules_can_be_copied_and_pickled(name):
    module, given = make(name, nt).eval(), inputs(name)
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    copies = [
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(saved, weights_only=False),
    ]
    wanted = answer(module, given)
    for other in copies:
        assert type(other) is type(module)
        assert not other.training
        assert_equal(answer(other, given), wanted, exact=True)


def test_fractional_samples_are_in_the_state_dict():
    samples = torch.rand(2, 3, 2, dtype=torch.float64)
    ours, theirs = (make("FractionalMaxPool2d", module, _random_samples=samples) for module in (nt, nn))
    assert torch.equal(ours.state_dict()["_random_samples"], samples)
    assert_equal(answer(ours, inputs("MaxPool2d")), answer(theirs, inputs("MaxPool2d")), exact=True)


def test_modules_convert_the_power_to_float():
    x = torch.arange(-8, 8).reshape(1, 4, 4)
    torch.testing.assert_close(nt.LPPool2d(2, 2)(x), nn.LPPool2d(2, 2)(x))


def test_indices_do_not_change_values_or_gradient():
    """f-dangel/backpack#15: no second forward pass; the gradient is the same with and without indices."""
    (x,) = inputs("MaxPool2d")
    module = nn.MaxPool2d(3, 2)
    wanted = answer(module, (x,))
    nt.accelerate(module)
    module.return_indices = True
    values, indices, gradient = answer(module, (x,))
    assert_equal((values, gradient), wanted, exact=True)
    assert torch.equal(x.flatten(2).gather(2, indices.flatten(2)).reshape(values.shape), values)


class Tagged(torch.Tensor):
    """A subclass that records the functions that it is passed to."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def unsupported():
    x = torch.randn(1, 2, 6, 6)
    yield "quantized", torch.quantize_per_tensor(x, 0.1, 10, torch.quint8), torch.Tensor
    yield "mkldnn", x.to_mkldnn(), torch.Tensor
    yield "subclass", x.as_subclass(Tagged), Tagged


@pytest.mark.parametrize("kind", ["quantized", "mkldnn", "subclass"])
@pytest.mark.parametrize("way", ["module", "patch"])
@pytest.mark.filterwarnings("ignore:.*[qQ]uantiz.*:DeprecationWarning", "ignore:.*[qQ]uantiz.*:UserWarning")
def test_unsupported_tensors_are_pooled_by_pytorch(kind, way, calls):
    if kind == "mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch was built without oneDNN")
    Tagged.seen = []
    x, wanted_type = next(row[1:] for row in unsupported() if row[0] == kind)
    wanted = F.max_pool2d(x, 2)
    if way == "module":
        got = nt.MaxPool2d(2)(x)
    else:
        with nt.patch():
            got = F.max_pool2d(x, 2)
    assert calls == []
    assert type(got) is wanted_type
    assert got.layout == wanted.layout
    assert got.dtype == wanted.dtype
    plain = [t.to_dense() if t.is_mkldnn else t.dequantize() if t.is_quantized else t for t in (got, wanted)]
    assert torch.equal(*plain)
    if kind == "subclass":
        pools = [func for func in Tagged.seen if getattr(func, "__name__", "") == "max_pool2d"]
        assert len(pools) == 2
        assert pools[0] is pools[1] is F.max_pool2d


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")
def test_unsupported_tensors_raise_pytorchs_errors(calls):
    x = torch.randn(2, 3, 4, 4)
    for tensor in (torch.nested.nested_tensor(list(x)), x.to_sparse(), x.to(torch.complex64)):
        with pytest.raises((RuntimeError, NotImplementedError)) as wanted:
            F.max_pool2d(tensor, 2)
        with pytest.raises(wanted.type) as got:
            nt.MaxPool2d(2)(tensor)
        assert str(got.value) == str(wanted.value)
    assert calls == []


@pytest.mark.parametrize("name", NAMES)
def test_modules_pool_tensors_of_any_device(name, calls):
    """Tensors on other devices than CPU and CUDA are handled like in the functions, not passed to PyTorch."""
    given = [t.to("meta") for t in inputs(name)]
    got = make(name, nt)(*given)
    assert calls == [function_name(name)]
    got, wanted = cases.as_tuple(got), cases.as_tuple(make(name)(*given))
    assert [(t.device.type, t.shape, t.dtype) for t in got] == [("meta", t.shape, t.dtype) for t in wanted]


def test_parameters_and_unbatched_inputs_are_supported(calls):
    x = nn.Parameter(inputs("MaxPool2d")[0][0])
    assert torch.equal(nt.MaxPool2d(2)(x), F.max_pool2d(x, 2))
    assert calls == ["max_pool2d"]


def test_error_messages_name_the_module():
    with pytest.raises(ValueError, match=r"MaxPool2d: padding must be at most half .*padding=2"):
        nt.MaxPool2d(2, padding=2)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    ("family", "arguments"), [(family, wrong) for family in cases.WRONG for wrong in cases.WRONG[family]]
)
def test_constructors_reject_invalid_arguments(family, arguments, n):
    """A wrong argument raises when a module is constructed, not when it is first called."""
    if (family == "FractionalMaxPool" or "divisor_override" in arguments) and n == 1:
        pytest.skip("PyTorch has no such module or argument in one dimension")
    # PyTorch's constructors check fractional sizes with their own messages.
    named = None if family == "FractionalMaxPool" else f"^{family}{n}d: "
    with pytest.raises((TypeError, ValueError), match=named):
        getattr(nt, f"{family}{n}d")(**arguments)


@pytest.mark.parametrize("name", NAMES)
def test_accelerated_modules_with_wrong_arguments_fail_at_the_call(name):
    """Modules constructed by PyTorch, even under a patch, are swapped without a check."""
    made = 0
    for arguments in cases.WRONG[name[:-2]]:
        try:
            with nt.patch():
                module = getattr(nn, name)(**arguments)
        except (TypeError, ValueError, RuntimeError):
            continue  # PyTorch rejects it too
        assert nt.accelerate(module).swapped
        made += 1
        try:
            got = module(*inputs(name))
        except (TypeError, ValueError):
            continue
        assert_equal(got, getattr(nn, name)(**arguments)(*inputs(name)), exact="Max" in name)
    assert made


@pytest.mark.parametrize(
    "wrong", [torch.tensor([2, 3]), torch.tensor([2, 3]).numpy(), "2", 1.0, True, None], ids=repr
)
def test_wrong_dilation_of_unpool_modules(wrong):
    """What cannot be compared with 1 is refused like every other wrong argument."""
    with pytest.raises(TypeError, match=r"^MaxUnpool2d: dilation must be an integer; got dilation="):
        nt.MaxUnpool2d(3, dilation=wrong)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("n", [1, 2, 3])
def test_unpool_modules_support_dilation(n):
    x = torch.rand((2, 3) + (9,) * n) + 1
    values, indices = getattr(nt, f"MaxPool{n}d")(3, dilation=2, return_indices=True)(x)
    module = getattr(nt, f"MaxUnpool{n}d")(3, dilation=2)
    want = getattr(ndpool, f"max_unpool{n}d")(values, indices, 3, output_size=x.shape, dilation=2)
    for got in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_equal(got(values, indices, x.shape), want, exact=True)
    assert want.count_nonzero() == values.numel()
    assert repr(module).endswith(", dilation=2)")
    # PyTorch's module would give another size.
    assert nt.restore(module).left == (nt.Entry("", f"MaxUnpool{n}d", "PyTorch's module has no dilation"),)
    for unsupported_call in (
        lambda: torch.jit.script(module),
        lambda: torch.jit.trace(module, (values, indices)),
    ):
        with pytest.raises(TypeError, match=f"^MaxUnpool{n}d: dilation must be 1 where .*; got dilation=2"):
            unsupported_call()


class OverridesForward(nn.MaxPool2d):
    def forward(self, input):
        return super().forward(input) + 1


class PlainSubclass(nn.AvgPool2d):
    pass


def net():
    shared = nn.MaxPool2d(2, ceil_mode=True)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), shared, nn.ReLU(), shared)
    return nn.Sequential(body, nn.ModuleDict({"lp": nn.LPPool2d(2, 2)})["lp"], nn.AdaptiveAvgPool2d(1))


def test_accelerate_swaps_in_place_and_restore_undoes_it(calls):
    model, x = net().eval(), torch.randn(2, 3, 30, 30)
    before, wanted = list(model.modules()), model(x)
    state, text = model.state_dict(), repr(model)
    report = nt.accelerate(model)
    assert [entry.name for entry in report.swapped] == ["0.1", "1", "2"]
    assert [entry.kind for entry in report.swapped] == ["MaxPool2d", "LPPool2d", "AdaptiveAvgPool2d"]
    assert report.left == ()
    assert str(report) == (
        "swapped 3 pooling modules\n  0.1  MaxPool2d\n  1    LPPool2d\n  2    AdaptiveAvgPool2d"
    )
    assert all(a is b for a, b in zip(model.modules(), before, strict=True))
    assert type(model[0][1]) is type(model[0][3]) is nt.MaxPool2d
    assert repr(model) == text
    assert model.state_dict().keys() == state.keys()
    assert not model[0][1].training
    torch.testing.assert_close(model(x), wanted)
    assert calls == ["max_pool2d", "max_pool2d", "lp_pool2d", "adaptive_avg_pool2d"]
    assert nt.accelerate(model) == nt.Report((), ())
    assert nt.restore(model) == report
    assert type(model[0][1]) is nn.MaxPool2d
    assert torch.equal(model(x), wanted)
    assert len(calls) == 4
    assert nt.restore(model) == nt.Report((), ())


def test_accelerate_a_module_alone():
    module = nn.AvgPool1d(2)
    assert str(nt.accelerate(module)) == "swapped 1 pooling module\n  (the model)  AvgPool1d"
    assert type(module) is nt.AvgPool1d


def test_accelerate_keeps_hooks_and_buffers(calls):
    module = make("FractionalMaxPool2d", _random_samples=torch.rand(2, 3, 2, dtype=torch.float64))
    module.register_forward_hook(lambda module, args, result: (result[0] + 1, result[1]))
    module.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    module.note = "kept"
    wanted = answer(module, inputs("MaxPool2d"))
    nt.accelerate(module)
    assert_equal(answer(module, inputs("MaxPool2d")), wanted, exact=True)
    assert module.note == "kept"
    assert calls == ["fractional_max_pool2d"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:.*torch.jit.*:FutureWarning")
def test_accelerate_leaves_other_classes():
    replaced = nn.MaxPool2d(2)
    replaced.forward = lambda x: x
    model = nn.ModuleDict(
        {
            "own": OverridesForward(2),
            "name": PlainSubclass(2),
            "replaced": replaced,
            "conv": nn.Conv2d(1, 1, 1),
        }
    )
    model["scripted"] = torch.jit.script(nn.MaxPool2d(2))
    report = nt.accelerate(model)
    assert report.swapped == ()
    assert {entry.name: entry.reason for entry in report.left} == {
        "own": "a subclass of MaxPool2d that overrides forward",
        "name": "a subclass of AvgPool2d",
        "replaced": "forward was replaced on the instance",
        "scripted": "scripted",
    }
    assert "left 4 pooling modules\n  own       OverridesForward: a subclass of MaxPool2d" in str(report)
    assert type(model["own"]) is OverridesForward

    class AcceleratedSubclass(nt.MaxPool2d):
        pass

    ours = nn.Sequential(AcceleratedSubclass(2))
    assert nt.accelerate(ours) == nt.Report((), ())
    assert nt.restore(ours).left == (
        nt.Entry("0", AcceleratedSubclass.__qualname__, "a subclass of MaxPool2d"),
    )


@pytest.mark.parametrize("function", [nt.accelerate, nt.restore])
def test_only_modules_are_accelerated(function):
    with pytest.raises(TypeError, match=f"{function.__name__}: model must be a torch.nn.Module; got int"):
        function(3)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:.*torch.jit.*:FutureWarning")
def test_scripting_restores_a_model():
    """TorchScript supports only PyTorch's modules, so scripting a model restores it."""
    model, x = net().eval(), torch.randn(2, 3, 30, 30)
    wanted = model(x)
    nt.accelerate(model)
    pool = model[0][1]
    scripted = torch.jit.script(model)
    assert torch.equal(scripted(x), wanted)
    assert model[0][1] is pool
    assert type(pool) is nn.MaxPool2d
    assert [entry.reason for entry in nt.accelerate(scripted).left] == ["scripted"] * 4


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:.*torch.jit.*:FutureWarning")
def test_traces_contain_pytorchs_operators():
    model, x = net().eval(), torch.randn(2, 3, 30, 30)
    wanted = model(x)
    nt.accelerate(model)
    with nt.patch():
        traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), wanted)
    assert "ndpool::" not in str(traced.inlined_graph)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_contain_ndpools_operators(strict):
    model, x = net().eval(), torch.randn(2, 3, 30, 30)
    wanted = model(x)
    nt.accelerate(model)
    program = torch.export.export(model, (x,), strict=strict)
    assert str(program.graph).count("torch.ops.ndpool") == 4
    torch.testing.assert_close(program.module()(x), wanted)


def test_symbolic_traces_contain_pytorchs_functions(calls):
    """A torch.fx graph can be copied and pickled, and calls ndpool under a patch."""
    model, x = net().eval(), torch.randn(2, 3, 30, 30)
    nt.accelerate(model)
    wanted = model(x)
    calls.clear()
    graph = pickle.loads(pickle.dumps(torch.fx.symbolic_trace(model)))
    torch.testing.assert_close(graph(x), wanted)
    assert calls == []
    with nt.patch():
        assert torch.equal(graph(x), wanted)
    assert calls == ["max_pool2d", "max_pool2d", "lp_pool2d", "adaptive_avg_pool2d"]


def arguments(name):
    """Positional arguments for a PyTorch function, tensors included."""
    plain = name.removesuffix("_with_indices")
    given = inputs(plain.replace("max_unpool", "MaxUnpool"))
    if "unpool" in plain:
        return *given, 2
    if "adaptive" in plain:
        return *given, 4
    if "fractional" in plain:
        return *given, 2, 3
    return (*given, 2, 3) if "lp" in plain else (*given, 3)


ROUTES = [
    pytest.param(owner, name, name.removesuffix("_with_indices"), id=f"{owner.__name__}.{name}")
    for owner, name in ROUTED
]


@pytest.mark.parametrize(("owner", "name", "function"), ROUTES)
def test_every_function_is_routed(owner, name, function, calls, monkeypatch):
    given = arguments(name)
    torch.manual_seed(0)
    wanted = getattr(owner, name)(*given)
    monkeypatch.setattr(owner, name, None)  # no fallback to PyTorch
    torch.manual_seed(0)
    with nt.patch():
        got = getattr(owner, name)(*given)
        by_name = "unpool" not in name and getattr(owner, name)(
            **dict(zip(inspect.signature(getattr(ndpool, function)).parameters, given, strict=False))
        )
    assert calls == [function] * (1 if "unpool" in name else 2)
    assert_equal(got, wanted, exact="max" in name)
    assert isinstance(by_name, tuple) == isinstance(wanted, tuple) or "unpool" in name


def test_a_patch_replaces_all_pooling_functions():
    """Those of `torch.nn.functional` and of `torch`."""
    public = {name for name in dir(F) if "pool" in name and not name.startswith("_")}
    assert {name for owner, name in ROUTED if owner is F} == public
    assert {name for owner, name in ROUTED if owner is torch} == {
        "adaptive_avg_pool1d",
        "adaptive_max_pool1d",
        "avg_pool1d",
        "max_pool1d",
        "max_pool1d_with_indices",
        "max_pool2d",
        "max_pool3d",
    }


def test_return_indices_is_respected(calls):
    (x,) = inputs("MaxPool2d")
    with nt.patch():
        assert isinstance(F.max_pool2d(x, 2), torch.Tensor)
        assert isinstance(F.max_pool2d(x, 2, return_indices=True), tuple)
        assert isinstance(F.max_pool2d(x, 2, 2, 0, 1, False, True), tuple)
        assert isinstance(F.max_pool2d_with_indices(x, 2, 2, 0, 1, False, False), tuple)
        assert isinstance(F.max_pool2d_with_indices(x, 2, return_indices=False), tuple)
    assert calls == ["max_pool2d"] * 5


def test_patches_nest_and_end(calls):
    (x,) = inputs("MaxPool2d")
    original = F.max_pool2d
    with nt.patch():
        with nt.patch() as inner:
            route = F.max_pool2d
        assert F.max_pool2d is route
        with inner:
            assert F.max_pool2d is route
        route(x, 2)
    assert F.max_pool2d is original
    assert calls == ["max_pool2d"]
    # A route that outlives the patch calls PyTorch.
    assert torch.equal(route(x, 2), original(x, 2))
    assert calls == ["max_pool2d"]
    nt.unpatch()
    nt.patch()
    nt.patch()
    nt.unpatch()
    assert F.max_pool2d is route
    nt.unpatch()
    assert F.max_pool2d is original
    nt.unpatch()
    with nt.patch():
        assert F.max_pool2d is route


def test_an_error_ends_a_patch():
    original = F.max_pool2d
    with pytest.raises(KeyError), nt.patch():
        {}["missing"]
    assert F.max_pool2d is original


def test_patches_of_many_threads():
    original, wrong = F.avg_pool2d, []
    start = threading.Barrier(8)

    def work():
        start.wait()
        for _ in range(50):
            with nt.patch():
                if F.avg_pool2d is original:
                    wrong.append(True)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert F.avg_pool2d is original


def test_a_patch_keeps_pytorchs_errors():
    x = torch.zeros(1, 1, 4, 4)
    bad = [(F.max_pool2d, (x, 2, 2, 5)), (F.avg_pool2d, (x, 0)), (F.adaptive_avg_pool2d, (x[0, 0], 2))]
    for function, args in bad:
        with pytest.raises(RuntimeError) as wanted:
            function(*args)
        with nt.patch(), pytest.raises(RuntimeError) as got:
            getattr(F, function.__name__)(*args)
        assert str(got.value) == str(wanted.value)


def test_a_patch_supports_more_dtypes():
    with nt.patch():
        assert F.max_pool2d(torch.eye(4, dtype=torch.bool)[None], 2).tolist() == [
            [[True, False], [False, True]]
        ]


def test_a_patch_applies_to_subclasses_and_default_devices(calls):
    (x,) = inputs("MaxPool2d")
    with nt.patch(), torch.device("cpu"):
        OverridesForward(2)(x)
        PlainSubclass(2)(x)
    assert calls == ["max_pool2d", "avg_pool2d"]


def test_compiled_models_are_recompiled():
    """After accelerate, patch and their inverses, a compiled model uses the right pooling."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = nn.MaxPool2d(2)

        def forward(self, x):
            return self.pool(x), F.avg_pool2d(x, 2)

    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    torch._dynamo.reset()
    model, (x,) = Net(), inputs("MaxPool2d")
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    wanted = model(x)

    def by_ndpool():
        """The number of ndpool operators in newly compiled graphs, and the number of those graphs."""
        graphs.clear()
        torch.testing.assert_close(compiled(x), wanted)
        return sum(code.count("ops.ndpool.") for code in graphs), len(graphs)

    assert by_ndpool() == (0, 1)
    nt.accelerate(model)
    assert by_ndpool() == (1, 1)
    with nt.patch():
        assert by_ndpool() == (2, 1)
        nt.restore(model)
        assert by_ndpool() == (2, 1)
        with nt.patch():
            assert by_ndpool() == (0, 0)
    # Both were compiled before: nothing is recompiled.
    assert by_ndpool() == (0, 0)
    nt.accelerate(model)
    assert by_ndpool() == (0, 0)


def test_a_compiler_first_imported_under_a_patch():
    """It builds tables of PyTorch's functions on import, which must not keep the routes."""
    print(
        run_python(
            "import torch, ndpool.torch as nt\n"
            "f = lambda x: torch.nn.functional.max_pool2d(x, 2) * 2\n"
            "x = torch.rand(1, 2, 8, 8)\n"
            "wanted = f(x)\n"
            "with nt.patch():\n"
            "    g = torch.compile(f, backend='aot_eager')\n"
            "    assert torch.equal(g(x), wanted)\n"
            "graphs = []\n"
            "def backend(graph, inputs):\n"
            "    graphs.append(graph)\n"
            "    return graph.forward\n"
            "h = torch.compile(f, backend=backend, fullgraph=True)\n"
            "assert torch.equal(h(x), wanted) and torch.equal(g(x), wanted)\n"
            "assert 'torch.nn.functional.max_pool2d' in graphs[0].code, graphs[0].code\n"
        )
    )


def test_importing_ndpool_does_not_import_pytorch():
    run_python(
        "import sys, ndpool, numpy\n"
        "ndpool.max_pool1d(numpy.zeros((1, 4)), 2)\n"
        "assert 'torch' not in sys.modules\n"
        "import ndpool.torch\n"
        "assert sys.modules['torch'].Tensor and ndpool.torch.__name__ == 'ndpool.torch'\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )


def call_of(owner, name):
    """All arguments of a patched function by name, most with non-default values."""
    n, plain = int(re.search(r"(\d)d", name)[1]), name.removesuffix("_with_indices")
    given = inputs(plain.replace("max_unpool", "MaxUnpool"))
    if "unpool" in plain:
        size = [2 * side + 1 for side in given[0].shape[2:]]
        return dict(
            zip(
                ["input", "indices", "kernel_size", "stride", "padding", "output_size"],
                [*given, 2, 2, 0, size],
                strict=True,
            )
        )
    if "adaptive" in plain:
        call = {"input": given[0], "output_size": [3] * n}
    elif "fractional" in plain:
        samples = torch.rand(2, 3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
        call = {"input": given[0], "kernel_size": 2, "output_size": [3] * n, "output_ratio": None}
        return {**call, "return_indices": True, "_random_samples": samples}
    elif "lp" in plain:
        call = {"input": given[0], "norm_type": 4, "kernel_size": 2, "stride": 1, "ceil_mode": True}
    else:
        call = {"input": given[0], "kernel_size": 3, "stride": 2, "padding": 1}
        call |= {"ceil_mode": True, "count_include_pad": False} if "avg" in plain else {}
        call |= {"divisor_override": 5} if "avg" in plain and n > 1 else {}
        call |= {"dilation": 1, "ceil_mode": True} if "max" in plain else {}
    if "max" in plain and owner is F:
        call["return_indices"] = True
    return call


@pytest.mark.parametrize(("owner", "name", "function"), ROUTES)
def test_every_argument_by_position_and_by_name(owner, name, function, calls):
    """Any number of leading arguments may be positional; the result is PyTorch's."""
    call = call_of(owner, name)
    for positional in range(1, len(call) + 1):
        args = list(call.values())[:positional]
        kwargs = dict(list(call.items())[positional:])
        torch.manual_seed(0)
        wanted = getattr(owner, name)(*args, **kwargs)
        with nt.patch():
            got = getattr(owner, name)(*args, **kwargs)
        assert isinstance(got, tuple) == isinstance(wanted, tuple)
        assert_equal(got, wanted, exact="max" in name)
    assert calls == [function] * len(call)


@pytest.mark.parametrize(("owner", "name", "function"), ROUTES)
def test_a_patch_accepts_no_other_arguments(owner, name, function):
    """Arguments that only ndpool has (dtype, generator), one too many, and one given twice."""
    call = call_of(owner, name)
    wrong = [((), {**call, "generator": 3}), ((), {**call, "dtype": torch.float64})]
    wrong += [((*call.values(), True), {}), (tuple(call.values()), {"kernel_size": 3, "output_size": 3})]
    for args, kwargs in wrong:
        with pytest.raises(TypeError) as wanted:
            getattr(owner, name)(*args, **kwargs)
        with nt.patch(), pytest.raises(TypeError) as got:
            getattr(owner, name)(*args, **kwargs)
        assert str(got.value) == str(wanted.value)


def test_difference_indices_changed_in_place():
    """The gradient follows the saved offsets, with or without a patch; PyTorch's follows the indices."""
    x = torch.rand(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    wanted = torch.autograd.grad(F.max_pool2d(x, 2).sum(), x)[0]
    with nt.patch():
        values, indices = F.max_pool2d(x, 2, return_indices=True)
        indices.zero_()
        assert torch.equal(torch.autograd.grad(values.sum(), x)[0], wanted)


def test_difference_input_changed_in_place():
    """Backward does not need the input, so changing it in place is not an error."""
    start = torch.rand(1, 2, 80, 80, requires_grad=True)
    for name in ("max_pool2d", "avg_pool2d"):
        x = start * 2
        with nt.patch():
            y = getattr(F, name)(x, 2)
        x.detach().zero_()
        y.sum().backward()
    assert start.grad.isfinite().all()


def test_difference_integers_under_a_patch():
    x = torch.arange(16, dtype=torch.int32).reshape(1, 4, 4)
    with nt.patch():
        assert F.avg_pool2d(x, 2).tolist() == [[[2, 4], [10, 12]]]
        values, indices = F.max_pool2d(x, 2, return_indices=True)
        assert F.max_unpool2d(values, indices.int(), 2).sum() == x[0, 1::2, 1::2].sum()


RUNTIME_ERRORS = [  # errors that PyTorch's own pooling tests expect, the same under a patch
    ("max_pool1d", (torch.zeros(0, 1), 2), {}),
    ("max_pool2d", (torch.zeros(1, 0, 4, 0), 2), {}),
    ("max_pool2d", (torch.zeros(1, 1, 4, 4), 2, 0), {}),
    ("max_pool2d", (torch.zeros(1, 1, 4, 4), 2, 2, 2), {}),
    ("max_pool3d", (torch.zeros(1, 1, 4, 4, 4), 2, 0), {}),
    ("max_pool3d", (torch.zeros(4, 4), 2), {}),
    ("avg_pool2d", (torch.zeros(1, 1, 4, 4), 2), {"divisor_override": 0}),
    ("avg_pool3d", (torch.zeros(1, 1, 4, 4, 4), 2), {"divisor_override": 0}),
    ("avg_pool2d", (torch.zeros(1, 1, 4, 4), 2, 0), {}),
    ("avg_pool2d", (torch.zeros(1, 1, 4, 4), 2, 1, 2), {}),
    ("avg_pool1d", (torch.zeros(1, 1, 4), 2, 0), {}),
    ("adaptive_max_pool2d", (torch.zeros(1, 1, 0, 4), 2), {}),
    ("adaptive_max_pool3d", (torch.zeros(1, 0, 2, 2, 2), 2), {}),
    ("adaptive_avg_pool2d", (torch.zeros(1, 1, 4, 4), (-1, 2)), {}),
    ("adaptive_avg_pool2d", (torch.zeros(4, 4), 2), {}),
    ("adaptive_avg_pool3d", (torch.zeros(1, 0, 2, 2, 2), 2), {}),
    ("adaptive_max_pool2d", (torch.zeros(1, 1, 4, 4), (2**63 - 1, 2)), {}),
    ("fractional_max_pool2d", (torch.zeros(0, 0, 8, 8), 2, 3), {}),
    ("fractional_max_pool2d", (torch.zeros(1, 1, 4, 4), 2, 5), {}),
    ("fractional_max_pool3d", (torch.zeros(1, 1, 4, 4, 4), 2, 5), {}),
    ("fractional_max_pool2d", (torch.zeros(1, 1, 8, 8), 2), {}),
    ("max_unpool2d", (torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 1, dtype=torch.int64), 2), {}),
    ("max_unpool2d", (torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 99), 2), {}),
    (
        "max_unpool2d",
        (torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2, dtype=torch.int64), 2),
        {"output_size": (9, 9)},
    ),
    ("max_unpool3d", (torch.zeros(1, 1, 2, 2, 2), torch.full((1, 1, 2, 2, 2), 999), 2), {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), RUNTIME_ERRORS)
def test_a_patch_raises_pytorchs_errors(name, args, kwargs):
    """The same type and message, or PyTorch's result if it raises none."""

    def outcome():
        try:
            result = getattr(F, name)(*args, **kwargs)
        except Exception as error:
            return type(error), str(error)
        return result.shape

    wanted = outcome()
    with nt.patch():
        got = outcome()
    assert got == wanted


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (5, "got int"),
        ([ndpool.max_pool2d], "got <"),
        ([(ndpool.max_pool2d, 3)], "3"),
        ([(1, torch.ones(2))], "1"),
    ],
    ids=["number", "function", "no tensor", "no function"],
)
def test_warmup_refuses_what_is_no_call(given, told):
    with pytest.raises(TypeError, match=f"^warmup: model_or_calls must be .*{told}"):
        ndpool.torch.warmup(given)


def test_warmup_leaves_its_tensors_alone():
    """Inference tensors are fine, too, and nothing is changed or asked for gradients."""
    with torch.inference_mode():
        x = torch.arange(16.0).reshape(1, 1, 4, 4)
    before = x.clone()
    assert ndpool.torch.warmup([(ndpool.max_pool2d, x, 2), (ndpool.max_pool2d, x, 2)]) == 1
    assert torch.equal(x, before)
    assert not x.requires_grad
