"""Coverage-guided fuzzing of every reader: `python -m tests.fuzz [--inputs N] [READER ...]`.

Any bytes must give a result or one `InputError` of one line, in time and memory that are in
proportion to the file. The mutations are libFuzzer's and ours; what a reader's code reaches guides
them (`atheris`, which `make fuzz` installs). Inputs that break the rule are kept in `fuzz/READER`,
one for each place in the code, and the exit status is 1.
"""

import argparse
import itertools
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SECONDS = 5.0
"""Processor time that a reader may take for an input."""

LONGEST = 2_000
"""Characters of a message."""

MOST = 1 << 13
"""Bytes of an input, or twice those of the largest valid file."""

MEMORY = 8 << 30
"""Address space of a fuzzing process."""


def verdict(reader: Any, content: bytes, folder: Path) -> str:
    """What is wrong with how a reader takes a content; empty if nothing is."""
    from fedprox import InputError

    path = folder / reader.file
    packed = reader.pack(content)
    path.write_bytes(packed)
    begin, result, message = time.process_time(), None, None
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = reader.read(path)
    except InputError as error:
        message = str(error)
    except Exception as error:
        return f"{type(error).__name__} at {_place(error)}"
    after, peak = tracemalloc.get_traced_memory()
    took = time.process_time() - begin
    del result
    if took > SECONDS:
        return "too slow"
    allowed = reader.room + reader.factor * max(len(content), len(packed)) + 2 * (after - before)
    if peak - before > allowed:
        return f"too much memory: more than {1 << (peak - before).bit_length() - 1} bytes"
    if message is not None and len(message.splitlines()) != 1:
        return f"not one line: {_shape(message)}"
    if message is not None and len(message) > LONGEST:
        return f"a long line: {_shape(message)}"
    return ""


def _place(error: BaseException) -> str:
    """Where in the package an exception came from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f"{os.sep}fedprox{os.sep}" in f.filename] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}"


def _shape(message: str) -> str:
    """A message without what differs from one input to another."""
    return re.sub(r"[^a-z ]+", "#", message)[:60]


NUMBERS = (0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1)
"""Numbers that a file may announce."""


def mutated(draw: random.Random, content: bytes, words: Sequence[bytes]) -> bytes:
    """A content with some of its parts repeated, replaced, moved or cut off."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        content = draw.choice(_CHANGES)(draw, content, words)
    return content


def _span(draw: random.Random, content: bytes) -> tuple[int, int]:
    begin = draw.randint(0, len(content))
    return begin, min(begin + draw.choice((1, 2, 4, 8, 16, 64, 512)), len(content))


