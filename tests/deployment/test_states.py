"""The folders of runs on a node's disk."""

import os
from pathlib import Path

import pytest

from fedprox.deployment.states import keep_last_runs


@pytest.mark.parametrize(("runs", "kept"), [(1, 1), (3, 3), (5, 5), (7, 5)])
def test_the_last_runs_are_kept(runs: int, kept: int, tmp_path: Path) -> None:
    names = [f"run{i}" for i in range(runs)]
    for second, name in enumerate(names):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (second, second))
    keep_last_runs(tmp_path, names[-1], 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == names[-kept:]
    # an old run that is resumed is the last one
    keep_last_runs(tmp_path, "run0", 5)
    others = [name for name in names[-kept:] if name != "run0"]
    assert {path.name for path in tmp_path.iterdir()} == {"run0", *others[-4:]}
