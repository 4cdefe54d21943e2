"""The layers compared with ``torch.nn`` (names, signatures, repr, attributes, results) and as values.

One table of constructor arguments is used by all tests. Only the comparisons with PyTorch need PyTorch.
"""

import copy
import dataclasses
import inspect
import pickle
import re

import numpy as np
import pytest

import cases
import ndpool
from cases import as_tuple
from ndpool import nn


def _arguments(family, ndim):
    """Constructor arguments of a family: positional, keyword, one number per axis, lists."""
    per_axis = tuple(range(4, 4 + ndim))
    ones = (1,) * ndim
    sliding = [((2,), {}), ((3, 2), {}), ((3,), {"stride": 1, "padding": 1}), ((per_axis, ones, ones), {})]
    divisor = [] if ndim == 1 else [((2, 2, 0, False, True, 3), {}), ((3,), {"divisor_override": 1})]
    return {
        "MaxPool": [*sliding, ((3, 2, 1, 2, True, True), {}), ((list(per_axis),), {"return_indices": True})],
        "AvgPool": [
            *sliding,
            ((3, 2, 1, True, False), {}),
            ((list(per_axis),), {"ceil_mode": True}),
            *divisor,
        ],
        "LPPool": [((2, 2), {}), ((1.5, 3, 2, True), {}), ((3, per_axis if ndim > 1 else 2), {"stride": 1})],
        "AdaptiveMaxPool": [
            ((5,), {}),
            ((1, True), {}),
            (((7,) + (None,) * (ndim - 1),), {}),
            ((list(per_axis),), {}),
        ],
        "AdaptiveAvgPool": [
            ((5,), {}),
            ((1,), {}),
            (((7,) + (None,) * (ndim - 1),), {}),
            ((list(per_axis),), {}),
        ],
        "MaxUnpool": [*sliding[:3], ((list(per_axis),), {})],
        "FractionalMaxPool": [
            ((2, 4), {}),
            ((per_axis, None, 0.5, True), {}),
            ((2,), {"output_ratio": (0.6,) * ndim}),
        ],
    }[family]


FAMILIES = {
    "MaxPool": "max_pool",
    "AvgPool": "avg_pool",
    "LPPool": "lp_pool",
    "AdaptiveMaxPool": "adaptive_max_pool",
    "AdaptiveAvgPool": "adaptive_avg_pool",
    "MaxUnpool": "max_unpool",
    "FractionalMaxPool": "fractional_max_pool",
}
CLASSES = [
    (family, ndim) for family in FAMILIES for ndim in (1, 2, 3) if (family, ndim) != ("FractionalMaxPool", 1)
]
CASES = [
    pytest.param(family, ndim, args, kwargs, id=f"{family}{ndim}d-{args}-{kwargs}")
    for family, ndim in CLASSES
    for args, kwargs in _arguments(family, ndim)
]
every_class = pytest.mark.parametrize(("family", "ndim"), CLASSES)
every_case = pytest.mark.parametrize(("family", "ndim", "args", "kwargs"), CASES)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="compares with PyTorch")


def layer_class(family, ndim):
    return getattr(nn, f"{family}{ndim}d")


def inputs(layer, family, ndim):
    """The arguments of the layer's call: an array, or for unpooling the values and indices of a pool."""
    spatial = (11, 10, 12)[:ndim]
    if family == "MaxUnpool":
        # Sizes that the windows cover exactly, which unpooling assumes without output_size.
        sizes = zip(layer.kernel_size, layer.stride, layer.padding, strict=True)
        spatial = tuple(kernel + 3 * stride - 2 * pad for kernel, stride, pad in sizes)
    x = np.random.default_rng(ndim).normal(size=(2, 3, *spatial)).astype(np.float32)
    if family != "MaxUnpool":
        return (x,)
    return layer_class("MaxPool", ndim)(layer.kernel_size, layer.stride, layer.padding, return_indices=True)(
        x
    )


def test_the_family_is_complete(torch):
    """The layers are exactly those of PyTorch."""
    assert sorted(nn.__all__) == sorted(torch.nn.modules.pooling.__all__)
    assert sorted(nn.__all__) == sorted(f"{family}{ndim}d" for family, ndim in CLASSES)


@every_class
def test_signature_is_pytorchs(torch, family, ndim):
    ours = inspect.signature(layer_class(family, ndim)).parameters.values()
    theirs = inspect.signature(getattr(torch.nn, f"{family}{ndim}d")).parameters.values()
    if family == "MaxUnpool":  # also has the dilation of the pool
        *ours, dilation = ours
        assert (dilation.name, dilation.kind, dilation.default) == ("dilation", dilation.KEYWORD_ONLY, 1)
    assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]


@every_case
def test_repr_and_attributes_are_pytorchs(torch, family, ndim, args, kwargs):
    ours = layer_class(family, ndim)(*args, **kwargs)
    theirs = getattr(torch.nn, f"{family}{ndim}d")(*args, **kwargs)
    assert repr(ours) == repr(theirs)
    for name in inspect.signature(type(theirs)).parameters:
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (type(mine), mine) == (type(other), other), name


