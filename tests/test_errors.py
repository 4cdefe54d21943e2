"""Wrong calls: every public function raises an error with a helpful message.

A message starts with the function called and contains the argument's name, the offending value and the limit
(pytorch#104822). Nothing crashes (pytorch#91553, pytorch#189664, tensorflow/tensorflow#61601,
Oneflow-Inc/oneflow#10522), and neither inputs nor `out` are changed.
"""

from __future__ import annotations

import inspect
import json
import re
from fractions import Fraction
from itertools import product
from math import inf, nan

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cases
import ndpool
from helpers import not_sanitized, run_python

LIMIT = 2**31 - 1
X, INDICES = {}, {}
for n in (1, 2, 3):
    X[n] = np.arange(2.0 * 6**n).reshape(1, 2, *[6] * n)
    INDICES[n] = X[n].astype(int) % 6**n
NAMESPACE = {
    "X2": X[2],
    "I2": INDICES[2],
    "Y2": np.full((1, 2, 3, 3), 7.0),
    "J2": np.full((1, 2, 3, 3), 7),
    "RECORD": np.dtype([("a", "f4"), ("b", "i2")]),
    "FP8": ml_dtypes.float8_e4m3fn,
    "INT4": ml_dtypes.int4,
    "SWAPPED": np.dtype("f8").newbyteorder(),
    "masked": np.ma.masked_less,
    "readonly": cases.readonly,
    "ndpool": ndpool,
    "np": np,
    "inf": inf,
    "nan": nan,
    "LIMIT": LIMIT,
    "Fraction": Fraction,
}
LEGAL = {name: {"input": X[int(name[-2])], "kernel_size": 2} for name in cases.NAMES} | {
    "pool": {"x": X[2], "window": (2, 2), "axes": (-2, -1)},
    "adaptive_pool": {"x": X[2], "output_size": (2, 2), "axes": (-2, -1)},
    "unpool": {"values": X[2], "indices": INDICES[2], "output_size": (6, 6), "axes": (-2, -1)},
    "windows": {"size": 6, "kernel_size": 2},
    "adaptive_windows": {"size": 6, "output_size": 2},
    "output_size": {"size": 6, "kernel_size": 2},
    "set_num_threads": {"n": 1},
}
for n in (1, 2, 3):
    LEGAL[f"lp_pool{n}d"]["norm_type"] = 2
    LEGAL[f"max_unpool{n}d"]["indices"] = INDICES[n]
    for name in (f"adaptive_max_pool{n}d", f"adaptive_avg_pool{n}d"):
        LEGAL[name] = {"input": X[n], "output_size": 2}
for n in (2, 3):
    LEGAL[f"fractional_max_pool{n}d"]["output_size"] = 3
WINDOW = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}
LEAST = {  # family -> argument -> its minimum
    "max_pool": WINDOW,
    "avg_pool": WINDOW,
    "lp_pool": WINDOW,
    "adaptive_max_pool": {"output_size": 0},
    "adaptive_avg_pool": {"output_size": 0},
    "max_unpool": WINDOW,
    "fractional_max_pool": {"kernel_size": 1, "output_size": 0},
    "pool": {"window": 1, "stride": 1, "padding": 0, "dilation": 1},
    "adaptive_pool": {"output_size": 0},
    "unpool": {"output_size": 1},
    "windows": WINDOW | {"size": 1},
    "adaptive_windows": {"size": 1, "output_size": 0},
    "output_size": WINDOW | {"size": 1},
    "set_num_threads": {"n": 1},
}
NO_INTEGERS = [1.5, np.float64(2), nan, True, np.True_, "2", 2j, {2}, np.array([2, 2]), np.array(2.0)]

