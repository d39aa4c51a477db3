"""The benchmark for a GPU works on a CPU: its checks, its parts, its time limits."""

import doctest
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import benchmarks
from benchmarks import gpu
from benchmarks.gpu_parts import (
    cifar,
    environment,
    feddyn,
    lanes,
    models,
    papers,
    part,
    pfl,
    summary,
)
from benchmarks.gpu_parts.checks import (
    CHEAP,
    CHECKS,
    FOR_CPUS,
    REHEARSED,
    TESTS,
    difference,
    finish_tests,
)
from benchmarks.gpu_parts.models import ORDER, in_bfloat16
from benchmarks.gpu_parts.part import FIGURES, Part, append, part_from_json
from benchmarks.gpu_parts.summary import markdown, write_summary
from benchmarks.models import ROWS, cells, measure, row_named
from experiments import ITEMS
from fedprox import Evaluation, Federation, Solver
from fedprox.engine.planning.jobs import pack


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / FIGURES).read_text().splitlines()]


def endings(out: Path) -> dict[str, str]:
    return {line["part"]: line["ended"] for line in lines(out) if "ended" in line}


def test_a_part_is_the_same_in_another_process(tmp_path: Path) -> None:
    part = Part("lanes", tmp_path, 5.0, True, tmp_path / "data", ("fedprox/table-1",))
    again = part_from_json(part.to_json())
    assert (again.name, again.out, again.items) == (part.name, part.out, part.items)
    assert (again.seconds, again.tiny, again.data_dir) == (part.seconds, True, part.data_dir)
    assert 4 < again.left <= 5


@pytest.mark.slow
def test_a_part_without_time_or_that_fails_is_reported(tmp_path: Path) -> None:
    assert gpu.run_part(Part("checks", tmp_path, 0.2))  # its imports take longer
    assert not gpu.run_part(Part("checks", tmp_path / ".", 0.2, tiny=True))
    assert not gpu.run_part(Part("no_such_part", tmp_path, 60.0))
    assert gpu.run_part(Part("papers", tmp_path, 0.0))
    assert endings(tmp_path) == {
        "checks": "out of time",
        "no_such_part": "failed (exit status 1)",
        "papers": "not run: no time was left",
    }
    assert "failed (exit status 1) after" in write_summary(tmp_path)


@pytest.mark.parametrize("wrong", ["", "checks"])
def test_parts_run_in_their_order_and_all_must_end_well(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def run_part(part: Part) -> bool:
        begun.append(part.name)
        return part.name != wrong

    monkeypatch.setattr(gpu, "run_part", run_part)
    options = ["--tiny", "--out", str(tmp_path), "--parts", "models", "checks", "lanes"]
    assert gpu.main(options) == bool(wrong)
    assert begun == ["checks", "lanes", "models"]


def test_the_summary_shows_each_parts_last_run() -> None:
    old = {"part": "lanes", "table": "Rounds", "lanes": 1, "ms": 12345.6}
    new = {"part": "lanes", "table": "Rounds", "lanes": 2, "of": None}
    began = {"part": "lanes", "began": "now"}
    page = markdown([began, old, began, new, new | {"share": 0.25}])
    assert "12346" not in page
    assert "not finished" in page
    assert "| lanes | of | share |\n| --- | --- | --- |\n| 2 |  |  |\n| 2 |  | 0.25 |" in page


@pytest.mark.slow
def test_a_hung_part_and_its_own_processes_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "benchmarks" / "gpu_parts"
    folder.mkdir(parents=True)
    (folder / "__main__.py").write_text(
        "import pathlib, signal, subprocess\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "pathlib.Path('child').write_text(str(child.pid))\n"
        "child.wait()\n"
        "signal.pause()\n"
    )
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "GRACE", 0.5)
    assert gpu.run_part(Part("lanes", tmp_path, 3.0))
    assert endings(tmp_path) == {"lanes": "out of time"}
    status = Path("/proc") / (tmp_path / "child").read_text() / "stat"
    deadline = time.monotonic() + 30
    while status.exists() and ") Z " not in status.read_text():  # a zombie nobody waits for
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_what_a_part_has_started_may_write_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "benchmarks" / "gpu_parts"
    folder.mkdir(parents=True)
    saves = (
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(1)\n"
        "    pathlib.Path('saved').touch()\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "signal.pause()\n"
    )
    (folder / "__main__.py").write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {saves!r}])\n"
    )
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert gpu.run_part(Part("papers", tmp_path, 2.0))
    assert (tmp_path / "saved").exists()


def test_a_part_that_found_something_wrong_has_not_ended_well(tmp_path: Path) -> None:
    append(tmp_path, {"part": "checks", "table": "Checks", "check": "old", "right": False})
    part = Part("checks", tmp_path, 0.0)
    assert gpu.run_part(part)  # what an earlier run found does not count
    part.write("Checks", check="lanes", right=False)
    for how in ("out of time", "done"):
        assert not gpu._ended(part, how)


