"""Threads and instruction sets: bitwise reproducible results, and safety under threads, forks and signals.

Each instruction set is forced and confirmed, in this process and through the environment. Then come forked
and spawned processes, concurrent calls, interrupts, exit, and the modules that an import loads.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import ndpool
import passes
from cases import LAYOUTS, as_tuple
from helpers import HANG, hard_values, not_sanitized, run_python, small
from ndpool import geometry
from ndpool._native import core, core_plan
from ndpool.reductions import REDUCTIONS

pytestmark = pytest.mark.usefixtures("restore_settings")
SETS = core.isa_names()
THREADS = (1, 2, 3, 7)
PLANE = (150, 230)
PLANES = {
    1: (2, 16),
    2: (1, 16),
    4: (1, 8),
    8: (1, 8),
}  # by item size: over 1 MiB, so that threads are used


def backward(reduce, plan, x):
    """Values and offsets if the reduction has them, and the gradient of the input."""
    axes, reduction = (2, 3), REDUCTIONS[reduce]
    grad = small((*x.shape[:2], *plan.out), x.dtype)
    if not reduction.has_index:
        return (passes.backward(reduce, plan, grad, axes),)
    y, offsets = passes.with_offsets(reduce, plan, x, axes)
    return y, offsets, passes.backward(reduce, plan, grad, axes, offsets=offsets)


SLIDING = geometry.sliding("f", PLANE, 3, 2, 1, 1, False, strict=True)
ADAPTIVE = geometry.adaptive("f", PLANE, (40, 33))
MAXIMA = {
    "max 3x3/2": lambda x: ndpool.max_pool2d(x, 3, 2, 1),
    "max 2x2": lambda x: ndpool.max_pool2d(x, 2),
    "max 5x5/1": lambda x: ndpool.max_pool2d(x, 5, 1, 2),
    "max with indices": lambda x: ndpool.max_pool2d(x, 3, 2, 1, 2, True, True),
    "min": lambda x: ndpool.pool(
        x, (4, 4), reduce="min", stride=3, padding=((1, 0), (0, 2)), return_indices=True
    ),
    "adaptive max": lambda x: ndpool.adaptive_max_pool2d(x, (40, 33), True),
    "unpool": lambda x: ndpool.max_unpool2d(*ndpool.max_pool2d(x, 2, return_indices=True), 2),
    "sum": lambda x: ndpool.pool(x, (3, 5), reduce="sum", stride=1),
    "mean": lambda x: ndpool.pool(x, (3, 3), reduce="avg", padding=1, ceil_mode=True, dtype="f4"),
    "norm": lambda x: ndpool.lp_pool2d(x, 2.0, 3),
}
AVERAGES = {
    "avg 3x3/2": lambda x: ndpool.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg 2x2": lambda x: ndpool.avg_pool2d(x, 2),
    "avg 7x7/1": lambda x: ndpool.avg_pool2d(x, 7, 1, 3, dilation=2, divisor_override=11),
    "adaptive avg": lambda x: ndpool.adaptive_avg_pool2d(x, (40, 33)),
    "norm 2.5": lambda x: ndpool.lp_pool2d(np.abs(x), 2.5, 3, 2, True),
    "max backward": partial(backward, "max", SLIDING),
    "adaptive max backward": partial(backward, "max", ADAPTIVE),
    "avg backward": partial(backward, "avg", SLIDING),
    "adaptive avg backward": partial(backward, "avg", ADAPTIVE),
}


def digest(calls, x):
    """Hashes of the results of every call, by name; without indices a zero may have either sign."""
    digests = {}
    for name, call in calls.items():
        found = as_tuple(call(x))
        if len(found) == 1:
            found = (np.where(found[0] == 0, 0, found[0]).astype(found[0].dtype),)
        digests[name] = [hashlib.sha256(np.ascontiguousarray(a)).hexdigest() for a in found]
    return digests


def big(dtype, layout, special=0.001):
    dtype = np.dtype(dtype)
    x = hard_values((*PLANES[dtype.itemsize], *PLANE), dtype, special=special)
    if dtype.kind not in "iu":
        # Enough digits that another order of additions changes the result.
        x = (x.astype(np.float64) * 1.2345678901).astype(dtype)
    return LAYOUTS[layout](x, 2)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced", "reversed"])
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int64]
)
def test_same_bits_for_every_set_and_number_of_threads(dtype, layout):
    x = big(dtype, layout)
    calls = MAXIMA if x.dtype.kind in "iu" else MAXIMA | AVERAGES
    wanted = None
    for name in SETS:
        assert core.set_isa(name)
        assert ndpool.show_config()["instruction set"] == name
        for threads in THREADS:
            ndpool.set_num_threads(threads)
            assert ndpool.get_num_threads() == ndpool.show_config()["threads"] == threads
            got = digest(calls, x)
            wanted = wanted or got
            assert got == wanted, f"{name}, {threads} threads"


def test_same_bits_in_a_hundred_runs():
    """pytorch#78249, pytorch#50198: including gradients and repeated indices."""
    x = big(np.float32, "channels_last")
    ndpool.set_num_threads(3)
    calls = {
        name: (MAXIMA | AVERAGES)[name] for name in ("max with indices", "avg 3x3/2", "adaptive max backward")
    }
    calls["repeated indices"] = lambda x: ndpool.unpool(x, np.abs(x).astype(int) % 99, PLANE)
    clean = np.nan_to_num(x, posinf=1, neginf=-1)
    assert len({str(digest(calls, clean)) for _ in range(100)}) == 1


