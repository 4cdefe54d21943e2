"""The cache of prepared calls, compiled and in Python: typed keys, bounded, safe under threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import ndpool
from ndpool import _cache
from ndpool._call import Function
from ndpool._native import core
from ndpool.reductions import REDUCTIONS

torch = pytest.importorskip("torch")

MAX = Function("max_pool2d", REDUCTIONS["max"], 2)
AVG = Function("avg_pool2d", REDUCTIONS["avg"], 2)


@pytest.fixture(params=[core.CallCache, _cache.CallCache], ids=["compiled", "python"])
def cache(request):
    return request.param()


@pytest.fixture(autouse=True)
def framework():
    ndpool.max_pool2d(torch.ones(1, 2, 2), 2)  # registers PyTorch's exchange of tensors


X = torch.zeros(1, 2, 4, 4)
KEYS = {
    "plain": (MAX, X, (2, None, 0), False),
    "function": (AVG, X, (2, None, 0), False),
    "indices": (MAX, X, (2, None, 0), True),
    "True": (MAX, X, (2, None, False), False),
    "1": (MAX, X, (2, None, 1), False),
    "1 as True": (MAX, X, (2, None, True), False),
    "pair": (MAX, X, ((2, 2), None, 0), False),
    "nested": (MAX, X, ((2, 2), (None, 0)), False),
    "longer": (MAX, X, (2, None, 0, 0), False),
    "float": (MAX, X, (2, None, 0, None, 2.0), False),
    "other float": (MAX, X, (2, None, 0, None, 3.0), False),
    "int for float": (MAX, X, (2, None, 0, None, 2), False),
    "shape": (MAX, torch.zeros(1, 2, 4, 5), (2, None, 0), False),
    "strides": (MAX, X.to(memory_format=torch.channels_last), (2, None, 0), False),
    "dtype": (MAX, X.double(), (2, None, 0), False),
    "class": (MAX, torch.nn.Parameter(X), (2, None, 0), False),
}


def test_keys_differ_in_everything_that_matters(cache):
    for name, key in KEYS.items():
        assert cache.get(*key) is None, name
        cache.put(*key, name)
    assert len(cache) == len(KEYS)
    for name, (function, x, arguments, indices) in KEYS.items():
        twin = type(x)(x.detach().clone(memory_format=torch.preserve_format))
        assert cache.get(function, twin, arguments, indices) == name
        lists = tuple(list(a) if isinstance(a, tuple) else a for a in arguments)
        assert cache.get(function, twin, lists, indices) == name


def test_arguments_that_may_change_are_not_keys(cache):
    for value in (np.int64(2), np.array(2), object(), "2", {2}, [2, np.int64(3)]):
        key = (MAX, X, (value, None, 0), False)
        assert cache.get(*key) is False
        cache.put(*key, "kept")
    assert len(cache) == 0


def test_the_cache_is_bounded(cache):
    for n in range(3000):
        cache.put(MAX, X, (n, None, 0), False, n)
        assert cache.get(MAX, X, (n, None, 0), False) == n
        assert len(cache) <= 1024


def test_threads_share_the_cache(cache):
    wrong = []

    def work(seed: int) -> None:
        for n in np.random.default_rng(seed).integers(0, 2000, 3000).tolist():
            found = cache.get(MAX, X, (n, None, 0), False)
            if found is None:
                cache.put(MAX, X, (n, None, 0), False, n)
            elif found != n:
                wrong.append((n, found))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 0 < len(cache) <= 1024


def test_all_frameworks_use_one_cache():
    before = len(_cache.cache)
    sizes = (1, 3, 14, 10)
    for x in (np.ones(sizes, np.float32), torch.ones(sizes)):
        for _ in range(3):
            ndpool.max_pool2d(x, 2, padding=1)
    assert len(_cache.cache) == before + 2 or len(_cache.cache) < before