# Error function(changes to a legal call) => parts of the message. {a,b} expands to every name; <a;b> expands
# to one line per alternative, the same one everywhere in the line.
TABLE = """
# inputs: ranks, kinds, dtypes
Value {max,avg,lp,adaptive_max}_pool{1,2,3}d(input=np.zeros(<6;(1,) * 6>)) => input | shape <(6,);(1, 1>
Value {max_,avg_,lp_,adaptive_max_,adaptive_avg_,max_un}pool1d(input=np.zeros((1, 2, 0))) => input | (1, 2, 0)
Value {max_,avg_,lp_,adaptive_max_,adaptive_avg_,max_un}pool2d(input=X2[..., :0]) => input | (1, 2, 6, 0)
Value {max,avg,lp,adaptive_max,fractional_max}_pool{2,3}d(input=np.zeros((6, 0))) => input | shape (6, 0)
Type {max,avg,lp,adaptive_max,adaptive_avg}_pool{1,2,3}d(input=[[1.0]]) => input | list
Type {max_unpool,fractional_max_pool}{2,3}d(input=None) => input | NoneType
Type pool(x=[1, 2]) => x | list
Type unpool(values=np.float64(3)) => values | float64
Type {max_,adaptive_avg_,fractional_max_,max_un}pool2d(input=masked(X2, 3)) => input | mask
Type {pool,adaptive_pool}(x=masked(X2, 3)) => x | mask
Type unpool(values=masked(X2, 3)) => values | mask
Type {max_,avg_,fractional_max_,max_un}pool2d(input=np.zeros((1, 2, 6, 6), BAD)) => input | dtype= | bfloat16
Type {pool,adaptive_pool}(x=np.zeros((1, 2, 6, 6), BAD)) => x | dtype= | bfloat16
Type unpool(values=np.zeros((1, 2, 6, 6), BAD)) => values | dtype= | bfloat16
Value pool(x=X2[:, :, :0]) => sizes (0, 6)
Value adaptive_pool(x=X2[..., :0]) => sizes (6, 0)
# windows that do not fit (jax-ml/jax#3973), padding over its limit (pytorch#103423), windows without elements
Value {max,avg,lp}_pool{1,2,3}d(kernel_size=7, stride=1) => kernel_size=7 | input size 6
Value {max,avg,lp}_pool{1,2,3}d(dilation=6) => kernel_size=2 | dilation=6 | input size 6
Value {max,avg,lp}_pool{1,2,3}d(kernel_size=LIMIT, dilation=LIMIT) => kernel_size=2147483647 | input size 6
Value {max,avg,lp}_pool{1,2,3}d(padding=<2;LIMIT>) => padding=<2;2147483647> | kernel_size=2 | limit 1
Value {max,avg,lp}_pool{1,2,3}d(kernel_size=3, padding=2) => padding=2 | kernel_size=3 | limit 1
Value pool(padding=((3, 0), (0, 0)), stride=1) => padding=(3, 0) | window 0 | input size 6
Value pool(padding=((0, 0), (0, 9)), stride=1) => padding=(0, 9) | window | input size 6
Value pool(padding=7, dilation=7, stride=1) => padding=(7, 7) | dilation=7 | window
Value output_size(padding=4) => padding=(4, 4) | window 0
Value windows(padding=(0, 5)) => padding=(0, 5) | window
Value windows(padding=(1, 2, 3)) => padding | (1, 2, 3) | pairs
Value pool(padding=((1,), (1, 1))) => padding=((1,), (1, 1)) | 2 (before, after) pairs
Value {pool,output_size,windows}(padding="full") => padding='full' | same_lower
Type {max,avg,lp}_pool{1,2,3}d(padding="same") => padding='same'
Type pool(padding=((1, 1.5), (0, 0))) => padding=1.5
Value output_size(size=<();(5,) * 7>) => size=<();(5, 5, 5, 5, 5, 5, 5)> | 1 to 6
Value output_size(size=0) => size=0
Type output_size(size=(4, 1.5)) => size=1.5
# axes
Type {pool,adaptive_pool,unpool}(axes=<(1, 1.5);(1, True);"ab">) => axes=<1.5;True;'ab'>
Type {pool,adaptive_pool,unpool}(axes=np.array([2, 3])) => axes=array([2, 3])
Value {pool,adaptive_pool,unpool}(axes=<(2, 2);(-1, 3)>) => axes=<(2, 2);(-1, 3)>
Value {pool,adaptive_pool,unpool}(axes=(2, <4;2**63>)) => axes=(2, <4;9223372036854775808>) | from -4 to 3
Value {pool,adaptive_pool,unpool}(axes=<();range(7)>) => axes | 1 to 6 | <0;7>
Value {pool,adaptive_pool,unpool}(axes=(0, 1, 2, 3, -1)) => axes | 5
Value pool(window=2, axes=None) => window=2 | axes
Value pool(window=<();(1,) * 7>, axes=None) => window=<();(1, 1> | 1 to 6
Value {adaptive_pool,unpool}(output_size=<();(1,) * 7>, axes=None) => output_size=<();(1, 1> | 1 to 6
Value {adaptive_pool,unpool}(output_size=2, axes=None) => output_size=2 | axes
# reductions, divisors, powers (pytorch#134841)
Value {pool,adaptive_pool}(reduce=<"mean";["max"];None>) => reduce=<'mean';['max'];None> | max, min, sum
Value {pool,adaptive_pool}(reduce="avg", return_indices=True) => return_indices | 'avg'
Value pool(divisor_override=2) => divisor_override | 'max'
Value avg_pool{1,2,3}d(divisor_override=<0;2**63>) => divisor_override=<0;9223372036854775808>
Type avg_pool{1,2,3}d(divisor_override=<1.5;True;"2">) => divisor_override=<1.5;True;'2'>
Value lp_pool{1,2,3}d(norm_type=<0;0.0;nan;10**400>) => norm_type=<0;0.0;nan;100000>
Value lp_pool{1,2,3}d(norm_type=Fraction(10**400)) => norm_type=Fraction(
Type lp_pool{1,2,3}d(norm_type=<"2";None;True;2j>) => norm_type=<'2';None;True;2j>
Value {pool,adaptive_pool}(reduce="lp", norm_type=0) => norm_type=0
Value lp_pool2d(input=I2, norm_type=<-2;10**30>) => norm_type=<-2;1000000000000000000000000000000>
# out
Value {max_pool2d,avg_pool2d,lp_pool2d,pool}(out=Y2[..., :2]) => out | (1, 2, 3, 3) | (1, 2, 3, 2)
Type {max_pool2d,avg_pool2d,lp_pool2d,pool}(out=Y2.astype(<"f4";SWAPPED>)) => out | float64 | <float32;f8>
Value {max_pool2d,avg_pool2d,lp_pool2d,pool}(out=readonly(Y2)) => out | read-only
Type {max_pool2d,avg_pool2d,pool}(out=<[1];(Y2, J2);masked(Y2, 9)>) => out | <list;tuple;mask>
Type {max_pool2d,pool}(out=<Y2;(Y2,)>, return_indices=True) => out | pair | <ndarray;tuple>
Type {max_pool2d,pool}(out=(Y2, <Y2 + 1;None>), return_indices=True) => out[1] | <float64;NoneType>
Value {max_pool2d,pool}(out=(Y2, J2[0]), return_indices=True) => out[1] | (1, 2, 3, 3) | (2, 3, 3)
Value {max_pool2d,pool}(out=(Y2, readonly(J2)), return_indices=True) => out[1] | read-only
Type {max_pool2d,pool}(out=(None, J2), return_indices=True) => out | NoneType
Value {max_pool2d,pool}(out=(Y2, Y2.view("i8")), return_indices=True) => out | overlapping
Value adaptive_{max,avg}_pool2d(out=Y2) => out | (1, 2, 2, 2) | (1, 2, 3, 3)
Type avg_pool2d(out=Y2, dtype="f4") => out | float32 | float64
# dtype
Type {avg,lp,adaptive_avg}_pool{2,3}d(dtype=<"nonsense";3;"(2,">) => dtype=<'nonsense';3;'(2,'>
Type {avg,lp,adaptive_avg}_pool{2,3}d(dtype=<"c8";bool;"u1";"M8">) => dtype=<comp;bool;uint8;date>
Type {avg,lp,adaptive_avg}_pool{2,3}d(dtype=<"f8,f8";"(2,)f8">) => dtype | <f1;(2,)>
Type {avg,adaptive_avg}_pool2d(input=X2 % 2 == 0) => dtype=bool
# indices (pytorch#132041, pytorch#141099, pytorch#68589)
Value {max_unpool2d,unpool}(indices=<I2[:, 1:];I2[0];np.array(3)>) => indices | (1, 2, 6, | <(1, 1;(2, 6;()>
Type {max_unpool2d,unpool}(indices=<X2;X2 == 3;X2 * 1j>) => indices | <float64;bool;complex128>
Type {max_unpool2d,unpool}(indices=I2.astype(<object;INT4>)) => indices | <object;int4>
Type {max_unpool2d,unpool}(indices=<[3];None;masked(I2, 3)>) => indices | <list;NoneType;MaskedArray>
Value {max_unpool2d,unpool}(indices=I2 - <1;2**62>) => indices | index -<1;4611686018427387904> | limit
Value {max_unpool2d,unpool}(indices=np.full_like(I2, 2**62)) => indices | 4611686018427387904 | limit
Value {max_unpool2d,unpool}(indices=(I2 - 2**62).view("u8")) => indices | 138350580552821637 | limit
Value unpool(indices=I2 + 1) => indices | index 36 | limit 35 | (6, 6)
Value max_unpool2d(indices=I2 + 109) => indices | index 144 | limit 143 | (12, 12)
Type max_unpool2d(output_size=<12;"ab";(12, 12.5)>) => output_size=<12;'ab';12.5>
Value max_unpool2d(output_size=<();(12,)>) => output_size=<();(12,)>
Value max_unpool2d(output_size=<(9, 12);(1, 12, 14)>) => output_size=<(9, 12);(12, 14)> | 11 to 13
Value max_unpool2d(output_size=(12, 10**30)) => output_size | 1000000000000000000000000000000 | limits
Value max_unpool2d(padding=9) => padding=9 | (-6, -6)
# fractional windows (pytorch#51622: the samples of an unbatched input carry the batch axis)
Value fractional_max_pool2d(_random_samples=np.zeros((1, 2, 3))) => _random_samples | (1, 2, 2) | (1, 2, 3)
Value fractional_max_pool2d(input=X2[0], _random_samples=X2[0]) => _random_samples | (1, 2, 2) | (2, 6
Type fractional_max_pool2d(_random_samples=np.zeros((1, 2, 2), "f4")) => _random_samples | float32
Type fractional_max_pool2d(input=I2, _random_samples=np.zeros((1, 2, 2), int)) => _random_samples | int64
Type fractional_max_pool2d(_random_samples=[[[0.0, 0.0]]]) => _random_samples | list
Value fractional_max_pool2d(_random_samples=X2[..., :2, 0] * 0 + <9;-1;nan>) => _random_samples | <9;-1;nan>
Type fractional_max_pool{2,3}d(generator=<-1;1.5;"seed">) => generator | <-1;1.5;'seed'>
Value fractional_max_pool{2,3}d(output_size=None) => output_size or output_ratio
Value fractional_max_pool{2,3}d(output_size=None, output_ratio=<0;-1;nan;inf>) => output_ratio=<0;-1;nan;inf>
Value fractional_max_pool{2,3}d(output_size=None, output_ratio=<(1,);10**400>) => output_ratio=<(1,);10000>
Type fractional_max_pool{2,3}d(output_size=None, output_ratio=<True;X2>) => output_ratio=<True;array(>
Value fractional_max_pool{2,3}d(output_size=6) => output_size=6 | kernel_size=2 | limit 5
# layers: constructors and calls
Value nn.MaxPool2d(2)(X2[0, 0]) => max_pool2d | input | (6, 6)
Type nn.AvgPool1d(2)([1.0]) => avg_pool1d | input | list
Type nn.MaxPool2d("ab") => MaxPool2d | kernel_size='ab'
Value nn.MaxPool2d(2, 0) => MaxPool2d | stride=0
Value nn.AvgPool2d(2, 2, 2) => AvgPool2d | padding=2 | limit 1
Type nn.LPPool2d("2", 2) => LPPool2d | norm_type='2'
Value nn.AdaptiveMaxPool2d(<-1;()>) => AdaptiveMaxPool2d | output_size=<-1;()>
Type nn.AdaptiveAvgPool2d(2.0) => AdaptiveAvgPool2d | output_size=2.0
Value nn.MaxUnpool2d(2)(X2, I2 - 1) => max_unpool2d | indices | -1
Type nn.MaxUnpool2d(2)(X2, X2) => max_unpool2d | indices | float64
Type nn.FractionalMaxPool2d("ab", 2) => FractionalMaxPool2d | kernel_size | ab
Type nn.FractionalMaxPool2d(2, None, "ab") => FractionalMaxPool2d | output_ratio | ab
Type nn.LPPool2d(np.ones(2), 2) => LPPool2d | norm_type | [1., 1.]
"""
TABLE = TABLE.replace(
    "BAD", "<complex;'c8';object;'U3';'S3';'M8[s]';'m8[s]';np.longdouble;'V4';RECORD;FP8;INT4>"
)
ERRORS = {"Value": ValueError, "Type": TypeError, "Memory": MemoryError}


