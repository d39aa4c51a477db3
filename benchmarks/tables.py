"""How long a table of a file takes to become a federation, beside the reader alone.

    python -m benchmarks.tables [--rows 1000000] [--kinds parquet csv feather] [--times 3]

A table of 30 columns: the hospital, 100 of them in mixed order; 24 floating-point numbers and two
whole ones; a truth value; a category; and the label. It is written once, and read by turns by
pyarrow, by polars where it is installed, and by `Federation.from_table`, in this process. Asked: at
most 1.5 times a reader's seconds. `--rows 10000000` needs 8 GB of memory and 5 GB of disk.
"""

import argparse
import gc
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, feather, parquet

import fedprox as fp
from benchmarks.page import show, table

ROWS_AT_A_TIME = 1_000_000


def part(rng: np.random.Generator, rows: int) -> pa.Table:
    """Some rows of the table."""
    hospitals = pa.array([f"hospital-{k}" for k in range(100)])
    columns: dict[str, Any] = {"hospital": hospitals.take(pa.array(rng.integers(0, 100, rows)))}
    columns |= {f"x{j}": rng.normal(j, j + 1, rows) for j in range(24)}
    columns |= {"age": rng.integers(0, 100, rows), "visits": rng.integers(0, 1000, rows)}
    columns["smokes"] = rng.integers(0, 2, rows) > 0
    columns["sex"] = pa.array(["f", "m"]).take(pa.array(rng.integers(0, 2, rows)))
    return pa.table(columns | {"ill": rng.integers(0, 2, rows)})


def write(path: Path, rows: int) -> None:
    """Write the table, some rows at a time."""
    rng = np.random.default_rng(0)
    schema = part(rng, 1).schema
    writers: dict[str, Callable[[], Any]] = {
        ".parquet": lambda: parquet.ParquetWriter(path, schema),
        ".csv": lambda: csv.CSVWriter(path, schema),
        ".feather": lambda: pa.ipc.new_file(path, schema),
    }
    with writers[path.suffix]() as writer:
        for begin in range(0, rows, ROWS_AT_A_TIME):
            writer.write_table(part(rng, min(ROWS_AT_A_TIME, rows - begin)))


def readers(path: Path) -> dict[str, Callable[[], Any]]:
    """What reads a file, by name."""
    kind = path.suffix.removeprefix(".")
    read = {"parquet": parquet.read_table, "csv": csv.read_csv, "feather": feather.read_table}[kind]
    of: dict[str, Callable[[], Any]] = {"pyarrow": lambda: read(path)}
    try:
        import polars
    except ImportError:
        pass
    else:
        name = "read_ipc" if kind == "feather" else f"read_{kind}"
        of["polars"] = lambda: getattr(polars, name)(path)
    ours = partial(fp.Federation.from_table, path, client="hospital", label="ill")
    of["from_table"] = ours
    of["from_table, not standardized"] = partial(ours, standardize=None)
    return of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", default=["parquet", "csv", "feather"])
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    headers = ("file", "GB", "reader", "seconds", "processor seconds", "of the faster reader's")
    shown = table(*headers, title=f"{arguments.rows:,} rows", left=3)
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"table.{kind}"
            write(path, arguments.rows)
            size = f"{path.stat().st_size / 1e9:.2f}"
            known = readers(path)
            least = dict.fromkeys(known, (np.inf, np.inf))
            for _ in range(arguments.times):
                for name, read in known.items():
                    begin, processor = time.perf_counter(), time.process_time()
                    result = read()
                    taken = time.perf_counter() - begin, time.process_time() - processor
                    least[name] = min(least[name][0], taken[0]), min(least[name][1], taken[1])
                    del result
                    gc.collect()
            alone = min(seconds for name, (seconds, _) in least.items() if "from" not in name)
            for name, (seconds, processor) in least.items():
                cells = f"{seconds:.2f}", f"{processor:.2f}", f"{seconds / alone:.2f}"
                shown.add_row(kind, size, name, *cells)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    shown.caption = f"most memory {memory:.1f} GB"
    show(shown)


if __name__ == "__main__":
    main()
