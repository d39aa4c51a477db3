"""What is seen of a run while it trains, and how it is stopped from outside."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import fedprox as fp
from fedprox.loop.checkpoint import Checkpoints
from fedprox.loop.following import Progress
from fedprox.report import live
from fedprox.report.directory import RunDirectory
from fedprox.report.live import PAGE_EVERY, Live
from fedprox.report.status import PROMETHEUS, STATUS, STOP, status_lines
from fedprox.results.record import Record
from tests.test_cli import LOSSES, status
from tests.variants import mostly_slow

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"
METRICS = {f"fedprox_{name}" for name in live.GAUGES}

SETTINGS = ("rounds=6", "evaluation.every=1", "seed=0", 'method=[{name="fedavg"}]')
RUN = [part for setting in SETTINGS for part in ("--set", setting)]


def record(round_: int, **changes: Any) -> Record:
    """A record of a deployment."""
    client = {"rounds": 2, "steps": 5, "seconds": 1.5, "bytes_down": 1000, "bytes_up": 500}
    network = {"a": {"node": "hospital-a", **client}, "b": {"node": "hospital-b", **client}}
    measures: dict[str, Any] = {
        "train_loss": 0.5,
        "test_accuracy": 0.9,
        "network": network,
        "seconds": 2.0,
        "bytes_down": 2000,
        "bytes_up": 1000,
        "nodes": 2,
        "clients": 2,
        "faulty": 1,
        "epsilon": 0.25 * round_,
    }
    return Record("fedavg", "fedavg", {}, 0.1, 0, round_, measures | changes)


def test_the_status_says_what_nodes_did_and_when_they_were_seen(tmp_path: Path) -> None:
    now = 1000.0
    out = tmp_path / "out"
    table = {"rounds": 9, "data": {"name": "x"}, "cohort": {}, "method": [{"name": "fedavg"}]}
    with RunDirectory(out, table) as directory:
        shown = Live(directory, Checkpoints(out / "checkpoint"), lambda: now)
        shown.progress(Progress("fedavg", 0, 0, 9, phase="planning"))
        assert not out.joinpath(STATUS).exists()  # a run that cannot begin leaves nothing
        directory.record(record(0))
        for round_ in (1, 1, 2):  # the points of a sweep share their messages
            now += 10
            shown.progress(Progress("fedavg", 0, round_, 9, loss=0.25))
            shown.record(record(round_))
        alone = {"b": record(0).network["b"]}
        now += 200
        directory.record(record(3))
        shown.record(record(3, network=alone))
        first, run, *nodes = status_lines(out, now + 3)
        assert first.startswith(f"{out}: running, process ")
        assert first.endswith("; 3 s ago:")
        assert run == (
            "fedavg, seed 0: round 3 of 9, loss 0.5, test accuracy 90.00 %, 6.0 s, 6.0 kB down, "
            "3.0 kB up"
        )
        assert nodes == [
            "node hospital-a: seen 3 min ago, 4 rounds of its clients, 3.0 s, 2.0 kB down, 1.0 kB "
            "up",
            "node hospital-b: seen 3 s ago, 6 rounds of its clients, 4.5 s, 3.0 kB down, 1.5 kB up",
        ]
        exported = (out / PROMETHEUS).read_text()
        assert 'fedprox_round{method="fedavg",seed="0"} 3\n' in exported
        assert 'fedprox_loss{method="fedavg",seed="0"} 0.5\n' in exported
        assert 'fedprox_node_seen{node="hospital-b"} 1230.0\n' in exported
        assert 'fedprox_epsilon{method="fedavg",seed="0"} 0.75\n' in exported
        samples = [line for line in exported.splitlines() if not line.startswith("#")]
        assert {re.sub("{.*} ", " ", line).split()[0] for line in samples} == METRICS
        assert all(float(line.rpartition(" ")[2]) >= 0 for line in samples)
        assert set(re.findall(r"fedprox_\w+", DASHBOARD.read_text())) <= METRICS
        page = (out / "report.html").read_text()  # more than a minute after the begin
        assert "This run is under way" in page
        assert '<meta http-equiv="refresh" content="60">' in page
        assert PAGE_EVERY == 60
    (line, *_) = status_lines(out, now)
    assert line == f"{out}: not running, and not complete; 0 s ago:"
    (out / STATUS).write_text("{}")
    with pytest.raises(fp.InputError, match=r"status.json: damaged"):
        status_lines(out, now)


def test_the_dashboard_has_panels_beside_each_other_with_metrics_of_a_run() -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set[tuple[int, int]]()
    for panel in panels:
        for target in panel["targets"]:
            assert set(re.findall(r"fedprox_\w+", target["expr"])) & METRICS, panel["title"]
            for opened, closed in ("()", "{}", "[]"):
                assert target["expr"].count(opened) == target["expr"].count(closed)
        at = panel["gridPos"]
        squares = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not squares & taken, panel["title"]
        assert max(x for x, _ in squares) < 24
        taken |= squares


SEVERAL = (
    *("rounds=5", "evaluation.every=2", "seed=[0, 1]"),
    'method=[{name="fedavg"}, {name="fedprox", mu=[0.1, 1.0]}]',
)
"""Several methods, seeds and sweep points, and rounds that are not evaluated."""


@pytest.mark.parametrize("resumed", mostly_slow([False, True], True))
def test_every_status_has_the_measures_of_one_record(
    resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that a scraper reads at any time, whatever a run has done before it."""
    (tmp_path / "small.toml").write_text(LOSSES)
    out, shown = tmp_path / "out", dict[str, list[str]]()
    run = [part for setting in SEVERAL for part in ("--set", setting)]
    if resumed:
        assert status("run", tmp_path / "small.toml", *run, "--out", out) == 0

    def seen(path: Path, content: bytes) -> None:
        shown.setdefault(path.name, []).append(content.decode())

    monkeypatch.setattr(live, "write_whole", seen)
    monkeypatch.setattr(live, "STATUS_MOST", 0.0)
    if resumed:
        assert status("run", "--resume", out, "--set", "rounds=9") == 0
    else:
        assert status("run", tmp_path / "small.toml", *run, "--out", out) == 0
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    measured = set()
    for text, exported in zip(shown[STATUS], shown[PROMETHEUS], strict=True):
        now = json.loads(text)
        if now.get("round") is None:
            assert "loss" not in now
            assert now["rounds_done"] == 0
            continue
        method = now["label"].split()[0]
        of = {"method": method, "seed": now["seed"], "round": now["round"]}
        of |= {"train_loss": now["loss"], "test_accuracy": now["test_accuracy"]}
        assert any(of.items() <= each.items() for each in records)
        assert now["round"] <= now["rounds_done"]
        for name in ("round", "loss", "test_accuracy"):
            (line,) = (x for x in exported.splitlines() if x.startswith(f"fedprox_{name}{{"))
            assert line.endswith(f" {now[name]}")
        measured.add((method, now["seed"], now["round"]))
    assert measured == {(each["method"], each["seed"], each["round"]) for each in records}


