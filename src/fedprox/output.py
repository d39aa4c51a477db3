"""Standard streams that cannot end the process: a broken pipe or a full disk costs output only."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class _Lasting(io.FileIO):
    """A file that is written as far as possible and never raises OSError."""

    def __init__(self, number: int, lost: Callable[[OSError], None]) -> None:
        super().__init__(number, "w", closefd=False)
        self.lost: Callable[[OSError], None] | None = lost

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or len(content)
        except OSError as error:
            lost, self.lost = self.lost, None  # said once
            if lost is not None:
                lost(error)
            return len(content)


def lasting(stream: TextIO | None, lost: Callable[[OSError], None] = lambda _: None) -> TextIO:
    """A stream that writes where another does and drops what cannot be written.

    Characters that the encoding lacks are written as escapes. Lines are written as they end.

    Args:
        stream: A standard stream; None where it is closed. One that is not a file is returned as it
            is.
        lost: Called with the first error.
    """
    if stream is None:
        return io.StringIO()  # which nobody reads
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return stream
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Lasting(number, lost)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )


@contextmanager
def lasting_streams() -> Iterator[None]:
    """Replace stdout and stderr by streams that last; the loss of stdout is a line on stderr."""
    before = sys.stdout, sys.stderr

    def say(error: OSError) -> None:
        line = f"fedprox: stdout: {error.strerror}; the command goes on without it"
        print(line, file=sys.stderr)

    sys.stdout, sys.stderr = lasting(sys.stdout, say), lasting(sys.stderr)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
