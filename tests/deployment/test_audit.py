"""The audit of a node: a line for each request, in a chain that shows changes."""

import errno
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedprox import cli
from fedprox.deployment import audit as module
from fedprox.deployment.audit import (
    FILE,
    HEAD,
    Audit,
    TornError,
    checked_lines,
    files_of,
    in_words,
)
from fedprox.deployment.network import Parcel
from fedprox.deployment.policy import Policy, PrivacyPolicy
from fedprox.deployment.wire import unpack_answer
from fedprox.errors import InputError
from fedprox.parts.privacy.accounting import Mechanism, epsilon_of, epsilon_together
from tests.deployment.conftest import Fresh
from tests.deployment.federations import EVERYTHING, Site, deployed, overheard, table_of
from tests.deployment.test_commands import node_file
from tests.deployment.test_private import DELTA, private_table
from tests.deployment.test_private_steps import steps_table
from tests.deployment.test_spending import asked, edited, recorded

SCAFFOLD = table_of({"name": "scaffold"}, rounds=2)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of an audit, whose chain is checked by hand."""
    content = b"".join(file.read_bytes() for file in files_of(folder))
    assert content.endswith(b"\n")
    lines = content[:-1].split(b"\n")
    before = ["0" * 64, *(hashlib.sha256(line).hexdigest() for line in lines)]
    read = [json.loads(line) for line in lines]
    assert [line["before"] for line in read] == before[:-1]
    assert [line["line"] for line in read] == list(range(1, len(lines) + 1))
    assert [each.line for each in checked_lines(folder)] == read
    assert [each.digest for each in checked_lines(folder)] == before[1:]
    return read


def test_each_request_has_a_line(fresh: Fresh, tmp_path: Path) -> None:
    (site, other), heard = fresh(tmp_path), list[tuple[Parcel, Parcel]]()

    def from_somebody(parcel: Parcel) -> Parcel:
        return site.answer(parcel._replace(sender="run 7 of the SuperLink"))

    answer = overheard(from_somebody, lambda *both: heard.append(both))
    deployed(SCAFFOLD, [answer, other.answer])
    lines = lines_of(site.node.folder)
    assert len(lines) == len(heard)
    for line, (request, answered) in zip(lines, heard, strict=True):
        head = json.loads(request.head)
        assert line["kind"] == head["kind"]
        assert line["who"] == "run 7 of the SuperLink"
        assert (line["bytes_in"], line["bytes_out"]) == (request.size, answered.size)
        lacks = unpack_answer(answered).lacks
        assert line["outcome"] == ("lacks arrays" if lacks else "answered")
        if head["work"]:
            assert line["clients"] == len(head["work"]["names"])
            assert line["steps"] == sum(head["work"]["steps"])
            assert (line["run"], line["method"], line["seed"]) == ("run1", "scaffold", 0)
            assert line["round"] == head["round"] + 1
        assert not {*site.node.federation.names} & {*line.values()}
    assert {line["kind"] for line in lines} == {"describe", "prepare", "train", "evaluate"}
    evaluated = [line["round"] for line in lines if line["kind"] == "evaluate"]
    assert evaluated == [0, 2]
    spent = sum(line.get("rounds", 0) for line in lines)
    assert spent == site.node.spent.rounds > 0


def test_what_is_refused_and_what_is_repeated_are_lines(fresh: Fresh, tmp_path: Path) -> None:
    sites = fresh(tmp_path)
    request, node = recorded(SCAFFOLD, sites)["train"], sites[0].node
    for policy in (EVERYTHING, Policy(methods=["fedavg"])):
        node.policy = policy
        again = edited(request, setup__run="another")
        before = len(lines_of(node.folder))
        refused = asked(node, again).refused
        assert asked(node, again).refused == refused
        node.answer(Parcel(b"no request"))
        first, second, third = lines_of(node.folder)[before:]
        if refused:
            assert [first["outcome"], second["outcome"]] == ["refused", "refused"]
            assert first["why"] == refused == "method 'scaffold'; allowed: fedavg"
            assert "rounds" not in first
        else:
            assert [first["outcome"], second["outcome"]] == ["answered", "repeated"]
            assert first["rounds"] > 0
            assert "rounds" not in second
        assert third["outcome"] == "refused"
        assert third["why"] == "a request that is not JSON"
        assert "kind" not in third


def test_a_restarted_node_continues_the_chain(fresh: Fresh, tmp_path: Path) -> None:
    site = fresh(tmp_path)[0]
    for _ in range(3):
        site.answer(Parcel(b""))
        site.restart()
    assert len(lines_of(site.node.folder)) == 3


def test_a_private_run_has_its_epsilon(fresh: Fresh, tmp_path: Path) -> None:
    """Bounds by Rényi divergences, of the run and of all runs."""
    sites = fresh(tmp_path)
    for site in sites:
        limit = PrivacyPolicy(epsilon=30.0, delta=2 * DELTA, exact_measures=True)
        site.node.policy = Policy(privacy=limit)
    for noise in (2.0, 3.0):
        table = private_table(privacy={"noise_multiplier": noise}, rounds=2)
        deployed(table, [site.answer for site in sites])
    lines = lines_of(sites[0].node.folder)
    first = next(line for line in lines if line["kind"] == "evaluate")
    assert (first["rounds"], first["epsilon"], first["epsilon_of_all"]) == (1, 0.0, 0.0)
    spent = [line for line in lines if line["kind"] == "train"]
    two, three = (Mechanism(4, 4, "bernoulli", None, z, 1, DELTA, "rdp") for z in (2.0, 3.0))
    run = [epsilon_of(each, n) for each in (two, three) for n in (1, 2)]
    assert [line["epsilon"] for line in spent] == pytest.approx(run, rel=1e-6)
    together = [((two, 1),), ((two, 2),), ((two, 2), (three, 1)), ((two, 2), (three, 2))]
    every = [epsilon_together(each, 2 * DELTA) for each in together]
    assert [line["epsilon_of_all"] for line in spent] == pytest.approx(every, rel=1e-6)


@pytest.mark.slow
def test_private_steps_have_the_epsilon_of_the_worst_client(fresh: Fresh, tmp_path: Path) -> None:
    sites, table = fresh(tmp_path), steps_table(rounds=2, cohort={"clients_per_round": 4})
    for site in sites:
        site.node.policy = Policy(
            privacy=PrivacyPolicy(unit="example", epsilon=1e4, delta=2 * 1e-3)
        )
    deployed(table, [site.answer for site in sites])
    node = sites[0].node
    spent = [line for line in lines_of(node.folder) if line["kind"] == "train"]
    rows = node.federation.train.sizes.tolist()
    bounds = [
        max(
            epsilon_of(
                Mechanism(n, 10, "bernoulli", None, 1.0, 1, 1e-3, "rdp"), t * 2 * round(n / 10)
            )
            for n in rows
        )
        for t in (1, 2)
    ]
    for line, bound in zip(spent, bounds, strict=True):
        assert bound <= line["epsilon"] < 1.3 * bound
        assert line["epsilon_of_all"] < line["epsilon"]  # at a larger delta


def test_no_bound_is_said_to_be_none(fresh: Fresh, tmp_path: Path) -> None:
    sites = fresh(tmp_path)
    table = private_table(privacy={"noise_multiplier": 0.0}, rounds=1)
    deployed(table, [site.answer for site in sites])
    (line,) = [line for line in lines_of(sites[0].node.folder) if line["kind"] == "train"]
    assert line["epsilon"] is None
    assert in_words(line).endswith("epsilon without bound")


def added(folder: Path, count: int) -> Audit:
    """An audit to which some lines are added."""
    audit = Audit(folder)
    for number in range(count):
        audit.add(lambda number=number: {"kind": "train", "seed": number})  # type: ignore[misc]
    return audit


@given(st.data())
def test_a_change_is_found(data: st.DataObject) -> None:
    """In any line but the last, of which the digest must be known."""
    lines = CHAIN.copy()
    at = data.draw(st.integers(0, len(lines) - 2))
    what = data.draw(st.sampled_from(["changed", "removed", "swapped", "repeated", "inserted"]))
    if what == "changed":
        place = data.draw(st.integers(0, len(lines[at]) - 2))
        other = data.draw(
            st.integers(0, 255).filter(lambda byte: byte not in (lines[at][place], 10))
        )
        lines[at] = lines[at][:place] + bytes([other]) + lines[at][place + 1 :]
    elif what == "removed":
        del lines[at]
        at -= 1  # the line before is no longer continued
    elif what == "swapped":
        lines[at : at + 2] = lines[at + 1], lines[at]
        at -= 1
    else:
        lines.insert(
            at, lines[at] if what == "repeated" else b'{"line":1,"before":"' + 64 * b"0" + b'"}\n'
        )
        at -= what == "inserted"
    if at < 0 and what == "removed":
        return  # the first lines may have been removed with their file
    found = checked(lines)
    assert found is not None
    assert found in (at + 1, at + 2, at + 3)


def chain(count: int) -> list[bytes]:
    """The lines of an audit."""
    lines, before = [], "0" * 64
    for number in range(1, count + 1):
        line = json.dumps({"line": number, "before": before, "kind": "train"}).encode()
        lines.append(line + b"\n")
        before = hashlib.sha256(line).hexdigest()
    return lines


CHAIN = chain(6)


def checked(lines: list[bytes]) -> int | None:
    """The line that is said not to continue the one before, counted from 1."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, FILE).write_bytes(b"".join(lines))
        module.write_head(Path(folder), module.Head(6, hashlib.sha256(CHAIN[-1][:-1]).hexdigest()))
        try:
            list(checked_lines(Path(folder)))
        except InputError as error:
            place = str(error).partition(f"{FILE}, line ")[2]
            return int(place.partition(":")[0] or 0)  # 0: at the beginning
    return None


