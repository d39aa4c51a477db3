"""The entry of the `fedprox` command, outside the package so that it runs before its imports."""

import os
import signal


def main() -> None:
    """Prepare the process, import the package and run the command."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:  # closed: without this the next file opened would become the stream
            os.open(os.devnull, os.O_RDWR)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # the imports take a second or two; Ctrl-C ends them at once and without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from fedprox import cli

    cli.main()
