"""The audit of a node: one line of JSON for each request and its outcome, in a chain.

Each line has the digest of the line before. So a line cannot be changed, left out or inserted
without changing all that follow. A second file, the head, has the number and the digest of the last
line, so that lines that are missing at the end are missed too. It is written after its line, and
may be behind. Nothing is keyed: who can write both files can write a whole new chain, which only a
digest that is kept elsewhere tells from this one.

The audit is a record and no limit. The limits are counted in `spent.json`, which is on disk before
anything is computed from data. So an answer is sent whether or not its line could be written; lines
that are lost are counted in the next one.
"""

import hashlib
import io
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedprox.deployment.kept import NodeSpent
from fedprox.deployment.network import Parcel
from fedprox.deployment.policy import Bound
from fedprox.deployment.wire import READS, Request
from fedprox.errors import InputError, foreign, plural, reason, require
from fedprox.files.whole import BINARY, NO_LINK, append, naming
from fedprox.parts.privacy.accounting import (
    Composed,
    Releases,
    alike,
    composed_with,
    epsilon_together,
    rounded_up,
)

FILE = "audit.jsonl"

HEAD = "audit-head.json"

MOST_BYTES = 10**7
"""Bytes of a file, about 30,000 lines, after which another one is begun."""

FILES_KEPT = 9
"""Files that are kept beside the last one; older ones are removed."""

BEGINNING = "0" * 64
"""The digest before the first line."""

Outcome = Literal["answered", "refused", "repeated", "lacks arrays"]
"""The outcome of a request. A repeated one was answered as before, from memory; one that lacks
arrays comes again with them."""


def line_of(
    parcel: Parcel,
    request: Request | None,
    answer: Parcel,
    outcome: Outcome,
    why: str = "",
) -> dict[str, Any]:
    """The fields of a line for a request, but for its cost; None is one that cannot be read."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line: dict[str, Any] = {"time": now, "who": parcel.sender}
    setup = None if request is None else request.setup
    if request is not None:
        line["kind"] = request.kind
    if request is not None and setup is not None:
        line |= {"run": setup.run, "method": foreign(setup.method.get("name")), "seed": setup.seed}
        if "round" in READS[request.kind]:
            # rounds are counted from 1; the model of an evaluation is that after a round
            of = request.kind if request.secret is None else request.secret.of
            line["round"] = request.round + (of != "evaluate")
    if request is not None and request.secret is not None:
        line["sum_of"] = request.secret.of
    if request is not None and request.work is not None:
        line |= {"clients": len(request.work.names), "steps": sum(request.work.steps)}
    line |= {"outcome": outcome} | ({"why": foreign(why)} if why else {})
    return line | {"bytes_in": parcel.size, "bytes_out": answer.size}


def cost_of(
    request: Request, before: NodeSpent, after: NodeSpent, limit: Bound | None
) -> dict[str, Any]:
    """The cost of an answer: rounds, and with privacy an upper bound of epsilon after it.

    `epsilon` is that of the run so far at its own delta, and `epsilon_of_all` that of all runs
    together at the delta of the node's limit. For rows they are those of the worst of the round's
    clients. Rényi divergences give them in milliseconds. None stands for no bound.
    """
    setup = request.setup
    if after is before or setup is None:
        return {}
    cost: dict[str, Any] = {"rounds": after.rounds - before.rounds}
    own, hiding, steps = after.of(setup), setup.privacy, setup.private_steps
    names = [] if request.work is None else request.work.names
    evaluated = [] if own.measured is None else [(own.measured, own.evaluations)]
    if request.kind == "evaluate" and evaluated:
        names = list(after.steps)
    if hiding is not None:
        released = [(hiding.mechanism, own.releases)] if own.releases else []
        cost["epsilon"] = _bound([*released, *evaluated], hiding.mechanism.delta)
        if limit is not None:
            cost["epsilon_of_all"] = _bound(after.private, limit.delta, after.before)
    elif steps is not None and names:
        # the last mechanism of a client, but for evaluations, is that of this run
        last = {
            name: [each for each, _ in after.steps[name] if each != own.measured][-1:]
            for name in names
        }
        taken = [
            ([(each, own.steps.get(name, 0)) for each in last[name]] + evaluated, None)
            for name in names
        ]
        cost["epsilon"] = _worst(taken, steps.delta)
        if limit is not None:
            every = [(after.steps[name], after.steps_before.get(name)) for name in names]
            cost["epsilon_of_all"] = _worst(every, limit.delta)
    return cost


def _bound(spent: Sequence[Releases], delta: float, before: Composed | None = None) -> float | None:
    """An upper bound of epsilon; None if there is none."""
    if not spent and before is None:
        return 0.0
    epsilon = math.inf
    with suppress(InputError, ArithmeticError):  # such as runs with other neighbours
        epsilon = epsilon_together((), delta, composed_with(before, spent))
    return epsilon if math.isfinite(epsilon) else None


def _worst(
    clients: Iterable[tuple[Sequence[Releases], Composed | None]], delta: float
) -> float | None:
    """The bound of the client with the largest; many have the same mechanisms, as `alike` says."""
    most: dict[Any, list[int]] = {}
    for spent, before in clients:
        key = tuple(alike(mechanism) for mechanism, _ in spent), before
        counts = [count for _, count in spent]
        most[key] = list(map(max, most.get(key, counts), counts))
    bounds = [
        _bound(list(zip(what, n, strict=True)), delta, before) for (what, before), n in most.items()
    ]
    return None if None in bounds else max(filter(None, bounds), default=0.0)


class Head(NamedTuple):
    """The last line, as the head knows it."""

    line: int
    digest: str


NONE = Head(0, BEGINNING)
"""Before the first line."""


def write_head(folder: Path, head: Head) -> None:
    """Replace the head. Neither it nor a line is flushed to the disk."""
    partial = folder / f".{HEAD}.partial"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK | BINARY
    with naming(folder / HEAD), io.FileIO(os.open(partial, flags, 0o600), "w") as file:
        file.write(json.dumps(head._asdict()).encode())
    partial.replace(folder / HEAD)


def read_head(folder: Path) -> Head | None:
    """The head; None if it is missing or damaged."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        head = Head(**json.loads((folder / HEAD).read_bytes()))
        if type(head.line) is int and isinstance(head.digest, str):
            return head
    return None


