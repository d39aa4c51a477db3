"""What a node remembers over all runs: a file of its folder for each thing."""

from pathlib import Path

from pydantic import ValidationError

from fedprox.deployment.messages import M, Message
from fedprox.errors import InputError
from fedprox.files.whole import write_whole


def read_kept(path: Path, empty: M, damaged: str) -> M:
    """What a file holds; `empty` if there is none.

    Args:
        path: The file.
        empty: What a node remembers at first.
        damaged: What the file is for, and what to do if it is damaged.

    Raises:
        InputError: If it is damaged.
    """
    if not path.exists():
        return empty
    try:
        return type(empty).model_validate_json(path.read_bytes())
    except ValidationError:
        raise InputError(f"{path}: damaged; {damaged}") from None


def write_kept(path: Path, content: Message) -> None:
    """Write what a node remembers, before it acts on it.

    Raises:
        OSError: If it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, content.model_dump_json(indent=1).encode())