def test_the_lines_of_the_test_are_those_of_an_audit(tmp_path: Path) -> None:
    assert checked(CHAIN) is None
    added(tmp_path, 3)
    assert len(lines_of(tmp_path)) == 3


def test_files_are_rotated_and_the_oldest_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 400)  # three lines
    monkeypatch.setattr(module, "FILES_KEPT", 2)
    added(tmp_path, 2)
    added(tmp_path, 2)
    assert [file.name for file in files_of(tmp_path)] == ["audit-000000000003.jsonl", FILE]
    assert len(lines_of(tmp_path)) == 4
    added(tmp_path, 8)
    names = [f"audit-{number:012d}.jsonl" for number in (6, 9)]
    assert [file.name for file in files_of(tmp_path)] == [*names, FILE]
    kept = [each.line["line"] for each in checked_lines(tmp_path)]
    assert kept == list(range(4, 13))
    # the node was killed when the file was to be begun
    (tmp_path / FILE).unlink()
    last = files_of(tmp_path)[-1].read_bytes().splitlines()[-1]
    module.write_head(tmp_path, module.Head(9, hashlib.sha256(last).hexdigest()))
    assert [each.line["line"] for each in checked_lines(tmp_path)] == list(range(4, 10))
    added(tmp_path, 1)
    assert [each.line["line"] for each in checked_lines(tmp_path)] == list(range(4, 11))


