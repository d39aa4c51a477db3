"""`fedprox examples`."""

from itertools import takewhile
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer

from fedprox.errors import choices, require
from fedprox.files.whole import write_whole


def examples(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The example to print.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Write it to a new file instead.")
    ] = None,
) -> None:
    """List the example experiment files, or print one, to start from."""
    folder = Path(__file__).parents[1] / "examples"
    if not folder.is_dir():  # a source checkout, where the package does not hold a copy
        folder = Path(__file__).parents[3] / "examples"
    known = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if name is None:
        require(not out, "--out: name an example")
        for stem, path in known.items():
            lines = takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
            about = " ".join(" ".join(line.removeprefix("#") for line in lines).split())
            print(fill(f"{stem:<14}{about}", 100, subsequent_indent=" " * 14))
        return
    require(name in known, f"{name!r} is not an example; {choices(name, known)}")
    content = known[name].read_text(encoding="utf-8")
    if not out:
        print(content, end="")
        return
    require(not out.exists(), f"--out: {out} exists already; name a new file")
    write_whole(out, content.encode())
    print(out)
