"""The house: imports run one way, and only the catalogue looks at everything."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fedprox"

FLOORS = [
    {"errors", "output", "signals"},
    {"bar", "user_code"},
    {"metrics"},
    {"files"},
    {"features", "streams"},
    {"federation"},
    {"model"},
    {"subproblem", "frozen", "datasets", "models"},
    {"solver", "diagnostics"},
    {"algorithms"},
    {"simulation"},
    {"diagnose"},
    {"report"},
    {"experiment"},
    {"runner"},
    {"reproduce"},
    {"papers"},
    {"cli"},
    {"__main__"},
]
"""From the ground up: a part imports parts of lower floors and of itself."""


def part(module: str) -> str:
    return module.split(".")[1]


def imports(path: Path) -> set[str]:
    """The parts of the package that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedprox."):
            found.add(part(str(node.module)))
        elif isinstance(node, ast.ImportFrom) and node.module == "fedprox":
            found |= {alias.name for alias in node.names}
    return found


def test_imports_run_downwards_only() -> None:
    floor = {name: i for i, names in enumerate(FLOORS) for name in names}
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for other in imports(path) - {own}:
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
