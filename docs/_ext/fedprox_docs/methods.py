"""The reference of the methods, from their catalogue."""

from fedprox.algorithms import ALGORITHMS


def page() -> str:
    """The methods' functions, as Markdown."""
    lines = ["```{eval-rst}", ".. currentmodule:: fedprox", "", ".. autosummary::", ""]
    lines += [f"   {name}" for name in ALGORITHMS]
    lines += [line for name in ALGORITHMS for line in ("", f".. autofunction:: {name}")]
    return "\n".join([*lines, "```"])
