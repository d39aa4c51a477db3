"""Standard streams that never raise: after a broken pipe or a full disk, they drop output."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class _SafeFile(io.FileIO):
    """A file that drops what it cannot write instead of raising OSError."""

    def __init__(self, number: int, lost: Callable[[OSError], None]) -> None:
        super().__init__(number, "w", closefd=False)
        self.lost: Callable[[OSError], None] | None = lost

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or len(content)
        except OSError as error:
            lost, self.lost = self.lost, None  # reported once
            if lost is not None:
                lost(error)
            return len(content)


def safe_stream(stream: TextIO | None, lost: Callable[[OSError], None] = lambda _: None) -> TextIO:
    """A stream that writes to the file of another and drops what cannot be written.

    Characters that the encoding lacks are written as escapes. The stream is flushed after each
    line.

    Without a stream (None) output is discarded; one without a file is returned unchanged. `lost` is
    called with the first error.
    """
    if stream is None:
        return io.StringIO()  # discards the output
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return stream
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_SafeFile(number, lost)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )


@contextmanager
def safe_streams() -> Iterator[None]:
    """Replace stdout and stderr by safe streams; report the loss of stdout on stderr."""
    before = sys.stdout, sys.stderr

    def report(error: OSError) -> None:
        line = f"fedprox: stdout: {error.strerror}; the command continues without it"
        print(line, file=sys.stderr)

    sys.stdout, sys.stderr = safe_stream(sys.stdout, report), safe_stream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
