"""Full disks, folders that can only be read, and what a crash has left."""

import errno
import json
import os
import stat
import subprocess
import sys
import tomllib
from itertools import count
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fedprox import Checkpoints, InputError, scaffold, use_compilation_cache
from fedprox.datasets import sources
from fedprox.report.archive import read_archive
from fedprox.report.directory import RunDirectory
from fedprox.results.run import Run
from tests.files.test_lock import contents
from tests.loop.test_checkpoint import same, train
from tests.report.test_report import EXPERIMENT, make_run, write_run
from tests.test_cli import SMALL, status

pytestmark = pytest.mark.slow

TINY = SMALL.replace("seed = [0, 1]", "").replace(
    "evaluation.every = 2", "evaluation.gradients = false"
)


def finished_runs() -> list[Run]:
    runs = [make_run(label) for label in ("fedavg", "fedprox mu=1")]
    for run in runs:
        run.params = {"weights": jnp.ones(3)}
    return runs


def write(out: Path) -> None:
    """All that a run writes."""
    runs = finished_runs()
    with RunDirectory(out, EXPERIMENT) as opened:
        for run in runs:
            for record in run.history:
                opened.record(record)
        opened.finish(runs, None)


def fail_at(patch: pytest.MonkeyPatch, number: int, at: int) -> None:
    """Let the disk fail when a file is flushed to it the so manieth time."""
    calls = count(1)
    real = os.fsync

    def fsync(file: int) -> None:
        if stat.S_ISREG(os.fstat(file).st_mode) and next(calls) == at:
            raise OSError(number, os.strerror(number))
        real(file)

    patch.setattr(os, "fsync", fsync)


FILES = [
    "experiment.toml",
    "metrics.jsonl",
    *["model"] * 2,
    "figure.png",
    "figure.svg",
    "summary.json",
]
"""In the order in which they are flushed to the disk."""


@pytest.mark.parametrize("at", range(1, len(FILES) + 1))
def test_whatever_cannot_be_written_the_files_before_it_stay_whole(at: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, errno.ENOSPC, at)
        with pytest.raises(OSError, match="No space left on device") as error:
            write(out)
    assert Path(str(error.value.filename)).name.startswith(FILES[at - 1])
    if at == 1:
        assert not out.exists()
        return
    left = contents(out)
    assert not any(name.startswith(".") for name in left)
    assert "summary.json" not in left  # the run is not complete
    tomllib.loads(left["experiment.toml"].decode())
    records = [json.loads(line) for line in left["metrics.jsonl"].splitlines()]
    assert len(records) == sum(len(run.history) for run in finished_runs())
    write(out)  # with room again
    assert (out / "summary.json").is_file()


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path: Path, capsys: Any) -> None:
    run = write_run(tmp_path / "run", [make_run()])
    page = tmp_path / "page.html"
    page.write_text("an earlier page")
    before = contents(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, errno.ENOSPC, 1)
        assert status("report", run, "--out", page) == 2
    assert capsys.readouterr().err == f"fedprox: {page}: No space left on device\n"
    assert contents(tmp_path) == before


