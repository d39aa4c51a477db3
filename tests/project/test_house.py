"""The house: imports run one way, and only the catalogue looks at everything."""

import ast
import os
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fedprox"

FLOORS = [
    {"errors", "output", "signals"},
    {"bar", "user_code", "precision"},
    {"metrics"},
    {"files", "privacy"},
    {"features", "streams"},
    {"federation"},
    {"model"},
    {"subproblem", "frozen", "datasets", "models"},
    {"solver", "diagnostics"},
    {"algorithms"},
    {"simulation"},
    {"diagnose"},
    {"report"},
    {"logs"},
    {"experiment"},
    {"deployment"},
    {"runner"},
    {"reproduce"},
    {"papers"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
"""From the ground up: a part imports parts of lower floors and of itself."""

ROOMS = [
    {"devices", "results"},
    {"config"},
    {"planning"},
    {"storage"},
    {"compiled"},
    {"loop"},
    {"simulate"},
]
"""Likewise the rooms of `simulation`."""

PAPERS = [{"common", "quirks"}, {"fedavg", "fedprox", "feddyn", "models"}]
"""Likewise the papers, none of which imports another."""


def imports(path: Path, package: str) -> set[str]:
    """The parts of a package that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            found.add(str(node.module).removeprefix(f"{package}.").split(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize(
    ("package", "floors"),
    [("fedprox", FLOORS), ("fedprox.simulation", ROOMS), ("fedprox.papers", PAPERS)],
)
def test_imports_run_downwards_only(package: str, floors: list[set[str]]) -> None:
    floor = {name: i for i, names in enumerate(floors) for name in names}
    assert len(floor) == sum(map(len, floors)), "a part is on two floors"
    folder = SOURCE.parent.joinpath(*package.split("."))
    for path in folder.rglob("*.py"):
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for other in imports(path, package) - {own}:
            assert floor[other] < floor[own], f"{path} imports {other}"


def test_there_are_no_import_cycles() -> None:
    modules = {
        ".".join(("fedprox", *path.relative_to(SOURCE).with_suffix("").parts)): path
        for path in SOURCE.rglob("*.py")
    }
    edges = {
        name: {
            str(node.module)
            for node in ast.walk(ast.parse(path.read_text()))
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