@pytest.mark.slow
def test_tests_that_failed_are_named(tmp_path: Path) -> None:
    log = tmp_path / "tests.log"
    log.write_text("tests/a.py::one PASSED\ntests/a.py::two ERROR\ntests/a.py::three FAILED\n")
    unfinished = subprocess.Popen(["sleep", "60"])
    finish_tests(Part("checks", tmp_path, 0.0), unfinished, log)
    unfinished.wait()
    *failed, summary = lines(tmp_path)
    assert [line["test"].split()[0] for line in failed] == ["tests/a.py::two", "tests/a.py::three"]
    assert (summary["right"], summary["passed"]) == (False, 1)


def test_a_cpu_is_there_for_the_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in (("cuda", "cuda,cpu"), ("cpu", "cpu"), ("cuda,cpu", "cuda,cpu")):
        monkeypatch.setenv("JAX_PLATFORMS", given)
        assert environment.variables(tmp_path, tiny=False)["JAX_PLATFORMS"] == expected
    monkeypatch.delenv("JAX_PLATFORMS")
    assert "JAX_PLATFORMS" not in environment.variables(tmp_path, tiny=False)


def test_a_folder_with_data_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["--tiny", "--data-dir", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert f"{tmp_path / 'none'} is not a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_an_unknown_item_is_refused_on_one_line(tmp_path: Path) -> None:
    assert not gpu.run_part(Part("papers", tmp_path, 120.0, items=("fedavg/table-33",)))
    assert lines(tmp_path)[-2]["remark"].startswith("experiments: no item 'fedavg/table-33'")
    assert endings(tmp_path) == {"papers": "failed (exit status 2)"}


def test_numbers_that_json_lacks_are_written(tmp_path: Path) -> None:
    part = Part("lanes", tmp_path, 5.0)
    part.write("Constants", step=math.inf, reading=math.nan, lanes=np.int64(3), tick=np.float32(2))
    (line,) = lines(tmp_path)
    assert (line["step"], line["reading"], line["lanes"], line["tick"]) == ("inf", None, 3, 2)


def test_missing_packages_are_named_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert environment.missing() == []
    text = '[project]\ndependencies = ["jax>=0.10", "no-such-thing>=2,<3"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert gpu.main(["--tiny", "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"benchmarks.gpu: {sys.executable} lacks 'no-such-thing>=2,<3'; ")


@pytest.mark.slow
def test_a_package_that_others_need_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "IMPORTS", "no_such_thing")
    problem = environment.problem(None, tiny=True)
    assert problem is not None
    line = f"{sys.executable} cannot import the library: ModuleNotFoundError: No module named"
    assert problem.startswith(f"{line} 'no_such_thing'; ")


def test_without_a_gpu_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "_start", lambda: environment.Started("cpu", ""))
    assert gpu.main(["--out", str(tmp_path)]) == 2
    needed = (
        f"sees no GPU; install its CUDA wheels with {sys.executable} -m pip install "
        f"'jax[cuda13]=={jax.__version__}'"
    )
    assert needed in capsys.readouterr().err


def test_every_model_is_one_that_exists() -> None:
    assert set(ORDER) == {row.name for row in ROWS}
    assert set(lanes.NAMES) <= set(ORDER)
    assert set(CHEAP) <= CHECKS.keys()


def test_items_without_data_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPROX_CACHE", str(tmp_path / "cache"))
    for name in ("mnist", "emnist"):
        (tmp_path / name).mkdir()
    (tmp_path / "emnist" / "emnist_lowercase.npz").touch()
    headline = ITEMS["fedprox/headline"]  # synthetic data, MNIST, and FEMNIST with its quirk
    assert papers.absent(headline, tmp_path) == ["mnist"]
    assert papers.absent(headline, None) == ["mnist", "femnist", "overlapping_femnist"]
    papers.main(Part("papers", tmp_path, 60.0, items=("feddyn/table-2-cifar-10-iid",)))
    assert lines(tmp_path)[-1]["result"] == "left out, without cifar-10"
    papers.main(Part("papers", tmp_path, 60.0, items=("fedavg/table-3",)))
    assert "fedavg-cifar.toml" in lines(tmp_path)[-1]["result"]


@pytest.mark.parametrize("overhead", [0.0, 25.0])
def test_the_constants_of_lanes_are_found(overhead: float) -> None:
    rng = np.random.default_rng(1)
    jobs = rng.integers(1, 20, 64)
    ticks = [pack(jobs, w).ticks for w in lanes.GRID]
    costs = [n * 2e-6 * (overhead + w) for n, w in zip(ticks, lanes.GRID, strict=True)]
    noisy = [cost * (1 + 0.01 * rng.normal()) for cost in costs]
    found = lanes.fit(lanes.GRID, ticks, noisy)
    assert found.overhead == pytest.approx(overhead, rel=0.1, abs=0.1)
    assert math.isnan(lanes.fit([1, 2], [2, 1], [-1.0, 0.0]).overhead)  # lost in noise


