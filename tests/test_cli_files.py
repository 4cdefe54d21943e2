"""The commands ``ndpool pool`` and ``ndpool pyramid``: one public call each, exit codes, bad input.

A message is one line, the exit code is documented, and no half file has the final name.
"""

import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import ndpool
from helpers import HANG, assert_exact, hard_values, run_child
from ndpool._cli import main
from ndpool._cli_files import Bar, _amount, _duration


@pytest.fixture
def saved(tmp_path):
    x = hard_values((3, 20, 30), "float32", 1)
    np.save(tmp_path / "in.npy", x)
    return x


def command(*arguments):
    """Run the command in this process; arguments that are paths become text."""
    return main([str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ("--kernel 2", lambda x: ndpool.pool(x, (2, 2))),
        ("--kernel 2,3,2 --reduce avg", lambda x: ndpool.pool(x, (2, 3, 2), reduce="avg")),
        (
            "--kernel 3 --stride 2,1 --padding 1 --dilation 2 --axes 0,-1 --reduce min --ceil-mode",
            lambda x: ndpool.pool(
                x, 3, stride=(2, 1), padding=1, dilation=2, axes=(0, -1), reduce="min", ceil_mode=True
            ),
        ),
        ("--kernel 3 --padding same", lambda x: ndpool.pool(x, (3, 3), padding="same")),
        (
            "--kernel 3,4 --padding 0:1,2:0 --reduce avg --exclude-pad",
            lambda x: ndpool.pool(x, (3, 4), padding=[(0, 1), (2, 0)], reduce="avg", count_include_pad=False),
        ),
        (
            "--kernel 2 --reduce avg --divisor 3 --dtype float64",
            lambda x: ndpool.pool(x, (2, 2), reduce="avg", divisor_override=3, dtype="float64"),
        ),
        (
            "--kernel 2 --reduce lp --norm 3",
            lambda x: ndpool.pool(x, (2, 2), reduce="lp", norm_type=3.0),
        ),
        ("--adaptive 7", lambda x: ndpool.adaptive_pool(x, (7, 7))),
        ("--adaptive 1,-,4", lambda x: ndpool.adaptive_pool(x, (1, None, 4))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_are_those_of_the_function(arguments, call, saved, tmp_path, capsys):
    code = command("pool", tmp_path / "in.npy", tmp_path / "out.npy", *arguments.split(), "--memory", "20KiB")
    assert (code, *capsys.readouterr()) == (0, "", "")
    assert_exact(np.load(tmp_path / "out.npy"), call(saved))


def test_pyramid(tmp_path, capsys):
    zarr = pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    x = hard_values((6, 40, 50), "uint8", 1)
    np.save(tmp_path / "in.npy", x)
    options = "--levels 3 --reduce max --factor 1,2,2 --dims zyx --scale z=2,x=0.5 --units x=micrometer"
    options += " --ome-version 0.4 --chunks 4,16,16 --threads 1"
    threads = ndpool.get_num_threads()
    code = command("pyramid", tmp_path / "in.npy", tmp_path / "out.zarr", *options.split())
    ndpool.set_num_threads(threads)
    assert (code, *capsys.readouterr()) == (0, "", "")
    group = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")
    want = ndpool.pyramid(x, 3, "max", (1, 2, 2))
    for level, expected in enumerate(want):
        assert_exact(group[str(level)][...], expected)
        assert group[str(level)].chunks == tuple(
            min(c, n) for c, n in zip((4, 16, 16), expected.shape, strict=True)
        )
    scales = group.attrs["multiscales"][0]
    assert scales["version"] == "0.4"
    assert scales["datasets"][2]["coordinateTransformations"] == [
        {"type": "scale", "scale": [2.0, 4.0, 2.0]},
        {"type": "translation", "translation": [0.0, 1.5, 0.75]},
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pool", "a.npy", "b.npy"], "one of the arguments --kernel --adaptive is required"),
        (["pool", "a.npy", "b.npy", "--kernel", "2", "--adaptive", "3"], "not allowed with argument"),
        (["pool", "a.npy", "b.npy", "--kernel", "two"], "must be comma-separated integers; got 'two'"),
        (["pool", "a.npy", "b.npy", "--kernel", "2", "--padding", "1:2,3"], "must be before:after pairs"),
        (["pool", "a.npy", "--kernel", "2"], "required: OUT"),
        (["pyramid", "a.npy", "b.zarr", "--scale", "x"], "must be axis=value pairs; got 'x'"),
        (["pyramid", "a.npy", "b.zarr", "--quiet", "--progress"], "not allowed with argument"),
    ],
    ids=str,
)
def test_bad_usage(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert message in err


FAILURES = [
    ("pool in.npy out.npy --kernel 2 --padding 5", "pool: every window must contain an element of the input"),
    ("pool in.npy out.npy --kernel 2 --reduce mix", "pool: reduce must be one of max, min"),
    (
        "pool in.npy out.npy --kernel 2 --dtype plenty",
        "pool: dtype must be a NumPy dtype; got dtype='plenty'",
    ),
    ("pool in.npy out.npy --kernel 2 --axes 7", "pool: axes"),
    ("pool in.npy out.npy --kernel 2 --axes lat", "pool: axes must be axes of the input"),
    ("pool in.npy out.npy --kernel 2 --memory lots", "pool: memory must be a size such as '512MiB'"),
    ("pool in.npy out.npy --kernel 2 --memory 8", "pool: memory must hold the windows of 1 x 1 x 1 outputs"),
    ("pool in.npy out.npy --kernel 2 --threads 0", "set_num_threads: "),
    ("pool in.npy out.npy --kernel 2 --resume", "pool: resume is for Zarr folders; got 'out.npy'"),
    ("pool in.npy out.npy --adaptive 2 --stride 2", "pool: adaptive windows have a size only"),
    ("pool in.npy out.txt --kernel 2", "pool: the output's extension must be one of .npy,"),
    ("pool none.npy out.npy --kernel 2", "No such file or directory: none.npy"),
    ("pool in.npy none/out.npy --kernel 2", "pool: the output's folder must exist"),
    ("pool in.npy in.npy --kernel 2", "pool: the output must not be the input"),
    ("pool in.npy in.npy --kernel 2 --overwrite", "pool: the output must not be the input"),
    ("pool in.npy there.npy --kernel 2", "pool: the output exists; got "),
    ("pool short.npy out.npy --kernel 2", "pool: short.npy is truncated; it needs 7328 bytes and has 4000"),
    ("pool noise.npy out.npy --kernel 2", "pool: cannot read noise.npy: "),
    ("pool noise.npz out.npy --kernel 2", "pool: cannot read noise.npz: BadZipFile: "),
    ("pool complex.npy out.npy --kernel 2", "supported dtype; got dtype=complex128"),
    ("pyramid in.npy out.npy", "pyramid: store must end in .zarr or .zarr.zip; got 'out.npy'"),
    ("pyramid in.npy out.zarr --reduce sum", "pyramid: reduce must keep the range of the values"),
    ("pyramid in.npy out.zarr --reduce mode", "pyramid: reduce must be one of max, min"),
    ("pyramid in.npy out.zarr --levels 0", "pyramid: levels must be from 1"),
    ("pyramid in.npy out.zarr --factor 1", "pyramid: factor must be at least 2 along one of the axes"),
    ("pyramid in.npy out.zarr --ome-version 0.9", "pyramid: ome_version must be 0.4 or 0.5"),
    ("pyramid in.npy out.zarr --dims yxc9", "pyramid: dims must name the 3 axes"),
    ("pyramid complex.npy out.zarr", "supported dtype; got dtype=complex128"),
]


@pytest.mark.parametrize(("line", "message"), FAILURES, ids=[line for line, _ in FAILURES])
def test_failures_are_one_line(line, message, saved, tmp_path, monkeypatch, capsys):
    """Exit code 1, one line on stderr, files as they were."""
    if line.startswith("pyramid"):
        pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    monkeypatch.chdir(tmp_path)
    Path("short.npy").write_bytes(Path("in.npy").read_bytes()[:4000])
    Path("noise.npy").write_bytes(bytes(range(256)))
    Path("noise.npz").write_bytes(bytes(range(256)))
    Path("there.npy").write_text("precious")
    np.save("complex.npy", np.zeros((4, 4), complex))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert command(*line.split()) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ndpool: ")
    assert message in err
    assert err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def huge(path, gib):
    """A file of zeros that occupies no space."""
    shape = (gib * 256, 1024, 1024)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + 4 * shape[0] * 1024 * 1024)


@contextmanager
def started(*arguments):
    """The command in a process of its own, after its first tile; it ends with the `with` block."""
    with subprocess.Popen(
        [sys.executable, "-m", "ndpool", *map(str, arguments), "--progress"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        try:
            assert "MB/s" in process.stderr.readline()
            yield process
        finally:
            process.kill()


SIGNALS = pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "ndpool: interrupted\n"), (signal.SIGTERM, 143, "ndpool: terminated\n")],
)


@SIGNALS
@pytest.mark.parametrize("name", ["out.npy", "out.npz", "out.zarr"])
def test_signals(number, code, message, name, tmp_path):
    """Ctrl-C in the middle: no output, no temporary file; a Zarr folder can be continued."""
    if name.endswith("zarr"):
        pytest.importorskip("zarr", reason="Zarr files need zarr")
    huge(tmp_path / "in.npy", 64)
    files = tmp_path / "in.npy", tmp_path / name
    options = "--kernel 64 --memory 64MiB --chunks 1,16,16"  # results of 16 MiB
    with started("pool", *files, *options.split()) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=HANG)
        assert process.returncode == code
    assert err.endswith(message)
    assert "Traceback" not in err
    left = ["in.npy"] + (["out.zarr.partial"] if name == "out.zarr" else [])
    assert sorted(os.listdir(tmp_path)) == left


