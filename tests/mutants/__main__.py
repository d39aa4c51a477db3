"""Change the library in one place at a time, and see which changes no test notices.

    python -m tests.mutants RESULTS [FILE ...] [--sample 0.2] [--seconds 60] [--survivors]
                            [--direct]

FILE is a module such as `parts/privacy/setting.py`; without one, all modules of `FILES` are taken.
It is fastest to begin with few seconds, and to try the survivors again with more. The mutants are
made in a copy of the tree. One process imports what the library imports, but not the library, and
forks for each mutant, before JAX has started its threads. The child runs the tests that reach the
changed line, the fastest first. The folder RESULTS holds what each file of tests reaches and the
verdicts, so that an interrupted campaign goes on. Several processes may share it if each has
modules of its own. `equivalent.toml` lists the mutants that change no result."""

import argparse
import hashlib
import importlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from importlib.metadata import entry_points
from itertools import accumulate
from pathlib import Path
from typing import Any

from tests.mutants.changes import Mutant, mutants
from tests.mutants.running import NO_TESTS, Exchange, Reach, Session, run_tests

ROOT, PACKAGE = Path(__file__).parents[2], "src/fedprox"
NOT_COPIED = ".*", "__pycache__", "_build", "runs", "tmp"
NO_TESTS_OF = "docs", "experiments", "mutants", "project", "terminal"
"""Folders of tests that read pages, sources and terminals, and not what the library computes."""

FILES = "algorithms/*.py", "deployment/*.py", "engine/**/*.py", "parts/**/*.py"
"""The modules that are changed."""

DIRECT = {
    "deployment/combine.py": ["test_combine.py", "test_answers.py"],
    "deployment/policy.py": ["test_policy_limits.py"],
    "deployment/payload.py": ["test_answers.py"],
    "deployment/kept.py": ["test_states.py"],
}
"""Tests beside each other of modules that neither compile nor keep results: in one process, they
try all mutants of functions, before others are run."""

FIRST = 1.0
"""Processor seconds of the tests that are run first."""

QUICK = 0.05
"""Processor seconds of a test that is run on each mutant that survived before."""

Key = tuple[str, str]
"""A mutant's file and change."""


def equivalents() -> dict[Key, str]:
    """The reason for each mutant that changes no result."""
    groups = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text())["group"]
    return {(g["file"], change): g["reason"] for g in groups for change in g["changes"]}


def verdicts(results: Path) -> dict[Key, str]:
    """The last verdict on each mutant."""
    lines = results.joinpath("verdicts.jsonl").read_text().splitlines()
    return {(v["file"], v["change"]): v["verdict"] for v in map(json.loads, lines)}


def mutants_of(file: str, *, texts: bool = True) -> list[Mutant]:
    return list(mutants(file, (ROOT / PACKAGE / file).read_text(), texts=texts))


def reach_of(results: Path) -> dict[str, Any]:
    """Which lines each test reaches, measured for files that changed."""
    # the package's own names have their examples in their modules
    examples = set(ROOT.glob(f"{PACKAGE}/**/*.py")) - {ROOT / PACKAGE / "__init__.py"}
    stored = {}
    for file in [*ROOT.glob("tests/**/test_*.py"), *examples]:
        name = str(file.relative_to(ROOT))
        if name.split("/")[1] not in NO_TESTS_OF:
            digest = hashlib.sha256(name.encode() + file.read_bytes()).hexdigest()
            stored[name] = results / f"reach/{digest[:16]}.json"
    missing = sorted(name for name, file in stored.items() if not file.exists())
    # a child for each few files, so that an interrupted measurement goes on
    for start in range(0, len(missing), 20):
        few = missing[start : start + 20]
        print(f"measuring what {len(missing) - start} files of tests reach", flush=True)
        found = results / f"reach-{os.getpid()}.json"
        plugins = [Session(results / "programs"), Reach(PACKAGE, found)]
        log = found.with_suffix(".log")
        code = run_tests(few, plugins, 3600, log)
        if code not in (0, 1, NO_TESTS):
            sys.exit(log.read_text(errors="replace")[-3000:])
        tests = json.loads(found.read_text())
        found.unlink()
        for name in few:
            of_file = {t: reach for t, reach in tests.items() if t.partition("::")[0] == name}
            stored[name].parent.mkdir(exist_ok=True)
            stored[name].write_text(json.dumps(of_file))
    return {t: r for file in stored.values() for t, r in json.loads(file.read_text()).items()}