@pytest.mark.parametrize("module", [lanes, part, pfl, summary])
def test_the_examples_of_its_modules(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_made_up_images_are_those_of_cifar_10(tmp_path: Path) -> None:
    part = Part("pfl", tmp_path, 60.0, tiny=True)
    data = cifar.images(part, 20, "feddyn")
    assert data.name == "made-up images"
    assert [len(rows.y) for rows in (data.federation.train, data.federation.test)] == [200, 40]
    assert data.federation.augment is not None
    assert data.federation.train.client(0)[0].shape == (10, 32, 32, 3)
    assert set(data.federation.train.y) == set(range(10))


def test_pfls_model_and_the_papers_setting() -> None:
    model = pfl.simple_cnn()
    assert sum(a.size for a in jax.tree.leaves(model.shapes)) == 1_626_442
    assert Solver(**feddyn.RUN["solver"]).epochs == 5
    assert feddyn.RUN["cohort"] == {"clients_per_round": 10, "sampling": "bernoulli"}
    assert Evaluation(**feddyn.RUN["evaluation"]).model == "clients"


def test_a_model_in_bfloat16_computes_nearly_the_same() -> None:
    row = row_named("2NN")
    federation = row.federation(1)
    model = row.model(federation)
    low = in_bfloat16(model)
    params = jax.jit(model.init)(jax.random.key(0))
    x = np.asarray(federation.train.x[:5])
    exact, near = jax.jit(lambda *given: [each.apply(*given) for each in (model, low)])(params, x)
    assert near.dtype == np.float32
    assert 1e-5 < difference(near, exact) < 0.02


def test_a_check_fails_if_lanes_give_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    shifts = iter(range(100))

    def disturbed(*args: Any, **options: Any) -> Any:
        del args, options
        return [SimpleNamespace(params=np.ones(3) + next(shifts))]

    monkeypatch.setattr("fedprox.simulate", disturbed)
    with pytest.raises(AssertionError, match="several lanes and of one differ"):
        CHECKS["lanes: logistic"]()


@pytest.mark.slow
def test_the_cheap_parts_are_rehearsed(tmp_path: Path) -> None:
    """`checks` has a process of its own, as all parts do; the others run here, to save imports."""
    options = ["--tiny", "--minutes", "8", "--out", str(tmp_path)]
    assert gpu.main([*options, "--parts", "checks"]) == 0
    assert endings(tmp_path) == {"checks": "done"}
    for name, module in (("lanes", lanes), ("models", models)):
        module.main(Part(name, tmp_path, 480.0, tiny=True))
    write_summary(tmp_path)
    checks = [line for line in lines(tmp_path) if line.get("table") == "Checks"]
    assert {line["check"]: line["right"] for line in checks} == dict.fromkeys(CHEAP, True)
    assert max(line.get("difference", 0.0) for line in checks) < 1e-5
    tables = {line["table"] for line in lines(tmp_path) if "table" in line}
    assert tables >= {"Checks", "Tests", "Constants of lane_cost", "Steps of models"}
    page = (tmp_path / "summary.md").read_text()
    assert all(f"### {title}\n" in page for title in tables)


def test_the_tests_that_are_run_or_left_out_exist() -> None:
    assert all((environment.ROOT / name).exists() for name in TESTS)
    for name in (*FOR_CPUS, REHEARSED):
        file, function = name.partition("[")[0].split("::")
        assert f"def {function}(" in (environment.ROOT / file).read_text()


@pytest.mark.slow
def test_steps_are_timed_beside_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loop:
        """What `benchmarks.torch_models` has, without torch."""

        def __init__(self, module: str, federation: Federation, batch: int) -> None:
            assert (module, len(federation), batch) == ("a linear layer", 2, 10)

        def step(self) -> None:
            time.sleep(0.001)

        def round(self) -> None:
            time.sleep(0.01)

    fake = ModuleType("torch_models")
    fake.__dict__.update(Loop=Loop, logistic=lambda: "a linear layer")
    monkeypatch.setitem(sys.modules, "benchmarks.torch_models", fake)
    monkeypatch.setattr(benchmarks, "torch_models", fake, raising=False)
    row = row_named("logistic")
    timing = measure(row, 2, repeats=1, seconds=0.05, torch=True)
    assert timing.parameters == 7850
    assert 0.001 <= timing.torch_step < 0.1
    assert 0.001 <= timing.torch_in_round < 0.1  # ten steps a round
    assert cells(row, 2, timing, 1e9)[:3] == ("logistic", "10", "2")
    alone = timing._replace(torch_step=math.nan, torch_in_round=math.nan)
    assert cells(row, 2, alone, 1e9)[7:9] == ("", "")