def family(name):
    return name[:-2] if name in cases.NAMES else name


def table_cases():
    for line in TABLE.splitlines():
        if not line or line.startswith("#"):
            continue
        lists = [some.split(";") for some in re.findall("<(.*?)>", line)] or [[""]]
        for k in range(len(lists[0])):
            chosen = re.sub("<(.*?)>", lambda some, k=k: some[1].split(";")[k], line)
            error, names, arguments, parts = re.fullmatch(
                r"(\w+) ([\w.{},]+)(\(.*\)) => (.*)", chosen
            ).groups()
            for name in map("".join, product(*(some.split(",") for some in re.split("[{}]", names)))):
                yield pytest.param(ERRORS[error], name, arguments, parts.split(" | "), id=name + arguments)


def integer_cases():
    for name in LEGAL:
        for argument, least in LEAST[family(name)].items():
            most = {"n": 1024, "size": 2**63 - 1}.get(argument, LIMIT)
            named = argument == "padding" and name in ("pool", "windows", "output_size")  # such as "same"
            for value in NO_INTEGERS:
                error = ValueError if named and isinstance(value, str) else TypeError
                yield error, name, argument, value, [repr(value)]
            for value in (least - 1, -(2**63), most + 1, 2**63, 10**30):
                yield ValueError, name, argument, value, [f"={value}", str(most)]
            if argument != "stride" and (argument, least) != ("output_size", 0):
                yield TypeError, name, argument, None, ["None"]
            if argument not in ("size", "n"):
                for value in [(2,) * 7, [2] * 7, *([()] if argument != "stride" else [])]:
                    yield ValueError, name, argument, value, [repr(value)]
            if name.endswith("2d"):
                yield ValueError, name, argument, (1, least - 1), [f"={least - 1}", str(most)]
                yield TypeError, name, argument, [1, 2.5], ["2.5"]


