"""Run one part in a process of its own: `python -m benchmarks.gpu_parts JSON`."""

import importlib
import signal
import sys

from benchmarks.gpu_parts.part import part_from_json


def main() -> None:
    """Run the part that the argument describes."""
    part = part_from_json(sys.argv[1])
    module = importlib.import_module(f"benchmarks.gpu_parts.{part.name}")
    from fedprox import InputError

    try:
        module.main(part)
    except InputError as error:
        part.write("Remarks", remark=str(error))
        sys.exit(2)


if __name__ == "__main__":
    # so that a part whose time is over can write what it has
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
