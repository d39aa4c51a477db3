"""A GPU in one command: checks, constants and speeds that need one.

    python -m benchmarks.gpu [--minutes 8] [--out runs/gpu] [--parts NAME ...] [--tiny]

The parts, in order:

    checks   the engine against the NumPy oracle, lanes against one lane, models against a CPU
    lanes    the constants of `lane_cost`, and the best number of lanes
    models   each model's step in a round, beside torch, in three precisions
    feddyn   FedDyn on CIFAR-10, 10 % IID, for 100 rounds
    pfl      the CIFAR-10 benchmark of pfl-research
    papers   the longest items of the papers, until the time is over; they resume

Each part is a process with a time limit of its own: its share of the time that is left. One that
fails or runs out of time is reported, and the next begins. Figures are written as they are known,
to `figures.jsonl` (JSON lines) and `summary.md` in the folder of --out. Nothing is downloaded.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu_parts import environment
from benchmarks.gpu_parts.part import Part, append
from benchmarks.gpu_parts.summary import MACHINE, figures, latest, write_summary

SHARES = {"checks": 24, "lanes": 17, "models": 25, "feddyn": 12, "pfl": 12, "papers": 10}
"""The parts' shares of the time. What a part leaves is for those after it."""

GRACE = 15.0
"""Seconds that a part has to end, for example to write a checkpoint, after its time is over."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; the exit status is 0 if all of them ended well or ran out of time.

    In a rehearsal no part may run out of time.
    """
    options = _options(arguments)
    data_dir = environment.data_folder(options.data_dir)
    trouble = environment.problem(data_dir, tiny=options.tiny)
    if trouble:
        print(f"benchmarks.gpu: {trouble}", file=sys.stderr)
        return 2
    end = time.monotonic() + 60 * options.minutes
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    append(out, {"part": MACHINE, "began": _now()})
    append(out, {"part": MACHINE, "table": "Machine and versions", **environment.machine()})
    names = [name for name in SHARES if name in options.parts]
    well = True
    for i, name in enumerate(names):
        left = end - time.monotonic() - GRACE
        share = SHARES[name] / sum(SHARES[other] for other in names[i:])
        limit = left if options.tiny else left * share
        part = Part(name, out, limit, options.tiny, data_dir, tuple(options.items))
        try:
            well &= run_part(part)
        finally:
            write_summary(out)
    print(f"\n{out / 'summary.md'}")
    return 0 if well else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="time for all parts [8]")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder [runs/gpu]")
    parser.add_argument("--data-dir", type=Path, help="folder with data, instead of FEDPROX_DATA")
    parser.add_argument("--parts", nargs="+", choices=SHARES, default=list(SHARES), metavar="NAME")
    parser.add_argument("--items", nargs="+", default=[], metavar="ITEM", help="of `papers`")
    parser.add_argument("--tiny", action="store_true", help="rehearse on a CPU with tiny sizes")
    return parser.parse_args(arguments)


def run_part(part: Part) -> bool:
    """Run a part in another process; whether it ended well and found nothing wrong."""
    append(part.out, {"part": part.name, "began": _now()})
    print(f"{part.name}: begins, with {part.seconds:.0f} s", flush=True)
    if part.seconds <= 0:
        return _ended(part, "not run: no time was left", well=not part.tiny)
    command = [sys.executable, "-m", "benchmarks.gpu_parts", part.to_json()]
    # a session of its own, so that its own processes end with it
    child = subprocess.Popen(
        command,
        cwd=environment.ROOT,
        env=environment.variables(part.out, tiny=part.tiny),
        start_new_session=True,
    )
    try:
        status = child.wait(part.seconds)
    except subprocess.TimeoutExpired:
        _stop(child)
        return _ended(part, "out of time", well=not part.tiny)
    except BaseException:
        _stop(child)
        raise
    _signal(child, signal.SIGKILL)  # what it may have left running
    if status == 0:
        return _ended(part, "done")
    reason = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return _ended(part, f"failed ({reason})", well=False)


def _ended(part: Part, how: str, *, well: bool = True) -> bool:
    seconds = time.monotonic() - part.begin
    append(part.out, {"part": part.name, "ended": how, "seconds": seconds})
    print(f"{part.name}: {how} after {seconds:.0f} s", flush=True)
    return well and all(line.get("right", True) for line in latest(figures(part.out))[part.name])


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End a process and those that it has started, after `GRACE` by force."""
    _signal(child, signal.SIGTERM)
    end = time.monotonic() + GRACE
    while time.monotonic() < end and _signal(child, 0):
        child.poll()  # its processes may live on when it has ended
        time.sleep(0.1)
    _signal(child, signal.SIGKILL)
    child.wait()


def _signal(child: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a process and those that it has started; whether any is left."""
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return False
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