@every_case
def test_results_are_pytorchs(torch, family, ndim, args, kwargs):
    if family == "FractionalMaxPool":
        samples = np.random.default_rng(0).random((2, 3, ndim), dtype=np.float32)
        ours = layer_class(family, ndim)(*args, **kwargs, _random_samples=samples)
        theirs = getattr(torch.nn, f"{family}{ndim}d")(
            *args, **kwargs, _random_samples=torch.from_numpy(samples)
        )
    else:
        ours = layer_class(family, ndim)(*args, **kwargs)
        theirs = getattr(torch.nn, f"{family}{ndim}d")(*args, **kwargs)
    arrays = inputs(ours, family, ndim)
    if family == "LPPool":
        arrays = (np.abs(arrays[0]),)
    results = as_tuple(ours(*arrays))
    expected = as_tuple(theirs(*map(torch.from_numpy, arrays)))
    assert len(results) == len(expected) == 1 + getattr(ours, "return_indices", False)
    # At most 60 taps of values around one, in float32; maxima and indices must be exact.
    tolerance = 60 * np.finfo(np.float32).eps if family in ("AvgPool", "LPPool", "AdaptiveAvgPool") else 0
    for mine, other in zip(results, expected, strict=True):
        assert mine.dtype == other.numpy().dtype
        np.testing.assert_allclose(mine, other.numpy(), rtol=tolerance, atol=tolerance)


@every_case
def test_results_equal_the_function(family, ndim, args, kwargs):
    layer = layer_class(family, ndim)(*args, **kwargs)
    arguments = inspect.signature(type(layer)).bind(*args, **kwargs).arguments
    if family == "FractionalMaxPool":
        layer = dataclasses.replace(layer, _random_samples=np.full((2, 3, ndim), 0.25, np.float32))
        # PyTorch's 2-D function, unlike its layer, does not accept a single number as the ratio.
        arguments |= {"_random_samples": layer._random_samples, "output_ratio": layer.output_ratio}
    arrays = inputs(layer, family, ndim)
    expected = getattr(ndpool, f"{FAMILIES[family]}{ndim}d")(*arrays, **arguments)
    result = layer(*arrays)
    assert type(result) is type(expected)
    for mine, other in zip(as_tuple(result), as_tuple(expected), strict=True):
        np.testing.assert_array_equal(mine, other, strict=True)


