"""What a part is told, and how it writes its figures."""

import json
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FIGURES = "figures.jsonl"
"""The file of all parts' figures, one JSON object a line."""


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    Attributes:
        name: Its name.
        out: Folder for figures.
        seconds: Its time limit.
        tiny: Whether sizes are tiny, to rehearse on a CPU.
        data_dir: Folder with data files; None if there is none.
        items: Items to reproduce, of the part `papers`; empty for its own list.
        begin: When it began, on the clock of `time.monotonic`.
    """

    name: str
    out: Path
    seconds: float
    tiny: bool = False
    data_dir: Path | None = None
    items: tuple[str, ...] = ()
    begin: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.begin + self.seconds - time.monotonic()

    def write(self, table: str, **figures: Any) -> None:
        """Add a line to a table of the summary, and print it."""
        append(self.out, {"part": self.name, "table": table, **figures})
        shown = ", ".join(f"{key} {short(value)}" for key, value in figures.items())
        print(f"{self.name}: {table}: {shown}", flush=True)

    def to_json(self) -> str:
        """The part for another process, where its time begins anew."""
        fields = asdict(self) | {"out": str(self.out), "begin": None}
        return json.dumps(fields | {"data_dir": str(self.data_dir) if self.data_dir else None})


def part_from_json(text: str) -> Part:
    """The inverse of `Part.to_json`."""
    fields = json.loads(text)
    fields.pop("begin")
    folder = fields["data_dir"]
    return Part(
        **fields
        | {
            "out": Path(fields["out"]),
            "data_dir": Path(folder) if folder else None,
            "items": tuple(fields["items"]),
        }
    )


def append(out: Path, line: dict[str, Any]) -> None:
    """Add a line to the figures, with null for NaN and "inf" for infinity, which JSON lacks."""

    def finite(value: Any) -> Any:
        if not isinstance(value, float) or math.isfinite(value):
            return value
        return None if math.isnan(value) else str(value)

    with (out / FIGURES).open("a", encoding="utf-8") as file:
        file.write(
            json.dumps({key: finite(value) for key, value in line.items()}, default=float) + "\n"
        )


def short(value: object) -> str:
    """A value as tables show it.

    >>> short(0.000123456), short(12345.6), short(None), short(True)
    ('0.0001235', '12346', '', 'yes')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