def arrays_in(value):
    if isinstance(value, dict | tuple | list):
        return [a for item in (value.values() if isinstance(value, dict) else value) for a in arrays_in(item)]
    return [value] if isinstance(value, np.ndarray) else []


def check_error(error, parts, name, call, arguments):
    """The call raises exactly this error with all parts in its message, and changes no array."""
    before = [a.tobytes() for a in arrays_in(arguments)]
    with pytest.raises(error) as caught:
        call(**arguments)
    message = str(caught.value)
    assert caught.type is error
    assert message.startswith(f"{name}: "), message
    for piece in parts:
        word = rf"(?<!\w){re.escape(piece)}(?!\w)" if piece.isidentifier() else re.escape(piece)
        assert re.search(word, message), f"{piece!r} is missing in {message!r}"
    assert [a.tobytes() for a in arrays_in(arguments)] == before


@pytest.mark.parametrize(("error", "name", "arguments", "parts"), list(table_cases()))
def test_wrong_calls(error, name, arguments, parts):
    """pytorch#104822, pytorch#132041, pytorch#141099, pytorch#134841, pytorch#51622, jax-ml/jax#3973."""
    if name.startswith("nn."):
        check_error(
            error,
            parts[1:],
            parts[0],
            lambda: eval(f"ndpool.{name}{arguments}", {"ndpool": ndpool} | NAMESPACE),
            {},
        )
    else:
        changed = LEGAL[name] | eval(f"dict{arguments}", NAMESPACE)
        check_error(error, parts, name, getattr(ndpool, name), changed)