class Audit:
    """The audit of a node, which is written line by line.

    Args:
        folder: The node's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.lost, self._fails = folder, 0, False
        self._end: Head | None = None
        self._missing, self._head_fails = 0, False

    def add(self, make: Callable[[], Mapping[str, Any]]) -> None:
        """Write a line. Whatever fails, the node goes on; it is logged once, and counted."""
        log, path = logging.getLogger(__name__), self.folder / FILE
        try:
            if self._end is None:
                self._end = self._found()
            number, before = self._end
            counts = {"lost": self.lost, "missing": self._missing}
            said = {key: count for key, count in counts.items() if count}
            line = {"line": number + 1, "before": before, **make(), **said}
            content = json.dumps(line, separators=(",", ":")).encode()
            self._write(content + b"\n", number)
        except Exception as error:
            if not self._fails:
                log.warning("%s: %s; lines are lost from now on", path, reason(error))
            self._fails, self.lost = True, self.lost + 1
            return
        if self._fails:
            log.warning("%s: lines are written again; %s were lost", path, self.lost)
        self._end = Head(number + 1, _digest(content))
        self.lost, self._missing, self._fails = 0, 0, False
        try:
            write_head(self.folder, self._end)
        except OSError as error:
            if not self._head_fails:
                why = error.strerror or reason(error)
                log.warning("%s: %s; it may be behind the lines", self.folder / HEAD, why)
            self._head_fails = True

    def _found(self) -> Head:
        """The last line, as earlier processes have left it.

        It is that of the head if the files lack the line that the head knows, so that going on does
        not hide what is missing.
        """
        log, whole = logging.getLogger(__name__), b""
        for file in files_of(self.folder)[-2:]:  # the last one may have been begun after the head
            content = file.read_bytes()
            complete = content[: content.rfind(b"\n") + 1]
            if file.name == FILE and complete != content:  # a power failure has left part of a line
                os.truncate(file, len(complete))
                self.lost += 1
            whole += complete
        lines, head = whole.splitlines(), read_head(self.folder)
        end = Head(_number_of(lines[-1]), _digest(lines[-1])) if lines else NONE
        if head and not any(_digest(line) == head.digest for line in reversed(lines)):
            self._missing = max(head.line - end.line, 0)
            log.warning(
                "%s: no line %s as %s knows it; lines were changed, cut off, or lost in a power "
                "failure",
                *(self.folder / FILE, head.line, HEAD),
            )
            end = head
        if end.line:
            where = self.folder / FILE
            log.info("%s: goes on after line %s, whose digest is %s", where, *end)
        return end

    def _write(self, line: bytes, number: int) -> None:
        """Append a line, to another file if this one is full; the last line so far has a number."""
        path = self.folder / FILE
        with naming(path), self._opened(path) as file:
            if file.tell() + len(line) <= MOST_BYTES:
                append(file, path, line)
                return
        path.replace(self.folder / f"audit-{number:012d}.jsonl")
        for old in files_of(self.folder)[:-FILES_KEPT]:
            old.unlink()
        with naming(path), self._opened(path) as file:
            append(file, path, line)

    def _opened(self, path: Path) -> io.FileIO:
        """The file, which only its owner may read, at its end."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINK | BINARY
        try:
            opened = os.open(path, flags, 0o600)
        except FileNotFoundError:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = os.open(path, flags, 0o600)
        return io.FileIO(opened, "a")


def files_of(folder: Path) -> list[Path]:
    """The files of an audit in their order."""
    older = [each for each in folder.glob("audit-*.jsonl") if re.fullmatch(OLDER, each.name)]
    last = folder / FILE
    return [*sorted(older), *([last] if last.exists() else [])]


