"""The entry of the `fedprox` command, outside the package so that it runs before its imports."""

import gc
import os
import signal


def main() -> None:
    """Prepare the process, import the package and run the command."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:  # closed: without this the next file opened would become the stream
            os.open(os.devnull, os.O_RDWR)
    # tracing makes many objects that stay: by default a tenth of a short run goes to the search for
    # garbage among them
    gc.set_threshold(200_000, 50, 50)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # the imports take a second or two; Ctrl-C ends them at once and without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from fedprox import cli

    cli.main()