def test_the_result_is_right_with_threads():
    """Compared with NumPy reductions of a reshaped array."""
    x = big(np.float32, "contiguous", special=0)
    ndpool.set_num_threads(7)
    want = x.reshape(1, 8, 75, 2, 115, 2)
    np.testing.assert_array_equal(ndpool.max_pool2d(x, 2), want.max((3, 5)))
    np.testing.assert_allclose(ndpool.avg_pool2d(x, 2), want.mean((3, 5)), rtol=1e-6, atol=1e-6)


SHOW = "import ndpool; c = ndpool.show_config(); print(c['instruction set'], c['threads'])"
TRY = """
import ndpool, numpy as np
for _ in range(2):
    try: ndpool.max_pool1d(np.ones((1, 4)), 2)
    except ValueError as e: print(e)
"""


@pytest.mark.parametrize("name", SETS)
def test_environment_selects_the_instruction_set(name):
    assert run_python(SHOW, NDPOOL_ISA=name, NDPOOL_NUM_THREADS="5").split() == [name, "5"]


@pytest.mark.parametrize(
    ("variable", "value", "known"),
    [("NDPOOL_ISA", "sse9", SETS), ("NDPOOL_ISA", "AVX2 ", SETS)]
    + [
        ("NDPOOL_NUM_THREADS", value, ["1", "1024"])
        for value in ("0", "-1", "1025", "two", "1.5", "9" * 5000)
    ],
    ids=lambda value: str(value)[:12],
)
def test_bad_environment_variables_raise(variable, value, known):
    """At every call, with a message that lists the valid values."""
    lines = run_python(TRY, **{variable: value}).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert variable in line
        assert value[:40] in line
        assert all(name in line for name in known)


def test_threads_are_started_for_large_arrays_only():
    code = """
import os, sys, numpy as np, ndpool
count = lambda: len(os.listdir("/proc/self/task"))
ndpool.set_num_threads(4)
before = count()
ndpool.max_pool2d(np.ones((1, 64, 64)), 2)
print(count() - before)
ndpool.max_pool2d(np.ones((1, 2000, 2000)), 2)
print(count() - before)
"""
    assert run_python(code).split() == ["0", "3"]


def test_all_cores_are_the_default():
    code = "import os, ndpool; print(ndpool.get_num_threads() == len(os.sched_getaffinity(0)))"
    assert run_python(code).split() == ["True"]
    one = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
    assert run_python(one + "import ndpool; print(ndpool.get_num_threads())").split() == ["1"]


