"""The items that nobody has run and that would take two cores more than a day.

Each file here is an experiment for `fedprox run`. Its first lines name the items that it stands
for; its comments have the paper's numbers, and what to change for the items' other rows.
"""

import re
from pathlib import Path
from typing import NamedTuple

NAMED = re.compile(r"^# (\w+/[\w-]+): (.+)$", re.MULTILINE)


class Printed(NamedTuple):
    """An item of which there are the paper's numbers and a file to run, and nothing else.

    Attributes:
        title: The item's number and content.
        path: The experiment file, with the paper's numbers in its comments.
    """

    title: str
    path: Path


PRINTED = {
    name: Printed(title, path)
    for path in sorted(Path(__file__).parent.glob("*.toml"))
    for name, title in NAMED.findall(path.read_text(encoding="utf-8"))
}