def test_a_killed_run_is_continued(tmp_path):
    """After SIGKILL, which nothing can handle, --resume continues; the result is complete and exact."""
    zarr = pytest.importorskip("zarr", reason="Zarr files need zarr")
    x = np.random.default_rng(0).random((96, 512, 512), dtype="float32")
    np.save(tmp_path / "in.npy", x)
    arguments = ["pool", tmp_path / "in.npy", tmp_path / "out.zarr", "--kernel", "2", "--reduce", "avg"]
    arguments += ["--memory", "4MiB", "--chunks", "1,128,128"]
    script = """if True:
        import os, signal, sys, zarr
        from ndpool._cli import main
        original, seen = zarr.storage.LocalStore.set, []
        async def last(self, key, *args, **kwargs):
            seen.append(key)
            if len(seen) == 40:
                os.kill(os.getpid(), signal.SIGKILL)
            await original(self, key, *args, **kwargs)
        zarr.storage.LocalStore.set = last
        main(sys.argv[1:])
    """
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=HANG,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == ["in.npy", "out.zarr.partial"]
    assert command(*arguments) == 1
    assert command(*arguments, "--resume") == 0
    assert sorted(os.listdir(tmp_path)) == ["in.npy", "out.zarr"]
    got = zarr.open_array(str(tmp_path / "out.zarr"), mode="r")[...]
    assert_exact(got, ndpool.pool(x, (2, 2), reduce="avg"))