FORK = """
import multiprocessing, os, sys
import numpy as np, ndpool

x = np.random.default_rng(0).random((4, 8, 300, 300))
kind, setting = sys.argv[1:]

def child(_=None):
    y, i = ndpool.max_pool2d(x, 3, 2, 1, return_indices=True)
    g = ndpool.avg_pool2d(x, 5, 1, 2)
    return ndpool.get_num_threads(), float(y.sum()), int(i.sum()), float(g.sum())

if __name__ == "__main__":
    if setting == "explicit":
        ndpool.set_num_threads(2)
    mine = child()
    if kind == "os":
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(write, repr(child()).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        theirs = [eval(os.read(read, 1000))]
    else:
        with multiprocessing.get_context(kind).Pool(3) as pool:
            theirs = pool.map_async(child, range(6), 1).get(40)
    assert child() == mine
    assert all(their[1:] == mine[1:] for their in theirs)
    print(mine[0], *sorted({their[0] for their in theirs}))
"""


@pytest.mark.parametrize("setting", ["default", "explicit"])
@pytest.mark.parametrize("kind", ["os", "fork", "spawn"])
def test_worker_processes(kind, setting, tmp_path):
    """Child processes of a parent that has pooled use one thread unless more are set."""
    script = tmp_path / "workers.py"
    script.write_text(FORK)
    mine, theirs = run_python(script, kind, setting).split()
    # Only forked children inherit a number set in the parent.
    assert theirs == ("2" if setting == "explicit" and kind in ("os", "fork") else "1")
    assert setting == "default" or mine == "2"


def test_environment_applies_to_workers():
    code = "import multiprocessing as m, ndpool\nwith m.get_context('fork').Pool(1) as p: print(p.apply({}))"
    assert run_python(code.format("ndpool.get_num_threads"), NDPOOL_NUM_THREADS="3").split() == ["3"]


def test_forks_during_a_call():
    """A child forked while another thread of the parent is in the core pools with its own threads."""
    code = """
import os, threading, numpy as np, ndpool
x = np.random.default_rng(0).random((4, 8, 300, 300))
ndpool.set_num_threads(2)
want = ndpool.max_pool2d(x, 3)
done, status = threading.Event(), []

def work():
    while not done.is_set():
        ndpool.max_pool2d(x, 3)

worker = threading.Thread(target=work)
worker.start()
for _ in range(20):
    if (pid := os.fork()) == 0:
        ndpool.set_num_threads(3)
        same = (ndpool.max_pool2d(x, 3) == want).all()
        os._exit(0 if same and len(os.listdir("/proc/self/task")) == 3 else 1)
    status.append(os.waitpid(pid, 0)[1])
done.set()
worker.join()
print(*status)
"""
    assert run_python(code).split() == ["0"] * 20


FORKED_FIRST = """
import multiprocessing, os, signal, sys
import torch

torch.set_num_threads(2)
x = torch.rand(8, 16, 192, 192)
want = torch.nn.functional.max_pool2d(x, 3, 2, 1).numpy()  # starts PyTorch's threads
kind = sys.argv[1]

def child(_=None):
    import ndpool
    right = [(ndpool.max_pool2d(y, 3, 2, 1).__array__() == want).all() for y in (x, x.numpy(), x)]
    values, indices = ndpool.max_pool2d(x, 2, return_indices=True)
    back = ndpool.max_unpool2d(values, indices, 2).numpy()
    right.append((back.max((2, 3)) == x.numpy().max((2, 3))).all())
    return "multiprocessing.process" in sys.modules, ndpool.get_num_threads(), all(right)

if __name__ == "__main__":
    if kind == "os":
        if (pid := os.fork()) == 0:
            signal.alarm(100)  # ends a child that hangs
            os._exit(0 if child()[1:] == (2, True) else 1)
        print(os.waitpid(pid, 0)[1])
    else:
        with multiprocessing.get_context(kind).Pool(2) as pool:
            print(*{int(their[1:] != (2, True)) for their in pool.map_async(child, range(4), 1).get(100)})
"""


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["os", "fork", "forkserver", "spawn"])
def test_children_forked_before_the_first_call(kind, tmp_path):
    """PyTorch's threads were started in the parent and do not exist in the child."""
    script = tmp_path / "forked.py"
    script.write_text(FORKED_FIRST)
    assert run_python(script, kind, NDPOOL_NUM_THREADS="2").split() == ["0"]


