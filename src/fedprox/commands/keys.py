"""`fedprox keys`."""

import re
from pathlib import Path
from typing import Annotated

import typer

from fedprox.errors import choices, require

LISTING = Path(__file__).with_name("keys.txt")
"""The output of `fedprox.experiment.listing`, which needs JAX; a test says how to renew it."""


def keys(
    section: Annotated[
        str | None, typer.Argument(metavar="[SECTION]", help="A section, such as solver.")
    ] = None,
) -> None:
    """List the keys of experiment files: types, defaults and meanings.

    A list where a number is allowed sweeps over its values.
    """
    parts = re.split(r"^%% ?(.*)\n", LISTING.read_text(encoding="utf-8"), flags=re.M)[1:]
    texts = {name: text.rstrip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
    if section is not None:
        texts.pop("")
        require(section in texts, f"{section!r} is not a section; {choices(section, texts)}")
        texts = {section: texts[section]}
    print("\n\n".join(texts.values()))
