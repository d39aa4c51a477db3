"""The reference and the table of the methods, from their catalogue."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import optax

from fedprox.algorithms import ALGORITHMS
from fedprox.algorithms.base import Algorithm

HEADER = ("Method", "$h_k$", "In a sentence", "Stragglers", "Client state", "Cost")


def page() -> str:
    """The methods' functions, as Markdown."""
    lines = ["```{eval-rst}", ".. currentmodule:: fedprox", "", ".. autosummary::", ""]
    names = [*ALGORITHMS, "personal_parts"]
    lines += [f"   {name}" for name in names]
    lines += [line for name in names for line in ("", f".. autofunction:: {name}")]
    return "\n".join([*lines, "```"])


def table() -> str:
    """A row for each method, as Markdown: what its functions say of themselves."""
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    for name, make in ALGORITHMS.items():
        method, sentence = example(make), first_line(make).partition(": ")[2]
        kept = "" if method.pooled else "refused" if method.everyone else f"{method.stragglers}"
        cells = (
            f"{{func}}`~fedprox.{name}`",
            f"`{problem_of(method)}`".replace("|", "\\|"),
            sentence[:1].upper() + sentence[1:],
            {"keep": "kept", "drop": "dropped"}.get(kept, kept),
            "yes" if method.client.state is not None else "",
            f"{method.communication:g}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def fixed() -> str:
    """A row for each method whose theory fixes a factor, as Markdown."""
    columns = ("server", "stragglers", "average")
    lines = ["| Method | Server rule | Stragglers | Average |", "|---|---|---|---|"]
    for name, make in ALGORITHMS.items():
        method = example(make)
        if method.fixed and name not in ("fedopt", "fedexp"):
            reasons = [method.fixed.get(column, "") for column in columns]
            lines.append(f"| {' | '.join((f'{{func}}`~fedprox.{name}`', *reasons))} |")
    return "\n".join(lines)


def example(make: Callable[..., Algorithm]) -> Algorithm:
    """A method with some values of what it needs."""
    needed = [p.name for p in inspect.signature(make).parameters.values() if p.default is p.empty]
    special: dict[str, Any] = {"optimizer": optax.sgd, "parts": ["head"], "k": 2}
    return make(**{name: special.get(name, 0.5) for name in needed})


def first_line(function: Callable[..., Any]) -> str:
    """The first line of a docstring."""
    return str(function.__doc__).splitlines()[0]


def problem_of(method: Algorithm) -> str:
    """The local problem, as the docstring of its function has it.

    >>> from fedprox.algorithms import fedprox
    >>> problem_of(fedprox(mu=1.0))
    'F_k(w) + (mu / 2) ||w - w^t||^2'
    """
    line = re.sub(r"^(Equation \d+: )?(h_k\(w\) = )?", "", first_line(method.subproblem))
    return line.rpartition(", from ")[0]