@pytest.mark.torch
@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch uses libgomp only on Linux")
def test_tensors_use_the_threads_of_pytorch():
    """The main thread uses PyTorch's threads; another thread and a forked child use the core's."""
    code = """
import os, threading, torch, ndpool
torch.set_num_threads(2)
ndpool.set_num_threads(2)
x = torch.rand(8, 16, 192, 192)
want = torch.nn.functional.max_pool2d(x, 3, 2, 1)
count = lambda: len(os.listdir("/proc/self/task"))
same = lambda: bool((ndpool.max_pool2d(x, 3, 2, 1) == want).all())
before = count()
print(same(), count() - before)
if (pid := os.fork()) == 0:
    torch.set_num_threads(1)  # the child has none of PyTorch's threads for the comparison
    ndpool.set_num_threads(2)
    before = count()
    os._exit(0 if same() and count() == before + 1 else 1)
print(os.waitpid(pid, 0)[1])
other = threading.Thread(target=lambda: print(same(), count() - before))
other.start()
other.join()
"""
    # At the end there are two more: one of the core's threads, and the calling thread.
    assert run_python(code).split() == ["True", "0", "0", "True", "2"]


@pytest.mark.torch
@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch uses libgomp only on Linux")
@pytest.mark.parametrize("limit", ["1", "2", "3"])
def test_fewer_borrowed_threads_than_asked_for(limit):
    """OpenMP may give a call fewer threads than its setting says: whoever is there does all of the work."""
    code = """
import torch, ndpool
torch.set_num_threads(4)
ndpool.set_num_threads(4)
short, long = torch.rand(3, 7, 100, 120), torch.rand(8, 16, 192, 192)
def same(x):
    x = x.requires_grad_()
    grads = []
    for home in (ndpool, torch.nn.functional):
        y, i = home.max_pool2d(x, 3, 2, 1, return_indices=True)
        grads += [y, i, *torch.autograd.grad(home.max_pool2d(x, 3, 2, 1).sum(), x)]
    return all(map(torch.equal, grads[:3], grads[3:]))
print(*[same(x) for x in (short, long, short, long)])
"""
    assert run_python(code, OMP_THREAD_LIMIT=limit).split() == ["True"] * 4


@pytest.mark.torch
def test_a_prepared_call_follows_the_number_of_threads():
    """A call is prepared for a number of threads, and anew for another one."""
    code = """
import torch, ndpool
x = torch.randn(2, 5, 61, 83)
def results(n):
    torch.set_num_threads(n)
    ndpool.set_num_threads(n)
    found = [*ndpool.max_pool2d(x, 3, 2, 1, return_indices=True), ndpool.lp_pool2d(x, 2.0, 3)]
    return [*found, ndpool.avg_pool2d(x, 3, 1, 1)], ndpool.explain("avg_pool2d", x, 3, 1, 1).steps[0].threads
first, _ = results(1)
for n in (2, 1, 2, 1):
    again, threads = results(n)
    print(threads == n and all(map(torch.equal, first, again)))
"""
    assert run_python(code).split() == ["True"] * 4


def test_concurrent_calls():
    """The thread pool runs one call at a time; other calls run on one thread and give the same result."""
    ndpool.set_num_threads(2)
    arrays = [big(dtype, "contiguous") for dtype in (np.float32, np.float64, np.int8, np.float16)]
    wanted = [digest(MAXIMA, x) for x in arrays]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(partial(digest, MAXIMA), arrays)) == wanted


def test_threads_forks_and_settings_at_once():
    """Calls from several threads while settings change and processes fork give right results."""
    code = """
import os, random, sys, threading
import numpy as np, ndpool
from ndpool._native import core, core_plan

rng = np.random.default_rng(0)
x = rng.integers(-8, 9, (4, 4, 150, 230)).astype(np.float32)
values, indices = ndpool.max_pool2d(x, 2, return_indices=True)
calls = [
    lambda: ndpool.max_pool2d(x, 3, 2, 1),
    lambda: ndpool.max_pool2d(x, 5, 1, 2),
    lambda: ndpool.avg_pool2d(x, 3, 2),
    lambda: ndpool.max_pool2d(x, 2, return_indices=True)[1],
    lambda: ndpool.pool(x.astype(np.int64), (2, 2), reduce="sum"),
    lambda: ndpool.max_unpool2d(values, indices, 2),
]
ndpool.set_num_threads(1)
want = [call() for call in calls]
failed, done = [], threading.Event()

def work(seed, least):
    choose, n = random.Random(seed), 0
    while n < least or not done.is_set():
        n += 1
        ndpool.set_num_threads(choose.randrange(1, 5))
        core.set_isa(choose.choice(core.isa_names()))
        i = choose.randrange(len(calls))
        if not (calls[i]() == want[i]).all():
            failed.append(i)

threads = [threading.Thread(target=work, args=(seed, 10)) for seed in range(3)]
for thread in threads:
    thread.start()
for seed in range(10, 20):
    if (pid := os.fork()) == 0:
        done.set()
        work(seed, 4)
        os._exit(len(failed))
    failed += [seed] * (os.waitpid(pid, 0)[1] != 0)
done.set()
for thread in threads:
    thread.join()
print(failed)
"""
    assert run_python(code).split() == ["[]"]


