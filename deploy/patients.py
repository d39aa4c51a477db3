"""Made-up patients of three hospitals: `python3 patients.py DIR` writes their tables.

DIR is a folder that `fedprox certificates` made. Each DIR/HOSPITAL gets a patients.csv, and DIR one
with the rows of all and a column `hospital`, for the simulation of the federation.
"""

import csv
import math
import random
import sys
from pathlib import Path

HOSPITALS = {"hospital-a": (320, 64.0), "hospital-b": (200, 52.0), "hospital-c": (120, 47.0)}
"""Patients, and their mean age."""

NAMES = ["age", "pressure", "cholesterol", "heart_rate", "outcome"]


def patient(draw: random.Random, mean_age: float) -> list[float]:
    """A row. Old patients of high pressure are at risk, and one in ten is an exception."""
    age = draw.gauss(mean_age, 9.0)
    pressure = draw.gauss(90.0 + 0.7 * age, 14.0)
    cholesterol, heart_rate = draw.gauss(220.0, 35.0), draw.gauss(75.0, 10.0)
    risk = (age - 55.0) / 9.0 + (pressure - 130.0) / 14.0 + (cholesterol - 220.0) / 70.0
    likely = 1.0 / (1.0 + math.exp(-2.0 * risk))
    outcome = int(draw.random() < 0.1 + 0.8 * likely)
    numbers = [round(each, 1) for each in (age, pressure, cholesterol, heart_rate)]
    return [*numbers, outcome]


def write(file: Path, rows: list[list[object]]) -> None:
    """Write a table."""
    with file.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows(rows)


def main() -> None:
    """Write the tables."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("python3 patients.py DIR, the folder that `fedprox certificates` made")
    folder, draw, together = Path(sys.argv[1]), random.Random(0), list[list[object]]()
    for hospital, (count, mean_age) in HOSPITALS.items():
        rows: list[list[object]] = [[*patient(draw, mean_age)] for _ in range(count)]
        (folder / hospital).mkdir(mode=0o700, exist_ok=True)
        write(folder / hospital / "patients.csv", [[*NAMES], *rows])
        together += [[hospital, *row] for row in rows]
    write(folder / "patients.csv", [["hospital", *NAMES], *together])


if __name__ == "__main__":
    main()