def fail_in(patch: pytest.MonkeyPatch, name: str) -> None:
    """Let the disk be full when a file of that name is flushed to it."""
    real = os.fsync

    def fsync(file: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{file}")).name == f".{name}.partial":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    patch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("name", ["0.state", "4.state", "8.state", "4.clients-0", "8.clients-0"])
def test_a_disk_that_is_full_at_a_checkpoint_leaves_the_one_before(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    with pytest.MonkeyPatch.context() as patch:
        fail_in(patch, f"0-{name}")
        with pytest.raises(OSError, match="No space left on device") as error:
            train([scaffold()], Checkpoints(folder, 4), seed=0)
    assert error.value.filename == str(folder / f"0-{name}")
    if name == "0.state":
        assert not folder.exists()
        return
    assert not list(folder.glob(".*"))
    before = int(Path(name).stem) - 4
    assert f"0-{before}" in {path.stem for path in folder.glob("*.state")}
    again = Checkpoints(folder, resume=True)
    same(train([scaffold()], seed=0), train([scaffold()], again, seed=0))
    assert again.made == {0: 3, 4: 2}[before]


def test_a_disk_that_is_full_at_a_checkpoint_is_one_line(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        fail_in(patch, "0-2.state")
        command = ("run", tmp_path / "tiny.toml", "--checkpoint-every", "1", "--out", out)
        assert status(*command) == 2
    error = capsys.readouterr().err
    assert error == f"fedprox: {out}/checkpoint/0-2.state: No space left on device\n"
    assert set(contents(out / "checkpoint")) == {"0-0.state", "0-1.state"}
    assert status("run", "--resume", out) == 0
    assert capsys.readouterr().err == ""
    assert read_archive(out).finished


def test_what_has_its_name_outlives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is flushed before it gets its name, and then the folder that has the name."""
    events: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def flushed(file: int) -> None:
        events.append(("flush", os.fstat(file).st_ino))
        fsync(file)

    def replaced(source: Any, target: Any) -> None:
        events.append(("named", os.stat(source).st_ino))
        replace(source, target)
        folders.append(os.stat(Path(target).parent).st_ino)

    folders: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", replaced)
    write(tmp_path / "out")
    train([scaffold()], Checkpoints(tmp_path / "checkpoint", 4), seed=0)
    named = [i for i, (what, _) in enumerate(events) if what == "named"]
    assert len(named) == len(FILES) - 1 + 7
    for i, folder in zip(named, folders, strict=True):
        assert events[i - 1] == ("flush", events[i][1])
        assert events[i + 1] == ("flush", folder)
    assert ("flush", (tmp_path / "out" / "metrics.jsonl").stat().st_ino) in events
    assert events.count(("flush", tmp_path.stat().st_ino)) == 2  # both folders were made


LIMITED = """
import resource, sys
from fedprox.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, 3_000))
main()
"""


def test_files_that_cannot_grow_are_one_line(tmp_path: Path) -> None:
    """As under a quota. The system also sends SIGXFSZ, which Python ignores."""
    (tmp_path / "tiny.toml").write_text(TINY)
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "run", str(tmp_path / "tiny.toml"), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"FEDPROX_CACHE": str(tmp_path / "cache")},
    )
    # a busy machine may show progress before
    *_, message = done.stderr.splitlines()
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert message.startswith(f"fedprox: {out}/metrics.jsonl: ")
    left = contents(out)
    assert set(left) == {"experiment.toml", "metrics.jsonl", "metrics.prom", "status.json"}
    json.loads(left["status.json"])
    assert left["metrics.jsonl"].endswith(b"}\n")
    for line in left["metrics.jsonl"].splitlines():
        json.loads(line)


def test_a_run_killed_while_it_wrote_a_line_is_shown_without_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_run(losses=(3.0, 2.0, 1.0))], finished=False)
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20])
    (found,) = read_archive(run).runs
    assert [record.round for record in found.history] == [0, 1]
    metrics.write_bytes(metrics.read_bytes()[:40])
    with pytest.raises(InputError, match="no evaluated rounds yet"):
        read_archive(run)


# The cache


def test_a_cache_that_cannot_be_written_costs_a_line_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "posts.tsv").write_text("ann\tthe sun the sea\nbob\tthe moon and the sun\n")
    (tmp_path / "file").touch()
    command = ["data", "describe", "posts", "--set", f"path={tmp_path}/posts.tsv"]
    command += ["--set", "test_share=0.5", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "fedprox.cli", *command],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"FEDPROX_CACHE": str(tmp_path / "file")},
    )
    folder = tmp_path / "file" / "prepared"
    assert done.stderr == (
        f"posts: not kept for the next time, since {folder} cannot be written: Not a directory\n"
    )
    assert (tmp_path / "out" / "data.png").is_file()


CACHED_PROGRAM = """
import sys, warnings
import jax, jax.numpy as jnp
from fedprox import cli
from fedprox.devices.compilation_cache import use_compilation_cache
warnings.showwarning = cli._warn
use_compilation_cache(sys.argv[1])
print(jax.jit(lambda x: 2 * x + 1)(jnp.ones(3)).tolist())
"""


def compile_with(folder: Path) -> str:
    """What a program says that keeps its compiled programs in a folder; its result is right."""
    done = subprocess.run(
        [sys.executable, "-c", CACHED_PROGRAM, str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[3.0, 3.0, 3.0]\n"
    return done.stderr


def test_compiled_programs_that_cannot_be_read_are_compiled_anew_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "xla"
    assert compile_with(folder) == ""
    sizes = {path: path.stat().st_size for path in folder.glob("*-cache")}
    assert sizes
    for path, size in sizes.items():
        os.truncate(path, size // 2)
    assert compile_with(folder) == ""
    for path, size in sizes.items():
        assert path.stat().st_size > size // 2


def test_compiled_programs_that_cannot_be_kept_cost_a_line_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (line,) = compile_with(tmp_path / "file" / "xla").splitlines()
    assert line.startswith("compiled programs: not kept for the next time, since ")


def test_compiled_programs_are_readable_and_writable_by_their_owner_alone(tmp_path: Path) -> None:
    """They are code, which JAX runs without a check."""
    folder = tmp_path / "xla"
    before = os.umask(0)
    try:
        assert compile_with(folder) == ""
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_compiled_programs_that_others_may_have_written_are_not_used(
    mode: int, tmp_path: Path
) -> None:
    folder = tmp_path / "xla"
    folder.mkdir()
    folder.chmod(mode)
    (line,) = compile_with(folder).splitlines()
    assert line.startswith(f"compiled programs: {folder} is not used, since others can write code")
    assert not list(folder.iterdir())


def test_compiled_programs_of_another_user_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used = jax.config.values["jax_compilation_cache_dir"]
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    use_compilation_cache(tmp_path)
    (record,) = caplog.records
    assert f"{tmp_path} is not used, since it belongs to another user" in record.getMessage()
    assert jax.config.values["jax_compilation_cache_dir"] == used


def test_a_cache_that_can_only_be_read_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a killed download left long ago cannot be removed there."""
    monkeypatch.setenv("FEDPROX_CACHE", str(tmp_path))
    (tmp_path / "set").mkdir()
    content, left = b"kept", tmp_path / "set" / "tmpold"
    (tmp_path / "set" / "a.txt").write_bytes(content)
    left.touch()
    os.utime(left, (0, 0))

    def refuse(path: Any, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "unlink", refuse)
    source = sources.Source("set", "a.txt", 0, "", ("http://127.0.0.1:9/",))
    assert sources.fetch(source).read_bytes() == content
    assert left.exists()