def test_instruction_set_changes_during_a_cached_call():
    """A call that is prepared once and runs in several threads keeps its kernel to the end."""
    code = """
import threading, time
import numpy as np, ndpool
from ndpool._native import core

x = np.random.default_rng(0).integers(-8, 9, (4, 4, 150, 230)).astype(np.float32)
ndpool.set_num_threads(3)
pool = lambda: ndpool.max_pool2d(x, 5, 1, 2)
want, wrong, end = pool(), [], time.monotonic() + 1.5

def work(names):
    while time.monotonic() < end:
        for name in names or [core.isa()]:
            core.set_isa(name) if names else None
            if not (pool() == want).all():
                wrong.append(name)

threads = [threading.Thread(target=work, args=(names,)) for names in (core.isa_names(), [], [], [])]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(wrong)
"""
    assert run_python(code).split() == ["[]"]


@pytest.mark.parametrize("threads", ["1", "2"])
def test_exit_during_calls(threads):
    """The interpreter exits while daemon threads pool: no error, no message."""
    code = """
import os, threading, numpy as np, ndpool
os.dup2(1, 2)
x = np.ones((8, 64, 64))
started = threading.Semaphore(0)

def work():
    ndpool.max_pool2d(x, 3)
    started.release()
    while True:
        ndpool.max_pool2d(x, 3)

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(3):
    started.acquire()
"""
    for _ in range(8):
        assert run_python(code, NDPOOL_NUM_THREADS=threads) == ""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_exit_before_a_call_ends(threads):
    """A long call returns while the interpreter exits, where PyTorch's functions abort the process."""
    code = """
import os, sys, threading, time, numpy as np, ndpool
os.dup2(1, 2)
x, started = np.ones((1, 1, 50, 50, 50)), threading.Event()
ndpool.lp_pool3d(x, 3.5, 10, 10)

def work():
    started.set()
    ndpool.lp_pool3d(x, 3.5, 10, 1)

class Last:
    def __del__(self, sleep=time.sleep):
        sleep(2)

sys.last = Last()
threading.Thread(target=work, daemon=True).start()
started.wait()
"""
    assert run_python(code, NDPOOL_NUM_THREADS=threads) == ""