@every_case
def test_layers_are_values(family, ndim, args, kwargs):
    """Equal arguments give equal layers with equal hashes, also after pickling and copying."""
    cls = layer_class(family, ndim)
    layer = cls(*args, **kwargs)
    others = [
        pickle.loads(pickle.dumps(layer, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    ]
    for other in [cls(*args, **kwargs), copy.copy(layer), copy.deepcopy(layer), *others]:
        assert type(other) is cls
        assert other == layer
        assert hash(other) == hash(layer)
        assert repr(other) == repr(layer)


def test_different_layers_differ():
    layers = [layer_class(*case.values[:2])(*case.values[2], **case.values[3]) for case in CASES]
    assert len(set(layers)) == len(layers)
    assert nn.MaxPool2d(2) != nn.MaxPool2d(2, ceil_mode=True)
    assert nn.MaxPool1d(2) != nn.MaxPool2d(2) != nn.MaxPool3d(2)
    assert nn.MaxPool2d(2) != "MaxPool2d(2)"


def test_equivalent_arguments_give_equal_layers():
    assert nn.MaxPool2d(2) == nn.MaxPool2d(2, 2) == nn.MaxPool2d(kernel_size=2, stride=2)
    assert nn.MaxPool2d([2, 3]) == nn.MaxPool2d((2, 3))
    assert nn.AvgPool1d(2) == nn.AvgPool1d((2,))


def test_random_samples_are_compared_by_value():
    one, same, other = (np.full((1, 1, 2), value) for value in (0.25, 0.25, 0.5))
    layer = nn.FractionalMaxPool2d(2, 4, _random_samples=one)
    assert layer == nn.FractionalMaxPool2d(2, 4, _random_samples=same)
    assert hash(layer) == hash(nn.FractionalMaxPool2d(2, 4, _random_samples=same))
    assert layer != nn.FractionalMaxPool2d(2, 4, _random_samples=other)
    assert pickle.loads(pickle.dumps(layer)) == layer


@every_class
def test_layers_are_immutable_and_replaceable(family, ndim):
    args, kwargs = _arguments(family, ndim)[0]
    layer = layer_class(family, ndim)(*args, **kwargs)
    for name in inspect.signature(type(layer)).parameters:
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            setattr(layer, name, 1)
    first = next(iter(inspect.signature(type(layer)).parameters))
    changed = dataclasses.replace(layer, **{first: 3})
    assert changed != layer
    assert type(changed) is type(layer)


def test_extra_attributes_are_not_arguments():
    layer = nn.MaxPool2d(2)
    layer.note = "after the second block"
    assert layer(np.zeros((1, 4, 4))).shape == (1, 2, 2)
    assert layer == nn.MaxPool2d(2)


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("size", [6, 7])
def test_unpool_takes_the_output_size(ndim, size):
    """pytorch#68589: `output_size` selects among input sizes with the same pooled size."""
    x = np.random.default_rng(0).random((2, 3) + (size,) * ndim) + 1
    values, indices = layer_class("MaxPool", ndim)(2, return_indices=True)(x)
    unpool = layer_class("MaxUnpool", ndim)(2)
    for back in (unpool(values, indices, x.shape), unpool(values, indices, output_size=x.shape[2:])):
        assert back.shape == x.shape
        assert np.count_nonzero(back) == values.size
        np.testing.assert_array_equal(back[back > 0], x[back > 0])


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize(
    ("args", "rule"),
    [
        ((2,), "exactly one of output_size and output_ratio must be given"),
        ((2, 4, 0.5), "exactly one of output_size and output_ratio must be given"),
        ((2, None, 1.0), "output_ratio must lie between 0 and 1"),
        ((2, None, 0.0), "output_ratio must be positive"),
        ((2, None, [0.5, 1.5, 0.5]), "output_ratio must lie between 0 and 1"),
        ((0, 4), "kernel_size must be from 1 to 2147483647"),
        (([2, -1, 2], 4), "kernel_size must be from 1 to 2147483647"),
    ],
)
def test_fractional_constructor_rejects(ndim, args, rule):
    args = [arg[:ndim] if isinstance(arg, list) else arg for arg in args]
    with pytest.raises(ValueError, match=f"FractionalMaxPool{ndim}d: {rule}; got (output|kernel)_"):
        layer_class("FractionalMaxPool", ndim)(*args)


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("norm_type", [0, 0.0])
def test_lp_constructor_rejects_power_zero(ndim, norm_type):
    """pytorch#134841: the constructor rejects the power 0 and names the argument."""
    with pytest.raises(
        ValueError, match=f"LPPool{ndim}d: norm_type must be a number other than 0, .* norm_type={norm_type}"
    ):
        layer_class("LPPool", ndim)(norm_type, 2)


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("family", ["MaxPool", "AvgPool"])
def test_padding_limit_is_documented_and_checked(family, ndim):
    """pytorch#103423: the constructor documents the limit, and its error message names it."""
    cls = layer_class(family, ndim)
    assert "padding <= kernel_size // 2" in cls.__doc__
    x = np.zeros((1, 1) + (8,) * ndim)
    assert cls(3, padding=1)(x).shape == (1, 1) + (3,) * ndim
    options = [{}, {"dilation": 3}] if family == "MaxPool" else [{}]
    for dilated in options:
        with pytest.raises(ValueError, match=r"padding.*limit 1"):
            cls(3, padding=2, **dilated)


def _error(call, *args, **kwargs):
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*args, **kwargs)
    return caught.type, str(caught.value).partition(": ")


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(
    ("family", "arguments"), [(family, wrong) for family in cases.WRONG for wrong in cases.WRONG[family]]
)
def test_constructors_raise_the_functions_errors(family, arguments, ndim):
    """A wrong argument raises when a layer is constructed, not when it is first called."""
    if family == "FractionalMaxPool" and ndim == 1:
        pytest.skip("there is no fractional pooling in one dimension")
    if "divisor_override" in arguments and ndim == 1:
        pytest.skip("layers have no divisor in one dimension")
    cls = layer_class(family, ndim)
    error, (name, _, message) = _error(cls, **arguments)
    assert name == cls.__name__
    x = np.ones((1, 1) + (8,) * ndim)
    given = (x, x.astype(int)) if family == "MaxUnpool" else (x,)
    function = getattr(ndpool, f"{FAMILIES[family]}{ndim}d")
    assert _error(function, *given, **arguments) == (error, (function.__name__, ": ", message))


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_unpool_layers_support_dilation(ndim):
    x = np.random.default_rng(0).random((2, 3) + (9,) * ndim) + 1
    values, indices = layer_class("MaxPool", ndim)(3, dilation=2, return_indices=True)(x)
    cls = layer_class("MaxUnpool", ndim)
    unpool = cls(3, dilation=2)
    want = getattr(ndpool, f"max_unpool{ndim}d")(values, indices, 3, output_size=x.shape, dilation=2)
    np.testing.assert_array_equal(unpool(values, indices, x.shape), want)
    assert np.count_nonzero(want) == values.size
    assert repr(unpool).endswith(f", dilation={(2,) * ndim})")
    assert "dilation" not in repr(cls(3))
    assert unpool == cls(3, dilation=[2] * ndim) != cls(3)
    assert pickle.loads(pickle.dumps(unpool)) == unpool == dataclasses.replace(cls(3), dilation=2)
    with pytest.raises(TypeError, match="positional"):
        cls(3, 3, 0, 2)


@every_class
def test_documentation_names_every_argument(family, ndim):
    cls = layer_class(family, ndim)
    documented = re.findall(r"^(\w+) : ", inspect.getdoc(cls), flags=re.MULTILINE)
    assert documented == list(inspect.signature(cls).parameters)
    assert f">>> {cls.__name__}(" in cls.__doc__ or f"= {cls.__name__}(" in cls.__doc__
