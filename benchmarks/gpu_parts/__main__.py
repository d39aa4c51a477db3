"""Run one part in a process of its own: `python -m benchmarks.gpu_parts JSON`."""

import importlib
import sys

from benchmarks.gpu_parts.part import part_from_json


def main() -> None:
    """Run the part that the argument describes."""
    part = part_from_json(sys.argv[1])
    importlib.import_module(f"benchmarks.gpu_parts.{part.name}").main(part)


if __name__ == "__main__":
    main()