OLDER = r"audit-\d{12}\.jsonl"
"""The name of a file that is full: the number of its last line."""


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _number_of(line: bytes) -> int:
    """The number in a line; 0 if there is none, which a check of the chain finds."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        return int(json.loads(line)["line"])
    return 0


class Checked(NamedTuple):
    """A line of an audit that continues the line before.

    Attributes:
        line: The fields of the line.
        digest: The digest of the line, with which the next one begins.
    """

    line: dict[str, Any]
    digest: str


class TornError(InputError):
    """The last line of an audit is not complete."""


def checked_lines(folder: Path) -> Iterator[Checked]:
    """The lines of an audit, each once it was checked that it continues the one before.

    `InputError` names the first that does not; after the last one also what is missing.
    """
    head = read_head(folder)  # first: the node may be writing
    files = files_of(folder)
    older = sum(file.name != FILE for file in files)
    before: Checked | None = None
    gaps = list[str]()
    for file in files:
        with file.open("rb") as opened:
            for at, content in enumerate(opened, start=1):
                last = before.line["line"] if before else 0
                if not content.endswith(b"\n") and file.name == FILE:
                    raise TornError(
                        f"{file}: it ends in the middle of line {last + 1}; the node is writing "
                        "it, was ended while it did, or the file was cut"
                    )
                where = f"{file}, line {at}"
                before = _continued(where, content.rstrip(b"\n"), before)
                number = before.line["line"]
                require(
                    head is None or number != head.line or before.digest == head.digest,
                    f"{where}: it is not line {number} as {HEAD} knows it: one of them was changed",
                )
                if before.line.get("missing"):
                    gaps.append(_missing(last + 1, number - 1, f"before line {number}"))
                elif not last and number > 1 and older < FILES_KEPT:
                    gaps.append(_missing(1, number - 1, "at the beginning"))
                yield before
    last = before.line["line"] if before else 0
    require(
        head or last <= 1,  # it is written after the first line
        f"{folder / HEAD}: it is missing or damaged; whether lines are missing at the end is not "
        "known",
    )
    if head and head.line > last:
        gaps.append(_missing(last + 1, head.line, "at the end"))
    require(
        not gaps,
        f"{folder}: {', '.join(gaps)}: cut off, or lost in a power failure",
    )


def _missing(first: int, last: int, where: str) -> str:
    """Which lines are missing, in words."""
    if first == last:
        return f"line {last} is missing {where}"
    return f"lines {first} to {last} are missing {where}"


def _continued(where: str, content: bytes, before: Checked | None) -> Checked:
    """A line that continues another; the first that is kept may have any number."""
    try:
        line = json.loads(content)
        number, digest, missing = line["line"], line["before"], line.get("missing", 0)
        last = number - missing - 1 if before is None else before.line["line"]
        follows = number == last + missing + 1 and missing >= 0
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{where}: it is no line of an audit") from None
    if before is None:
        require(
            number != 1 or digest == BEGINNING,
            f"{where}: it is line 1, and does not begin the chain",
        )
        return Checked(line, _digest(content))
    require(follows, f"{where}: it is line {number}, after line {last}")
    require(
        missing or digest == before.digest,
        f"{where}: line {number} does not continue line {last}: one of them was changed",
    )
    return Checked(line, _digest(content))


def in_words(line: Mapping[str, Any]) -> str:
    """A line of an audit for a person, without digests.

    >>> in_words({"line": 7, "time": "2026-03-01T09:30:00.250Z", "who": "", "kind": "train",
    ...           "run": "5f0c", "method": "fedprox", "seed": 0, "round": 3, "clients": 2,
    ...           "steps": 24, "outcome": "answered", "bytes_in": 5632, "bytes_out": 2701,
    ...           "rounds": 1})
    '7  2026-03-01T09:30:00.250Z  train, run 5f0c, fedprox, seed 0, round 3, 2 clients, 24 steps:
     answered; 5,632 bytes in, 2,701 bytes out; rounds 1'
    """
    about = [str(line.get("kind", "no request"))]
    if "sum_of" in line:
        about.append(f"sum of {line['sum_of']}")
    for key, words in (
        ("run", "run {}"),
        ("method", "{}"),
        ("seed", "seed {}"),
        ("round", "round {}"),
    ):
        if key in line:
            about.append(words.format(line[key]))
    about += [plural(line[key], key[:-1]) for key in ("clients", "steps") if key in line]
    why = f": {line['why']}" if "why" in line else ""
    sizes = f"{line.get('bytes_in', 0):,} bytes in, {line.get('bytes_out', 0):,} bytes out"
    cost = [f"{key} {line[key]}" for key in ("rounds",) if key in line]
    for key in ("epsilon", "epsilon_of_all", "own_epsilon"):
        if key in line:
            value = "without bound" if line[key] is None else rounded_up(line[key])
            cost.append(f"{key.replace('_', ' ')} {value}")
    end = [sizes, ", ".join(cost), f"from {line['who']}" if line.get("who") else ""]
    end.append(
        f"{plural(line['lost'], 'line')} before it could not be written" if "lost" in line else ""
    )
    if "missing" in line:
        end.append(_missing(line["line"] - line["missing"], line["line"] - 1, "before it"))
    return (
        f"{line.get('line')}  {line.get('time')}  {', '.join(about)}: {line.get('outcome')}{why}; "
        + "; ".join(filter(None, end))
    )