@pytest.mark.parametrize("left", [b'{"line":3,"bef', b'{"line":3}'])
def test_a_line_that_a_power_failure_cut_off_is_removed_and_counted(
    left: bytes, tmp_path: Path
) -> None:
    added(tmp_path, 2)
    with (tmp_path / FILE).open("ab") as file:
        file.write(left)
    with pytest.raises(TornError, match=r"audit.jsonl: it ends in the middle of line 3; "):
        list(checked_lines(tmp_path))
    added(tmp_path, 1)
    assert lines_of(tmp_path)[2]["lost"] == 1


def read(folder: Path) -> tuple[list[int], str]:
    """The numbers of the lines that are checked, and the error at their end."""
    numbers = list[int]()
    try:
        numbers.extend(each.line["line"] for each in checked_lines(folder))
    except InputError as error:
        return numbers, str(error)
    return numbers, ""


@pytest.mark.parametrize("kept", range(6))
def test_lines_that_are_cut_off_at_the_end_are_missed(kept: int, tmp_path: Path) -> None:
    added(tmp_path, 6)
    path = tmp_path / FILE
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:kept]))
    if not kept:
        path.unlink()
    which = "line 6 is" if kept == 5 else f"lines {kept + 1} to 6 are"
    line = f"{tmp_path}: {which} missing at the end: cut off, or lost in a power failure"
    assert read(tmp_path) == ([*range(1, kept + 1)], line)
    # a node that goes on does not hide it, and its lines are a chain again
    added(tmp_path, 2)
    added(tmp_path, 1)
    numbers, line = read(tmp_path)
    assert numbers == [*range(1, kept + 1), 7, 8, 9]
    assert line == (
        f"{tmp_path}: {which} missing before line 7: cut off, or lost in a power failure"
    )
    gap = [each for each in path.read_bytes().splitlines() if b'"missing"' in each]
    assert [json.loads(each)["missing"] for each in gap] == [6 - kept]
    assert in_words(json.loads(gap[0])).endswith(f"; {which} missing before it")