@pytest.mark.slow
def test_a_run_that_stops_or_fails_leaves_the_status_of_its_last_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.toml").write_text(LOSSES)
    monkeypatch.setattr(live, "STATUS_MOST", 1e9)
    monkeypatch.setattr(live, "WAIT_FACTOR", 1e12)  # only the first status is written at once
    note = RunDirectory.record

    def stopped(self: RunDirectory, record: Record) -> None:
        note(self, record)
        if record.round == 2:
            (self.path / STOP).touch()

    def failed(self: RunDirectory, record: Record) -> None:
        if record.round == 4:
            raise fp.InputError("a fault")
        note(self, record)

    for name, recorded in (("stopped", stopped), ("failed", failed)):
        out = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "record", recorded)
            assert status("run", tmp_path / "small.toml", *RUN, "--out", out) != 0
        last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
        now = json.loads((out / STATUS).read_text())
        assert last["round"] >= 2
        assert [now["round"], now["loss"]] == [last["round"], last["train_loss"]]
        assert f"}} {last['round']}\n" in (out / PROMETHEUS).read_text()


def test_a_run_is_stopped_from_outside_and_goes_on(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.toml").write_text(LOSSES)
    out, whole = tmp_path / "out", tmp_path / "whole"
    run = ("run", tmp_path / "small.toml", *RUN, "--checkpoint-every", 1, "--out")
    assert status(*run, whole) == 0
    assert not any((whole / name).exists() for name in (STATUS, PROMETHEUS, STOP))
    assert status("stop", whole) == 2
    assert f"{whole}: no run is under way here" in capsys.readouterr().err
    assert status("status", whole) == 0
    assert capsys.readouterr().out == f"{whole}: complete\n"
    note = RunDirectory.record
    heard = []

    def record_and_stop(self: RunDirectory, record: Record) -> None:
        note(self, record)
        if record.round == 2:
            assert status("stop", out) == 0
            heard.append(record)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "record", record_and_stop)
        assert status(*run, out) == 128 + 15
    captured = capsys.readouterr()
    assert "stops after its current rounds" in captured.out
    assert f"continue with: fedprox run --resume {out}" in captured.err
    assert heard
    assert not (out / STOP).exists()
    assert json.loads((out / STATUS).read_text())["label"] == "fedavg"
    assert status("run", "--resume", out) == 0
    for name in ("metrics.jsonl", "model-fedavg-0.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert not (out / STATUS).exists()