@pytest.mark.parametrize(
    ("error", "name", "argument", "value", "parts"),
    [pytest.param(*case, id=f"{case[1]}-{case[2]}={case[3]!r:.30}") for case in integer_cases()],
)
def test_integers(error, name, argument, value, parts):
    """pytorch#91553, pytorch#189664, pytorch#42509, Oneflow-Inc/oneflow#10522: bad integer arguments."""
    check_error(error, [argument, *parts], name, getattr(ndpool, name), LEGAL[name] | {argument: value})


class Ambiguous:
    """Has no truth value, like a tensor with two elements."""

    def __bool__(self):
        raise RuntimeError("ambiguous")

    def __repr__(self):
        return "Ambiguous()"


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        (name, argument)
        for name in LEGAL
        for argument in ("ceil_mode", "count_include_pad", "return_indices")
        if argument in inspect.signature(getattr(ndpool, name)).parameters
    ],
)
@pytest.mark.parametrize("value", [Ambiguous(), np.ones(2)], ids=["object", "array"])
def test_flags(name, argument, value):
    """A value without a truth value raises an error that names the argument."""
    changed = LEGAL[name] | {argument: value}
    check_error(TypeError, [argument, repr(value)], name, getattr(ndpool, name), changed)


def test_layers_accept_numpy_integers():
    """Like the functions: NumPy integers and 0-d integer arrays."""
    for two in (np.int64(2), np.uint8(2), np.array(2)):
        for layer in (ndpool.nn.MaxPool2d(two), ndpool.nn.AvgPool1d(two), ndpool.nn.MaxUnpool2d(two)):
            assert layer == type(layer)(2)
        assert ndpool.nn.FractionalMaxPool2d(two, two) == ndpool.nn.FractionalMaxPool2d(2, 2)
        assert ndpool.max_pool2d(X[2], two).shape == (1, 2, 3, 3)