def lines_of(test: dict[str, Any]) -> int:
    """How many lines a test reaches."""
    return sum(map(len, test["lines"].values()))


def chosen(
    mutant: Mutant, reach: dict[str, Any], most: float, *, again: bool
) -> tuple[list[list[str]], float]:
    """The tests that reach a mutant's lines, of at most so many seconds, and those of all.

    They are in two parts, so that the files of the second are not even imported if the first kills
    the mutant. The fastest tests come first. One that is tried again meets those first that reach
    least, and all quick tests at the end.
    """
    reached = {name: set(test["lines"].get(mutant.file, ())) for name, test in reach.items()}
    names = [n for n, lines in reached.items() if lines.intersection(mutant.lines)]
    # lines that run when the module is imported were not traced
    names = names or [n for n, lines in reached.items() if lines] or list(reach)
    # tests that reach little else are made for these lines
    names.sort(key=lambda name: lines_of(reach[name]) if again else reach[name]["seconds"])
    total = list(accumulate(reach[name]["seconds"] for name in names))
    first, count = bisect_right(total, min(FIRST, most)), bisect_right(total, most)
    # methods that a test has as its parameters are made when it is collected, which is not traced
    quick = [n for n in reach if again and reach[n]["seconds"] < QUICK and n not in names[:count]]
    parts = [names[:first], names[first:count] + quick]
    seconds = sum(reach[name]["seconds"] for part in parts for name in part)
    return [part for part in parts if part], seconds


def judged(mutant: Mutant, parts: list[list[str]], seconds: float, results: Path) -> dict[str, Any]:
    """The verdict of the tests that were chosen on a mutant, as it is stored."""
    path, log, start = ROOT / PACKAGE / mutant.file, ROOT / "mutant.log", time.monotonic()
    before, code = path.read_text(), 0
    log.touch()
    path.write_text(mutant.source)
    try:
        for part in parts:
            of = list(dict.fromkeys(name.partition("::")[0] for name in part))
            code = run_tests(of, [Session(results / "programs", part)], seconds, log, "-x")
            code = 0 if code == NO_TESTS else code
            if code:
                break
    finally:
        path.write_text(before)
    text = log.read_text(errors="replace")
    first = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    if "ImportError while loading conftest" in text:
        code = 1  # the library cannot even be imported
    if code > 2:
        print(text[-3000:], file=sys.stderr)
    return {
        "file": mutant.file,
        "change": mutant.change,
        "verdict": "unknown" if code > 2 else "killed" if code else "survived",
        "test": first[1] if first else f"exit code {code}",
        "seconds": round(time.monotonic() - start, 1),
    }


def tried_directly(file: str, due: list[Mutant], results: Path) -> None:
    """Store which mutants the module's own tests kill; those of functions in one process."""
    folder = file.partition("/")[0]
    tests = [f"tests/{folder}/{name}" for name in DIRECT[file]]
    found, log = results / f"direct-{os.getpid()}.jsonl", ROOT / "mutant.log"
    found.touch()
    log.touch()
    module = f"fedprox.{file.removesuffix('.py').replace('/', '.')}"
    plugins: list[object] = [Session(results / "programs"), Exchange(module, due, found)]
    code = run_tests(tests, plugins, 10.0 * len(due), log)
    if code not in (0, 1):
        sys.exit(log.read_text(errors="replace")[-3000:])
    failed = dict(map(json.loads, found.read_text().splitlines()))
    found.unlink()
    for mutant in due:
        if mutant.change in failed:
            test = failed[mutant.change] or "exit code 0"
            verdict = "killed" if failed[mutant.change] else "survived"
            key = {"file": file, "change": mutant.change}
            store(results, {**key, "verdict": verdict, "test": test, "seconds": 0.0})
        else:
            store(results, judged(mutant, [tests], 10.0, results))


def store(results: Path, verdict: dict[str, Any]) -> None:
    with results.joinpath("verdicts.jsonl").open("a") as out:
        out.write(json.dumps(verdict) + "\n")
    if verdict["verdict"] != "killed":
        print(f"{verdict['verdict']}: {verdict['file']}: {verdict['change']}", flush=True)