# An interrupted call takes much less CPU time than the whole call, of which one eighth is timed. Other
# processes can only make either slower, so the best of several attempts counts; a call that is deaf to
# signals takes eight eighths every time.
INTERRUPT = """
import signal, sys, time
import numpy as np, ndpool
SETUP
def cpu(call, *args):
    start = time.process_time()
    try:
        return call(*args), time.process_time() - start
    except KeyboardInterrupt:
        return None, time.process_time() - start

signal.signal(signal.SIGVTALRM, signal.default_int_handler)
eighths, interrupted, results = [], [], []
for _ in range(5):
    want, seconds = cpu(call, 1)
    eighths.append(seconds)
    signal.setitimer(signal.ITIMER_VIRTUAL, max(min(eighths) / 2, 0.01))
    result, seconds = cpu(call, 8)
    interrupted.append(seconds)
    results.append(result)
    if min(interrupted) < 4 * min(eighths):
        break
print(all(result is None for result in results), min(interrupted) < 4 * min(eighths))
start = time.process_time()
time.sleep(0.5)
print(time.process_time() - start < 0.25)
print(bool((want == call(1)).all()))
"""
INTERRUPTED = {
    "forward": """
x = np.broadcast_to(np.random.default_rng(0).random((60, 60, 60), np.float32), (1600, 60, 60, 60))
call = lambda n: ndpool.lp_pool3d(x[: 200 * n], 3.5, 30, 15)
""",
    "one plane": """
x = np.random.default_rng(0).random((1, 1, 480, 240, 240))
call = lambda n: ndpool.lp_pool3d(x[:, :, : 60 * n], 3.5, 12, 1)
""",
    "large window": """
x = np.broadcast_to(np.random.default_rng(0).random((200, 200, 200)), (160, 200, 200, 200))
call = lambda n: ndpool.pool(x[: 20 * n], (100, 100, 100), reduce="avg", stride=50)
""",
    "backward": """
import passes
from ndpool import geometry
plan = geometry.sliding("f", (120, 120, 120), 12, 1, 0, 1, False, strict=False)
x, y = (np.random.default_rng(0).random((16, *sizes)) for sizes in (plan.sizes, plan.out))
call = lambda n: passes.backward("lp", plan, y[: 2 * n], (1, 2, 3), norm=3.5, x=x[: 2 * n], y=y[: 2 * n])
""",
    "unpool": """
values = np.broadcast_to(np.ones(1 << 20, np.float32), (1600, 1 << 20))
indices = np.broadcast_to(np.arange(1 << 20) % 16, values.shape)
call = lambda n: ndpool.unpool(values[: 200 * n], indices[: 200 * n], (16,), axes=(1,))
""",
    "unpool one plane": """
values = np.broadcast_to(np.ones(1, np.float32), (1 << 31,))
indices = np.broadcast_to(np.ones(1, int), values.shape)
call = lambda n: ndpool.unpool(values[: n << 28], indices[: n << 28], (16,))
""",
    "tensor": """
import torch
x = torch.rand(60, 60, 60).expand(1600, 1, 60, 60, 60)
call = lambda n: ndpool.lp_pool3d(x[: 200 * n], 3.5, 30, 15)
""",
    "tensor backward": """
import torch
x = {n: torch.rand(10 * n, 1, 90, 90, 90).requires_grad_() for n in (1, 8)}
y = {n: ndpool.avg_pool3d(x[n], 20, 1).sum() for n in x}
call = lambda n: torch.autograd.grad(y[n], x[n], retain_graph=True)[0]
""",
}


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.torch if "tensor" in c else ()) for c in INTERRUPTED]
)
def test_a_long_call_can_be_interrupted(case, threads):
    """KeyboardInterrupt long before the call would end; afterwards no thread is busy and calls still work."""
    code = INTERRUPT.replace("SETUP", INTERRUPTED[case])
    assert run_python(code, NDPOOL_NUM_THREADS=threads).split() == ["True"] * 4


@pytest.mark.torch
@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_exception_of_a_signal_handler_ends_a_prepared_call(threads):
    """A handler's own exception, too, ends a call of a tensor whose shape was pooled before."""
    code = """
import signal, torch, ndpool
x = torch.rand(60, 60, 60).expand(1600, 1, 60, 60, 60)

class Late(TimeoutError):
    pass

def handler(*_):
    raise Late

def call():
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)
    try:
        ndpool.lp_pool3d(x, 3.5, 30, 15)
    except Late:
        return "late"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

signal.signal(signal.SIGVTALRM, handler)
print(*(call() for _ in range(3)))
"""
    assert run_python(code, NDPOOL_NUM_THREADS=threads).split() == ["late"] * 3


@pytest.mark.parametrize("threads", [1, 2])
def test_long_calls_in_pieces_give_the_same_result(threads):
    """Calls from the main thread run in pieces, calls from other threads do not: bitwise identical."""
    ndpool.set_num_threads(threads)
    x = np.random.default_rng(0).random((3, 8, 1100, 700)).astype(np.float32)
    calls = {
        "max": lambda x: ndpool.max_pool2d(x, 5, 2, 2),
        "indices": lambda x: ndpool.max_pool2d(x, 4, 3, return_indices=True)[1],
        "avg": lambda x: ndpool.avg_pool2d(x, 9, 1, 4),
        "dilated": lambda x: ndpool.pool(x, (9, 9), stride=1, dilation=3, reduce="min"),
    }
    with ThreadPoolExecutor(1) as other:
        assert digest(calls, x) == other.submit(digest, calls, x).result()


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_signal_handler_may_pool(threads):
    """A handler that pools in the middle of a call; both results are right."""
    code = """
import signal, numpy as np, ndpool
x = np.broadcast_to(np.random.default_rng(0).random((60, 60, 60), np.float32), (1600, 60, 60, 60))
call = lambda x: ndpool.lp_pool3d(x, 3.5, 30, 15)
want, part, right = call(x), call(x[:1, :30]), []

def handler(*_):
    right.append((call(x[:1, :30]) == part).all())
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)

signal.signal(signal.SIGVTALRM, handler)
handler()
got = call(x)
signal.setitimer(signal.ITIMER_VIRTUAL, 0)
print(len(right) > 2, (got == want).all(), all(right))
"""
    assert run_python(code, NDPOOL_NUM_THREADS=threads).split() == ["True"] * 3


