"""Tables of the report, and their files: comma-separated values and LaTeX."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "∞": r"$\infty$",
    "<": r"$<$",
    ">": r"$>$",
    **{special: f"\\{special}" for special in "&%$#_{}"},
}
"""How LaTeX writes characters that it would read as commands, or that a font may lack."""


def latex(text: str) -> str:
    r"""A text for LaTeX.

    >>> print(latex("90 % of FedAvg_1 ± 0.1"))
    90 \% of FedAvg\_1 $\pm$ 0.1
    """
    return "".join(LATEX.get(character, character) for character in text)


def latex_table(caption: str, columns: str, header: Sequence[str], rows: Iterable[str]) -> str:
    r"""A `table` environment with the rules of the package booktabs; header and rows are LaTeX."""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex(caption)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *header,
        r"\midrule",
        *(rf"{row} \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def csv_of(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows with the same keys as comma-separated values."""
    return csv_text(list(rows[0]), [list(row.values()) for row in rows])


def csv_text(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Rows as comma-separated values.

    >>> csv_text(["a", "b"], [[1, "x,y"]])
    'a,b\r\n1,"x,y"\r\n'
    """
    lines = io.StringIO(newline="")
    writer = csv.writer(lines)
    writer.writerow(headers)
    writer.writerows(rows)
    return lines.getvalue()


class ReportTable(NamedTuple):
    """A table of the report, and its files where these are not made of its cells."""

    caption: str
    headers: Sequence[str]
    rows: list[list[str]]
    holds: Literal["numbers", "words"] = "numbers"
    csv: str = ""
    tex: str = ""

    @property
    def files(self) -> dict[str, str]:
        """What the buttons of the table save, by the file's ending."""
        columns = "l" + ("r" if self.holds == "numbers" else "l") * (len(self.headers) - 1)
        header, *rows = (" & ".join(map(latex, row)) for row in (self.headers, *self.rows))
        return {
            "csv": self.csv or csv_text(self.headers, self.rows),
            "tex": self.tex or latex_table(self.caption, columns, [rf"{header} \\"], rows),
        }