@not_sanitized
@pytest.mark.parametrize(
    "call",
    [
        "adaptive_max_pool1d(np.ones((1, 4)), LIMIT)",
        "adaptive_max_pool1d(np.ones((1, 1)), LIMIT)",
        "adaptive_avg_pool2d(np.ones((1, 4, 4)), LIMIT)",
        "adaptive_max_pool3d(np.ones((1, 4, 4, 4)), LIMIT, True)",
        "adaptive_pool(np.ones(4), (LIMIT,), reduce='avg')",
        "adaptive_windows(4, LIMIT)",
        "windows(LIMIT, 1)",
        "pool(np.ones(3), (LIMIT,), stride=1, padding=LIMIT - 1)",
        "unpool(np.ones(1), np.zeros(1, int), (LIMIT,))",
        "unpool(np.ones((1, 1)), np.zeros((1, 1), int), (LIMIT, LIMIT))",
        "max_unpool2d(np.ones((1, 2, 2)), np.zeros((1, 2, 2), int), LIMIT)",
    ],
)
def test_results_beyond_memory(call):
    """pytorch#91553, tensorflow/tensorflow#61601: out-of-memory errors name the function too."""
    code = f"""
import json, resource, numpy as np, ndpool
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
LIMIT = {LIMIT}
try: ndpool.{call}
except BaseException as e: print(json.dumps([type(e).__name__, str(e)]))
"""
    error, message = json.loads(run_python(code))
    assert error in ("MemoryError", "ValueError")
    assert message.startswith(f"{call.partition('(')[0]}: "), message


# Legal values are small: no entry is between 9 and the limit of 2**31 - 1.
small = st.integers(-1, 4)
odd = st.sampled_from(
    [-(2**63), 2**31, 2**32, 2**63, 10**30, 10**400, inf, -inf, nan, 1e300, 2.5, None, True, 2j, Fraction(2)]
    + [
        "",
        "same",
        "f4",
        "ab",
        b"",
        b"ab",
        np.int8(2),
        np.uint64(2**63),
        np.float32(2),
        np.array(2),
        np.zeros(2),
    ]
)
some = st.lists(small | odd, max_size=3) | st.tuples(small, small) | st.tuples(small | odd, small | odd)
anything = small | odd | some | st.tuples(some, some) | st.lists(some, max_size=3)
inputs = st.builds(
    np.ones,
    st.lists(st.integers(0, 6), max_size=6).map(tuple)
    | st.sampled_from([(1, 2, 6), (1, 2, 6, 6), (2, 6, 6)]),
    st.sampled_from([*cases.DTYPES, *map(np.dtype, [">i4", complex, object])]),
)
MORE = ["reduce", "dtype", "out", "return_indices", "norm_type", "ceil_mode"]
KEYWORDS = {
    name: sorted({*legal, *LEAST[family(name)], *(MORE if family(name) in ("pool", "adaptive_pool") else ())})
    for name, legal in LEGAL.items()
    if name != "set_num_threads"
}


@settings(max_examples=1500, deadline=None, database=None, derandomize=True)
@given(st.data())
def test_arbitrary_arguments(data):
    """pytorch#91553, tensorflow/tensorflow#61601: a result or one of three errors for any arguments."""
    name = data.draw(st.sampled_from(list(KEYWORDS)))
    arguments = dict(LEGAL[name])
    for key in data.draw(st.lists(st.sampled_from(KEYWORDS[name]), min_size=1, max_size=3, unique=True)):
        is_array = isinstance(LEGAL[name].get(key), np.ndarray) or key == "out"
        arguments[key] = data.draw(inputs | anything if is_array else anything, key)
    before = [a.tobytes() for a in arrays_in(arguments)]
    try:
        result = getattr(ndpool, name)(**arguments)
    except tuple(ERRORS.values()):
        assert [a.tobytes() for a in arrays_in(arguments)] == before
    else:
        assert isinstance(result, np.ndarray | tuple | list | int)