@pytest.mark.parametrize("threads", ["1", "2"])
def test_indices_that_change_during_unpool(threads):
    """Another thread writes out-of-range indices: an error or a result, never an out-of-bounds access."""
    code = """
import threading, numpy as np, ndpool
values, indices = np.ones((2, 1 << 16)), np.zeros((2, 1 << 16), int)
done, seen = threading.Event(), {"result": 0, "error": 0}

def change():
    while not done.is_set():
        for index in (1 << 40, 0, -(1 << 40), 0):
            indices[:, -200:] = index

changing = threading.Thread(target=change)
changing.start()
while min(seen.values()) < 100:
    try:
        ndpool.unpool(values, indices, (1 << 16,))
        seen["result"] += 1
    except ValueError:
        seen["error"] += 1
done.set()
changing.join()
print("done")
"""
    assert run_python(code, NDPOOL_NUM_THREADS=threads).split() == ["done"]


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_a_prepared_call_rejects_other_layouts(kind):
    """Another thread may change an array between the cache look-up and the run."""
    library = pytest.importorskip(kind)
    plan = core_plan(geometry.sliding("f", (4, 6), 2, 2, 0, 1, False, strict=False))
    run = core.Call(
        plan, REDUCTIONS["max"].op, (0, (4, 6), (6, 1)), (0, (2, 3), (3, 1)), 12, (0, 1), 0, False, False
    ).run
    make = partial(library.zeros, dtype=library.float64)
    x, y = make((4, 6)), make((2, 3))
    ndpool.max_pool2d(x[None], 2)  # sets up the exchange of tensors with PyTorch
    assert run(x, y, None)
    row = library.broadcast_to(make((1, 6)), (4, 6))
    others = [row, make((8, 6))[::2], make((6, 4)).T, make((4, 12))[:, ::2], make((24,)), make((1, 4, 6))]
    others += [make((3, 6)), make((4, 7))[:, :5], library.zeros((4, 6), dtype=library.float32)]
    for other in others:
        assert not run(other, y, None)
    for other in (make((3, 2)).T, make((6,)), make((2, 6))[:, ::2], make((1, 3))):
        assert not run(x, other, None)


def test_the_first_index_out_of_range_is_named():
    """In the order of planes and elements, for any number of threads."""
    values, indices = np.ones((64, 1 << 13)), np.zeros((64, 1 << 13), int)
    indices[40:, 5], indices[23, 7000], indices[23, 7001] = 1 << 13, -3, 1 << 14
    for threads in THREADS * 10:
        ndpool.set_num_threads(threads)
        with pytest.raises(ValueError, match="got index -3 with"):
            ndpool.unpool(values, indices, (1 << 13,))


def test_the_gil_is_released():
    """Another Python thread runs in the middle of a long call."""
    ndpool.set_num_threads(1)
    x, ticks, done, seen = np.ones((1, 2000, 2000)), [], threading.Event(), 0

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    clock = threading.Thread(target=tick)
    clock.start()
    begun = time.perf_counter()
    while seen < 5 and time.perf_counter() < begun + HANG:  # on a busy machine the clock waits for its turn
        start = time.perf_counter()
        ndpool.pool(x, (31, 31), reduce="sum", stride=1, dilation=3)
        end = time.perf_counter()
        margin = (end - start) / 5
        seen += sum(start + margin < t < end - margin for t in ticks)
    done.set()
    clock.join()
    assert seen >= 5


