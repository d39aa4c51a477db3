"""The house: imports run one way, and the package does not know the experiments."""

import ast
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedprox"

FLOORS = [
    {"errors"},
    {"terminal"},
    {"jax_internals"},
    {"user_code", "precision"},
    {"same"},
    {"losses"},
    {"metrics"},
    {"measures"},
    {"files"},
    {"columns", "features", "streams"},
    {"tables"},
    {"table_layout"},
    {"federation"},
    {"model"},
    {"subproblem", "datasets", "models"},
    {"solver", "devices"},
    {"algorithms"},
    {"parts", "results"},
    {"protocol"},
    {"engine"},
    {"epsilon", "released"},
    {"loop"},
    {"diagnostics"},
    {"report"},
    {"studies"},
    {"logs"},
    {"experiment"},
    {"deployment"},
    {"runner", "predictions"},
    {"exports"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
"""From the ground up: a part imports parts of lower floors and of itself."""

ROOMS = [
    {"planning"},
    {"storage"},
    {"compiled"},
]
"""Likewise the rooms of `engine`."""

EXPERIMENTS = [
    {"engine", "quirks", "printed"},
    {"common"},
    {"fedavg", "fedprox", "feddyn", "independent", "models", "studies"},
    {"ITEMS", "select"},  # the names of `experiments/__init__.py`
    {"__main__"},
]
"""Likewise the experiments: the engine knows no paper, and no paper imports another."""


@cache
def nodes(path: Path) -> list[ast.AST]:
    """The nodes of a file's program."""
    return list(ast.walk(ast.parse(path.read_text())))


def dotted(node: ast.expr) -> str:
    """An attribute with what it is of, if that is a name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imports(path: Path, package: str) -> set[str]:
    """The parts of a package that a file imports, at any depth."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            found.add(str(node.module).removeprefix(f"{package}.").split(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            found |= {alias.name for alias in node.names}
    return found - {"__version__"}  # which needs no other file


@pytest.mark.parametrize(
    ("root", "package", "floors"),
    [
        (SOURCE.parent, "fedprox", FLOORS),
        (SOURCE.parent, "fedprox.engine", ROOMS),
        (ROOT, "experiments", EXPERIMENTS),
    ],
)
def test_imports_run_downwards_only(root: Path, package: str, floors: list[set[str]]) -> None:
    floor = {name: i for i, names in enumerate(floors) for name in names}
    assert len(floor) == sum(map(len, floors)), "a part is on two floors"
    folder = root.joinpath(*package.split("."))
    for path in folder.rglob("*.py"):
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for other in imports(path, package) - {own}:
            assert floor[other] < floor[own], f"{path} imports {other}"


def test_the_package_does_not_import_the_experiments() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in nodes(path):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.partition(".")[0] == "experiments" for name in names), path


CHANGING = ("jax._src", "jax.core", "jax.experimental", "jax.extend", "jax.interpreters")
"""Modules of JAX that change from one version to the next."""

OF_PROGRAMS = {"eqns", "jaxpr", "invars", "outvars", "make_jaxpr", "memory_analysis", "primitive"}
"""Attributes of traced programs."""

READERS = {
    "jax_internals": OF_PROGRAMS,
    "model/convolution": {"invars", "outvars", "make_jaxpr", "primitive"},
    "parts/privacy/examples": {"invars", "outvars", "make_jaxpr", "primitive"},
}
"""The files that know some of them; what they fail at is left out, see `attempt`."""


def test_one_file_knows_what_changes_in_jax() -> None:
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).with_suffix("").as_posix()
        allowed = READERS.get(part, set())
        for node in nodes(path):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names += [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.Attribute):
                names.append(dotted(node))
                assert node.attr not in OF_PROGRAMS - allowed, f"{path} reads {names[0]}"
            for name in names:
                changes = name.startswith(CHANGING) and part != "jax_internals"
                assert not changes, f"{path} uses {name}"


def test_there_are_no_import_cycles() -> None:
    modules = {
        ".".join(("fedprox", *path.relative_to(SOURCE).with_suffix("").parts)): path
        for path in SOURCE.rglob("*.py")
    }
    edges = {
        name: {
            str(node.module)
            for node in nodes(path)
            if isinstance(node, ast.ImportFrom) and node.module in modules
        }
        for name, path in modules.items()
    }
    while edges:
        leaves = {name for name, targets in edges.items() if not targets & edges.keys()}
        assert leaves, f"a cycle among {sorted(edges)}"
        edges = {name: targets for name, targets in edges.items() if name not in leaves}


def test_tests_do_not_see_the_users_data_folder() -> None:
    assert "FEDPROX_DATA" not in os.environ


FOLDERS = {
    ".ci",
    ".github",
    "benchmarks",
    "deploy",
    "docs",
    "examples",
    "experiments",
    "src",
    "tests",
}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no repository")
def test_the_repository_holds_nothing_that_programs_left() -> None:
    """Such as the temporary files of tests, which hold keys."""
    # a checkout may be of another user
    command = ["git", "-c", "safe.directory=*", "ls-files"]
    held = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    folders = {path.partition("/")[0] for path in held.stdout.splitlines() if "/" in path}
    assert folders == FOLDERS