def test_the_disk_is_too_small(tmp_path, capsys):
    """Known before the first tile: an output of twice the space that there is."""
    gib = 8 * shutil.disk_usage(tmp_path).free // 2**30 + 8
    try:
        huge(tmp_path / "in.npy", gib)
    except OSError:
        pytest.skip(f"the file system has no sparse files of {gib} GiB")
    for name in ("out.npy", "out.npz"):
        assert command("pool", tmp_path / "in.npy", tmp_path / name, "--kernel", "2") == 1
        assert "pool: the disk must have room for the output; it needs " in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["in.npy"]


@pytest.mark.parametrize("name", ["out.npy", "out.tif", "out.zarr"])
def test_the_disk_is_full(name, tmp_path):
    """A write that the system refuses in the middle, here by a limit on the size of files."""
    if name != "out.npy":
        pytest.importorskip({"out.tif": "tifffile", "out.zarr": "zarr"}[name], reason="the format needs it")
    np.save(tmp_path / "in.npy", np.random.default_rng(0).random((64, 256, 256)))

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))

    done = subprocess.run(
        [sys.executable, "-m", "ndpool", "pool", str(tmp_path / "in.npy"), str(tmp_path / name)]
        + ["--kernel", "2", "--chunks", "64,128,128"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        preexec_fn=limited,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("ndpool: File too large: ")
    assert done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["in.npy"]


@SIGNALS
@pytest.mark.parametrize("name", ["out.zarr", "out.zarr.zip"])
def test_signals_while_zarr_works(name, number, code, message, tmp_path):
    """Zarr has a thread of its own; what it does at that moment neither complains nor stays."""
    pytest.importorskip("zarr", reason="Zarr files need zarr")
    np.save(tmp_path / "in.npy", np.ones((512, 512), "uint8"))
    script = """if True:
        import asyncio, os, sys, zarr
        from ndpool._cli import main
        store = zarr.storage.ZipStore if sys.argv[2].endswith("zip") else zarr.storage.LocalStore
        original, seen = store.set, []
        async def slow(self, key, *args, **kwargs):
            if "zarr.json" not in key:
                seen.append(key)
                if len(seen) == 3:
                    os.kill(os.getpid(), int(sys.argv[3]))
                await asyncio.sleep(0.05)
            await original(self, key, *args, **kwargs)
        store.set = slow
        sys.exit(main(["pool", *sys.argv[1:3], "--kernel", "2", "--chunks", "32"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "in.npy"), str(tmp_path / name), str(int(number))],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.stderr == message
    assert done.returncode == code
    assert os.listdir(tmp_path) == ["in.npy"]


def test_libraries_make_no_remarks(tmp_path):
    """Warnings and log records do not go to stderr beside the line that says what is wrong."""
    tifffile = pytest.importorskip("tifffile", reason="TIFF files need tifffile")
    images = pytest.importorskip("PIL.Image", reason="PNG files need Pillow")
    for name, damage in (("no.tif", 4), ("loop.tif", 8)):
        tifffile.imwrite(tmp_path / name, np.zeros((8, 8), "uint8"))
        data = bytearray((tmp_path / name).read_bytes())
        data[4:8] = (2**32 - 1 if damage == 4 else 8).to_bytes(4, "little")
        data[8:14] = (0).to_bytes(2, "little") + (8).to_bytes(4, "little")
        (tmp_path / name).write_bytes(data)
    images.new("1", (10_000, 10_000)).save(tmp_path / "large.png")
    for name, message in (
        ("no.tif", "no.tif is damaged; it has no page with an image"),
        ("loop.tif", "loop.tif is damaged; it has no page with an image"),
        ("large.png", "memory must hold all of"),
    ):
        arguments = ["pool", name, "out.npy", "--kernel", "2", "--memory", "1MiB"]
        done = subprocess.run(
            [sys.executable, "-W", "default", "-m", "ndpool", *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("ndpool: pool: ")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_no_permission():
    """An input that may not be read, and a folder that may not be written to."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        np.save(folder / "in.npy", np.zeros((4, 4)))
        np.save(folder / "secret.npy", np.zeros((4, 4)))
        (folder / "secret.npy").chmod(0)
        (folder / "open").mkdir()
        (folder / "open").chmod(0o777)
        (folder / "closed").mkdir()
        (folder / "closed").chmod(0o555)
        for source, target, what in (
            ("secret.npy", "open/out.npy", "secret.npy"),
            ("in.npy", "closed/out.npy", "out.npy"),
            ("in.npy", "closed/out.zarr", "out.zarr"),
        ):
            code = f"""if True:
                import os, sys, ndpool.files
                from ndpool._cli import _parser, main
                try:
                    import zarr
                except ImportError:
                    pass
                _parser()  # what is imported late must be readable
                if os.geteuid() == 0:
                    os.seteuid(65534)
                os.chdir({name!r})
                sys.exit(main(["pool", {source!r}, {target!r}, "--kernel", "2"]))
            """
            status, _, err = run_child(code)
            assert status == 1
            assert err.startswith("ndpool: Permission denied: ")
            assert what in err
            assert err.count("\n") == 1
        assert os.listdir(folder / "open") == os.listdir(folder / "closed") == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_bar():
    now = iter([0.0, 1.0, 1.05, 2.0, 4.0])
    stream = Terminal()
    bar = Bar(stream, lambda: next(now))
    bar(10**9, 4 * 10**9)
    bar(2 * 10**9, 4 * 10**9)  # too soon after the last
    bar(2 * 10**9, 4 * 10**9)
    bar(4 * 10**9, 4 * 10**9)
    bar.end()
    lines = stream.getvalue().split("\r\x1b[K")[1:]
    assert lines == [
        "[######                  ]  25%  1 GB of 4 GB  1000 MB/s  3 s left",
        "[############            ]  50%  2 GB of 4 GB  1000 MB/s  2 s left",
        "[########################] 100%  4 GB of 4 GB  1000 MB/s  0 s left\n",
    ]


def test_progress_goes_to_stderr_only_where_asked(saved, tmp_path, capsys):
    arguments = ["pool", tmp_path / "in.npy", tmp_path / "out.npy", "--kernel", "2", "--overwrite"]
    assert command(*arguments) == 0
    assert capsys.readouterr() == ("", "")
    assert command(*arguments, "--progress") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("s left\n")
    assert "100%" in err


def test_amounts_and_durations():
    assert [_amount(n) for n in (0, 999, 1500, 2 * 10**7, 10**13)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "20 MB",
        "10 TB",
    ]
    assert [_duration(s) for s in (0.4, 59, 60, 3725)] == ["0 s", "59 s", "1 min 00 s", "1 h 02 min"]


@pytest.mark.parametrize("name", ["pool", "pyramid"])
def test_help_lists_formats_and_exit_codes(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    out, _ = capsys.readouterr()
    assert end.value.code == 0
    assert all(
        word in out
        for word in (".npy", ".zarr", "BigTIFF", "exit codes: 0 success", "130", "143", "--resume")
    )