def test_modules_that_an_import_loads():
    """Importing ndpool loads neither the core nor a framework; pooling an array loads only the core."""
    code = """
import sys, ndpool
import numpy as np
names = ("ndpool._core", "torch", "jax", "dask", "cupy", "ml_dtypes", "multiprocessing")
print([name for name in names if name in sys.modules])
ndpool.max_pool2d(np.ones((1, 4, 4)), 2)
print([name for name in names if name in sys.modules])
"""
    assert run_python(code).splitlines() == ["[]", "['ndpool._core']"]


TIGHT = """
import resource, sys
import torch, ndpool

def threads(n):
    torch.set_num_threads(n)
    ndpool.set_num_threads(n)

x = torch.rand(8, 16, 192, 192)
threads(1 if sys.argv[2] == "alone" else 2)
ndpool.max_pool2d(x[:1, :1, :2, :2], 2)  # imports what it needs, on this thread alone
if sys.argv[2] == "alone":
    ndpool.max_pool2d(x[:1, :2], 2)  # work that borrowed threads would share
    threads(2)
if sys.argv[2] == "more":  # 22 of them end when two are left
    for n in (24, 2):
        threads(n)
        ndpool.max_pool2d(x, 2)
    threads(24)
want = x.numpy().reshape(8, 16, 96, 2, 96, 2).max((3, 5))
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (int(sys.argv[1]) << 20),) * 2)
try:
    y = ndpool.max_pool2d(x, 2)
    print("pooled", bool((y.numpy() == want).all()))
except MemoryError as error:
    print("raised", str(error).startswith("max_pool2d: "))
"""


@not_sanitized
@pytest.mark.torch
@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS of Linux")
@pytest.mark.parametrize("before", ["nothing", "alone", "more"])
@pytest.mark.parametrize("megabytes", [1, 6, 24])
def test_first_call_without_memory_for_threads(megabytes, before, tmp_path):
    """Memory for neither result nor threads, for the result only, and for both; also after other teams."""
    script = tmp_path / "tight.py"
    script.write_text(TIGHT)
    found = run_python(script, str(megabytes), before).split()
    assert found[1] == "True"
    either = megabytes == 6 or (megabytes == 1 and before == "more")  # its results were freed and fit again
    assert found[0] in ({"raised", "pooled"} if either else {"raised"} if megabytes == 1 else {"pooled"})


@pytest.mark.torch
def test_threads_that_flush_subnormals_do_not_change_results():
    """A thread that treats subnormals as zero gives the same bits, on any number of threads."""
    code = """
import torch, ndpool
x = torch.randn(64, 50_000)
halves, tiny, small = x.bfloat16(), x * 1e-40, torch.full((64, 498), 1e-40).bfloat16()

def results(threads):
    ndpool.set_num_threads(threads)
    a = halves.clone().requires_grad_()
    ndpool.max_pool1d(a, 300, 100).backward(small)
    y, i = ndpool.max_pool1d(tiny, 3, 2, return_indices=True)
    mean = ndpool.avg_pool1d(tiny, 3, 2)
    return [a.grad.view(torch.int16), mean.view(torch.int32), y.view(torch.int32), i]

wanted = results(2)  # starts the threads
torch.set_flush_denormal(True)
print(all(torch.equal(a, b) for n in (1, 2, 2, 2, 1) for a, b in zip(wanted, results(n))))
"""
    assert run_python(code).split() == ["True"]


@pytest.mark.torch
def test_a_thread_that_flushes_subnormals_beside_a_busy_one():
    """It finds the workers busy, works by itself, and still gives the same bits."""
    code = """
import threading, torch, ndpool
ndpool.set_num_threads(2)
large, small = torch.rand(64, 64, 112, 112), torch.rand(64, 64, 64) * 1e-39
wanted = ndpool.avg_pool2d(small, 2).view(torch.int32)
started, done, same = threading.Event(), threading.Event(), []

def flushing():
    try:
        torch.set_flush_denormal(True)
        started.wait()
        same.extend(torch.equal(ndpool.avg_pool2d(small, 2).view(torch.int32), wanted) for _ in range(300))
    finally:
        done.set()

thread = threading.Thread(target=flushing)
thread.start()
while not done.is_set():
    ndpool.max_pool2d(large, 3, 1, 1)
    started.set()
print(len(same), all(same))
"""
    assert run_python(code).split() == ["300", "True"]
