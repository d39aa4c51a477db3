"""The papers' longest items, one after another until the time is over.

`python -m experiments` runs them at the paper's scale. It keeps checkpoints, so the next call goes
on where this one ended. Items whose data are not at hand are left out: nothing is downloaded, and
made-up images are never used.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts import environment
from benchmarks.gpu_parts.part import Part
from experiments import LONG, select
from experiments.engine.item import Item
from experiments.printed import Printed
from fedprox.datasets import CATALOGUE
from fedprox.datasets.sources import at_hand

OF_QUIRKS = {"overlapping_femnist": "femnist"}
"""The data sets whose files the quirks of the authors' code read."""

ENDING = 20.0
"""Seconds in which an item writes its checkpoint when the time is over."""


def absent(item: Item, data_dir: Path | None) -> list[str]:
    """The data sets of an item of which a file is not at hand, and would be downloaded."""
    return [
        name
        for name in item.data
        if not all(
            at_hand(file, data_dir)
            for file in CATALOGUE[OF_QUIRKS.get(name, name)].files
            if not file.use
        )
    ]


def main(part: Part) -> None:
    """Run items until the time is over."""
    names = part.items or (("fedprox/figure-2",) if part.tiny else LONG)
    try:
        for name in names:
            for key, item in select(name).items():
                if isinstance(item, Printed):
                    part.write("Items", item=key, result=f"left out; `fedprox run {item.path}`")
                    continue
                lacking = absent(item, part.data_dir)
                if lacking:
                    result = f"left out, without {', '.join(lacking)}"
                elif part.left > ENDING:
                    result = reproduce(part, key)
                else:
                    result = "not run: no time was left"
                part.write("Items", item=key, result=result)
    finally:
        progress(part, part.out / "papers" / "runs")


def reproduce(part: Part, name: str) -> str:
    """Run an item until it is done or the time is over."""
    command = [sys.executable, "-m", "experiments", name]
    command += ["--scale", "short" if part.tiny else "paper", "--out", str(part.out / "papers")]
    command += ["--data-dir", str(part.data_dir)] if part.data_dir else []
    child = subprocess.Popen(command, cwd=environment.ROOT, env=os.environ)
    try:
        status = child.wait(max(part.left - ENDING, 1.0))
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
        status = child.wait()
        return "stopped; the next call continues"
    return "done" if status == 0 else f"failed with exit status {status}"


def progress(part: Part, folder: Path) -> None:
    """Write how far each run of a folder is."""
    for path in sorted(folder.glob("*/metrics.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines()
        last: dict[tuple[str, int], dict[str, Any]] = {}
        for line in lines:
            record = json.loads(line)
            last[record["label"], record["seed"]] = record
        for (label, seed), record in last.items():
            part.write(
                "Runs so far",
                **{
                    "run": path.parent.name,
                    "method": label,
                    "seed": seed,
                    "round": record["round"],
                    "training loss": record["train_loss"],
                    "test accuracy": record["test_accuracy"],
                },
            )