def import_what_the_library_imports() -> None:
    """Import it before forks; each child imports the library itself, changed."""
    code = "import sys, fedprox; print(*(m for m in sys.modules if m.split('.')[0] != 'fedprox'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    for name in [*found.stdout.split(), "hypothesis", "scipy.stats", "dp_accounting"]:
        with suppress(ImportError):
            importlib.import_module(name)
    for plugin in entry_points(group="pytest11"):
        plugin.load()


def campaign(results: Path, files: list[str], given: argparse.Namespace) -> None:
    """Try the mutants that have no verdict yet, or those that survived before."""
    import_what_the_library_imports()
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called")  # JAX has no threads yet
    # two mutants of one second and one length would be taken for each other
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    known, equivalent, reach = verdicts(results), equivalents(), dict[str, Any]()
    for file in files:
        path = ROOT / PACKAGE / file
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        due = []
        for mutant in mutants_of(file):
            key = mutant.file, mutant.change
            drawn = random.Random(" ".join(key)).random() < given.sample
            wanted = known.get(key) in (("survived", "unknown") if given.survivors else (None,))
            if wanted and drawn and key not in equivalent:
                due.append(mutant)
        if file in DIRECT:
            tried_directly(file, due, results)
            killed = {key for key, verdict in verdicts(results).items() if verdict == "killed"}
            due = [mutant for mutant in due if (mutant.file, mutant.change) not in killed]
        if not given.direct:
            reach = reach or reach_of(results)
            for mutant in due:
                tests = chosen(mutant, reach, given.seconds, again=given.survivors)
                store(results, judged(mutant, *tests, results))


def summary(results: Path, files: list[str]) -> None:
    """Print the counts of each module."""
    known, equivalent = verdicts(results), equivalents()
    print(f"{'module':28}{'mutants':>9}{'tried':>9}{'equivalent':>12}{'killed':>9}{'survived':>9}")
    for file in files:
        keys = {(mutant.file, mutant.change) for mutant in mutants_of(file, texts=False)}
        for _, change in sorted(k for k in equivalent.keys() - keys if k[0] == file):
            print(f"equivalent.toml: {file} has no mutant {change!r}")
        same = len(keys & equivalent.keys())
        counts = Counter(known.get(key, "") for key in keys - equivalent.keys())
        survived = counts["survived"] + counts["unknown"]
        tried = same + counts["killed"] + survived
        print(f"{file:28}{len(keys):9}{tried:9}{same:12}{counts['killed']:9}{survived:9}")


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("results", type=Path, help="folder of what was found")
    parser.add_argument("files", nargs="*", metavar="FILE", help="modules; all if none is given")
    parser.add_argument("--sample", type=float, default=1.0, help="share of the mutants to try")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests of one mutant")
    parser.add_argument("--survivors", action="store_true", help="try those that survived again")
    parser.add_argument("--direct", action="store_true", help="only by tests in one process")
    parser.add_argument("--summary", action="store_true", help="print the counts and end")
    given = parser.parse_args()
    package, results = ROOT / PACKAGE, given.results.absolute()
    found = sorted(str(path.relative_to(package)) for g in FILES for path in package.glob(g))
    files = given.files or found
    results.mkdir(parents=True, exist_ok=True)
    results.joinpath("verdicts.jsonl").touch()
    if given.summary:
        summary(results, files)
    elif "FEDPROX_MUTANTS" in os.environ:
        campaign(results, files, given)
        summary(results, files)
    else:
        with tempfile.TemporaryDirectory() as folder:
            leave = shutil.ignore_patterns(*NOT_COPIED)
            shutil.copytree(ROOT, folder, ignore=leave, dirs_exist_ok=True)
            own = {"FEDPROX_MUTANTS": "1", "PYTHONPATH": f"{folder}/src", "JAX_PLATFORMS": "cpu"}
            command = [sys.executable, "-m", "tests.mutants", str(results), *files]
            command += [f"--sample={given.sample}", f"--seconds={given.seconds}"]
            command += ["--survivors"] * given.survivors + ["--direct"] * given.direct
            sys.exit(subprocess.call(command, cwd=folder, env=os.environ | own))


if __name__ == "__main__":
    main()