@pytest.mark.parametrize("behind", [1, 2, 5])
def test_a_head_that_is_behind_is_no_error(behind: int, tmp_path: Path) -> None:
    """The node was killed between the two writes, or the head could not be written."""
    heads = []
    for _ in range(6):
        added(tmp_path, 1)
        heads.append((tmp_path / HEAD).read_bytes())
    (tmp_path / HEAD).write_bytes(heads[5 - behind])
    assert read(tmp_path) == ([1, 2, 3, 4, 5, 6], "")
    added(tmp_path, 1)
    assert len(lines_of(tmp_path)) == 7
    assert json.loads((tmp_path / HEAD).read_bytes())["line"] == 7


def test_a_node_that_was_killed_at_its_first_line_has_no_head(tmp_path: Path) -> None:
    added(tmp_path, 1)
    (tmp_path / HEAD).unlink()
    assert read(tmp_path) == ([1], "")
    added(tmp_path, 1)
    assert read(tmp_path) == ([1, 2], "")
    for content in (None, b"", b"[]", b'{"line":2}', b'{"line":"2","digest":1}'):
        (tmp_path / HEAD).unlink(missing_ok=True)
        if content is not None:
            (tmp_path / HEAD).write_bytes(content)
        numbers, line = read(tmp_path)
        assert numbers == [1, 2]
        assert line.startswith(f"{tmp_path / HEAD}: it is missing or damaged; ")


def test_a_last_line_that_was_changed_is_found_also_after_the_node_goes_on(tmp_path: Path) -> None:
    added(tmp_path, 3)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes().replace(b'"seed":2', b'"seed":7'))
    line = f"{path}, line 3: it is not line 3 as {HEAD} knows it: one of them was changed"
    assert read(tmp_path) == ([1, 2], line)
    added(tmp_path, 1)
    assert read(tmp_path)[1].startswith(f"{path}, line 4: line 4 does not continue line 3")


def test_files_that_are_removed_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 400)  # three lines
    monkeypatch.setattr(module, "FILES_KEPT", 2)
    added(tmp_path, 11)  # kept are those that end at 6 and 9, and the last one
    first, second, last = files_of(tmp_path)
    assert read(tmp_path) == ([*range(4, 12)], "")
    gone = {first: "lines 1 to 6 are missing at the beginning", second: "it is line 10, after line"}
    for file, line in (gone | {last: "lines 10 to 11 are missing at the end"}).items():
        content = file.read_bytes()
        file.unlink()
        assert line in read(tmp_path)[1]
        file.write_bytes(content)
    assert read(tmp_path)[1] == ""