def _repeat(draw: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    begin, end = _span(draw, content)
    piece = content[begin:end]
    times = min(1 << draw.randint(0, 16), MOST // max(len(piece), 1))
    return content[:begin] + piece * times + content[end:]


def _move(draw: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    begin, end = _span(draw, content)
    place = draw.randint(0, len(content))
    return content[:place] + content[begin:end] + content[place:]


def _cut(draw: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    begin, end = _span(draw, content)
    return content[:begin] + (content[end:] if draw.random() < 0.8 else b"")


def _change(draw: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    begin, end = _span(draw, content)
    return content[:begin] + draw.randbytes(end - begin) + content[end:]


def _field(draw: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    """Another binary number."""
    size = draw.choice((1, 2, 4, 8))
    number = draw.choice(NUMBERS) % (1 << 8 * size)
    begin = draw.randint(0, len(content))
    field = number.to_bytes(size, draw.choice(("big", "little")))
    return content[:begin] + field + content[begin + size :]


def _digits(draw: random.Random, content: bytes, words: Sequence[bytes]) -> bytes:
    """Another number in a text."""
    places = list(re.finditer(rb"-?\d+(\.\d+)?", content))
    if not places:
        return _word(draw, content, words)
    place = draw.choice(places)
    number = draw.choice(NUMBERS) * draw.choice((1, 1, -1)) if draw.random() < 0.9 else 10**5000
    text = b"9" * 5000 if number == 10**5000 else str(number).encode()
    return content[: place.start()] + text + content[place.end() :]


def _word(draw: random.Random, content: bytes, words: Sequence[bytes]) -> bytes:
    begin, end = _span(draw, content)
    word = draw.choice(words) if words else draw.randbytes(2)
    return content[:begin] + word + content[end if draw.random() < 0.5 else begin :]


_CHANGES = (_repeat, _move, _cut, _change, _field, _digits, _word)


def fuzz(name: str, inputs: int, seed: int, kept: Path) -> None:
    """Fuzz one reader, and end the process: with status 1 if an input broke the rule."""
    import atheris

    with atheris.instrument_imports(include=["fedprox", "tarfile", "tomllib"]):
        from tests.readers import READERS
    reader = READERS[name]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    broken: set[str] = set()
    count, begin = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_in_memory()) as home:
        corpus, folder = Path(home) / "corpus", Path(home) / "read"
        for made in (corpus, (folder / reader.file).parent):
            made.mkdir(parents=True)
        for i, content in enumerate(reader.seeds):
            (corpus / str(i)).write_bytes(content)
        tracemalloc.start()

        def one(content: bytes) -> None:
            nonlocal count
            if count == inputs:
                rate = count / (time.monotonic() - begin)
                print(f"{name}: {count} inputs, {rate:.0f} a second, {len(broken)} broken")
                sys.stdout.flush()
                os._exit(bool(broken))
            count += 1
            wrong = verdict(reader, content, folder)
            if wrong and wrong not in broken:
                broken.add(wrong)
                kept.mkdir(parents=True, exist_ok=True)
                (kept / re.sub(r"\W+", "-", wrong)).write_bytes(content)
                print(f"{name}: input {count}: {wrong}", flush=True)

        def mutate(content: bytes, size: int, seed: int) -> bytes:
            draw = random.Random(seed)
            if draw.random() < 0.5:
                return bytes(atheris.Mutate(content, size))
            return mutated(draw, content, reader.words)[:size]

        kept.parent.mkdir(parents=True, exist_ok=True)
        most = max(MOST, 2 * max(map(len, reader.seeds)))
        flags = [f"-seed={seed}", f"-max_len={most}", "-timeout=120", "-rss_limit_mb=0"]
        flags += ["-verbosity=0", f"-artifact_prefix={kept}-", str(corpus)]
        atheris.Setup(["fuzz", *flags], one, custom_mutator=mutate)
        atheris.Fuzz()


def _in_memory() -> Path | None:
    """A folder that lies in memory, where there is one: most of the time goes to writing files."""
    folder = Path("/dev/shm")
    return folder if os.access(folder, os.W_OK) else None


def main() -> None:
    """Fuzz the readers that are named, or all, each in a process of its own, one to a core."""
    parser = argparse.ArgumentParser(description="Fuzz the readers of files.")
    parser.add_argument("readers", nargs="*", metavar="READER", help="which; all if left out")
    parser.add_argument("--inputs", type=int, default=100_000, help="of each; default 100,000")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations; default 1")
    parser.add_argument("--kept", type=Path, default=Path("fuzz"), help="folder for what is found")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        fuzz(asked.readers[0], asked.inputs, asked.seed, asked.kept / asked.readers[0])
    from tests.readers import READERS

    def failed(name: str) -> bool:
        own = ["--here", f"--inputs={asked.inputs}", f"--seed={asked.seed}", f"--kept={asked.kept}"]
        command = [sys.executable, "-m", "tests.fuzz", name, *own]
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode not in (0, 1):  # it ended itself: a hang, or a crash of the interpreter
            print(f"{name}: ended with {done.returncode}\n{done.stderr[-2000:]}", flush=True)
        return done.returncode != 0

    names = asked.readers or list(READERS)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        broken = list(itertools.compress(names, pool.map(failed, names)))
    raise SystemExit(f"broken: {', '.join(broken)}" if broken else 0)


if __name__ == "__main__":
    main()