def test_a_head_that_cannot_be_written_is_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_head", full)
        assert added(tmp_path, 3).lost == 0
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert said == [f"{tmp_path / HEAD}: No space left on device; it may be behind the lines"]
    added(tmp_path, 1)
    assert len(lines_of(tmp_path)) == 4


def full(*_: object) -> None:
    """Stands for writing to a disk that is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken(*_: object) -> dict[str, Any]:
    """Stands for a bug."""
    raise ZeroDivisionError


@pytest.mark.parametrize(("name", "instead"), [("append", full), ("line_of", broken)])
def test_an_audit_that_cannot_be_written_is_not_in_the_way(
    name: str,
    instead: Callable[..., Any],
    fresh: Fresh,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sites = fresh(tmp_path)
    (expected,) = deployed(SCAFFOLD, [site.answer for site in fresh(tmp_path / "other")])
    sites[0].answer(Parcel(b""))
    place = "fedprox.deployment.node" if name == "line_of" else "fedprox.deployment.audit"
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(f"{place}.{name}", instead)
        (run,) = deployed(SCAFFOLD, [site.answer for site in sites])
    assert run.final.train_loss == expected.final.train_loss
    said = [line.getMessage() for line in caplog.records if line.name == "fedprox.deployment.audit"]
    assert len(said) == 2  # once for each node
    assert said[0].endswith("; lines are lost from now on")
    sites[0].answer(Parcel(b""))
    first, second = lines_of(sites[0].node.folder)
    assert "lost" not in first
    assert second["lost"] == sites[0].node.audit.lost + second["lost"] > 5


def test_the_file_is_the_owners_and_no_link_is_followed(tmp_path: Path) -> None:
    added(tmp_path / "a", 1)
    assert (tmp_path / "a" / FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / FILE).symlink_to(tmp_path / "target")
    audit = added(tmp_path / "b", 1)
    assert audit.lost == 1
    assert not (tmp_path / "target").exists()


def invoked(file: Path) -> tuple[int, str, str]:
    """The status of `fedprox node FILE --audit`, and what it prints and says."""
    result = CliRunner().invoke(cli.app, ["node", str(file), "--audit"])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_the_audit_and_names_a_broken_line(fresh: Fresh, tmp_path: Path) -> None:
    file, folder = node_file(tmp_path), tmp_path / "state"
    assert invoked(file) == (0, f"{folder}: no audit yet\n", "")
    site = Site(fresh(tmp_path)[0].node)
    site.node.audit = Audit(folder)
    deployed(SCAFFOLD | {"cohort": {"clients_per_round": 2}}, [site.answer])
    lines = lines_of(folder)
    status, printed, said = invoked(file)
    assert (status, said) == (0, "")
    *shown, last = printed.splitlines()
    assert shown == [in_words(line) for line in lines]
    digest = [each.digest for each in checked_lines(folder)][-1]
    assert last == f"line {len(lines)} is the last; its digest is {digest}"
    changed = (folder / FILE).read_bytes().replace(b'"answered"', b'"refused"', 1)
    (folder / FILE).write_bytes(changed)
    status, printed, said = invoked(file)
    assert status == 1
    assert said.startswith(f"fedprox: {folder / FILE}, line 2: line 2 does not continue line 1")
    assert len(printed.splitlines()) == 1
    (folder / FILE).write_bytes(changed.replace(b'"refused"', b'"answered"', 1)[:-9])
    status, printed, said = invoked(file)
    assert status == 2
    assert said.startswith(f"fedprox: {folder / FILE}: it ends in the middle of line {len(lines)}")
    assert len(printed.splitlines()) == len(lines) - 1
    (folder / FILE).unlink()
    status, printed, said = invoked(file)
    assert (status, printed) == (1, "")
    assert said.startswith(f"fedprox: {folder}: lines 1 to {len(lines)} are missing at the end")


def test_lines_that_are_kept_no_more_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 400)
    monkeypatch.setattr(module, "FILES_KEPT", 1)
    file = node_file(tmp_path)
    added(tmp_path / "state", 8)
    assert "\nlines before 4 are not kept any more\n" in invoked(file)[1]
