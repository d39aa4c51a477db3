"""The papers' results: `<!-- results: PAPER/ITEM 0-2 -->` stands for tables of a results file.

They are the file's blocks 0 to 2, with the verdicts of all of the item's claims together.
`<!-- does not hold -->` stands for the comparisons of FedProx and its draft that do not,
`<!-- far off: PAPER -->` for the cells of a paper's tables that ours are far from, and
`<!-- items: PAPER -->` for a list of a paper's items.
"""

import re
from functools import cache

from experiments import ITEMS
from experiments.engine.item import Item
from experiments.engine.results import FOLDER, read_results
from experiments.engine.table import evidence_in, judged_in, markdown, tally
from experiments.printed import PRINTED

MARK = re.compile(r"<!-- results: (\S+) (\d+)(?:-(\d+))? -->")
ITEMS_MARK = re.compile(r"<!-- items: (\S+) -->")
FAR_OFF = re.compile(r"<!-- far off: (\S+) -->")
DOES_NOT_HOLD = "<!-- does not hold -->"


def names() -> list[str]:
    """The items with results, by paper."""
    return sorted(
        path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.json")
    )


@cache
def _blocks(name: str) -> list[str]:
    return markdown(read_results(name)["blocks"])


def filled(source: str) -> str:
    """A page with its tables."""

    def tables(found: re.Match[str]) -> str:
        name, first, last = found.groups()
        return "\n\n".join(
            one.rstrip() for one in _blocks(name)[int(first) : int(last or first) + 1]
        )

    source = MARK.sub(tables, source).replace(DOES_NOT_HOLD, does_not_hold())
    source = FAR_OFF.sub(lambda found: far_off(found[1]), source)
    return ITEMS_MARK.sub(lambda found: items_of(found[1]), source)


def far_off(paper: str) -> str:
    """A table of the cells whose numbers of rounds or models are far from the paper's."""
    rows = [["item", "row", "target", "the paper, ours (factor)"], ["---"] * 4]
    for name in names():
        if name.partition("/")[0] != paper:
            continue
        for block in read_results(name)["blocks"]:
            for row in block.get("rows", ()):
                cells = dict(zip(block["header"], row, strict=True))
                said = []
                for column, factor in re.findall(
                    r"\*\*([^*]+?): ([^*:]+ times)\*\*", " ".join(row)
                ):
                    paper_number, ours = (
                        part.strip().partition(" ")[2].partition(" (")[0]
                        for part in cells[column].split(";")[:2]
                    )
                    said.append(f"{column} {paper_number}, {ours} ({factor})")
                if said:
                    rows.append([f"`{name}`", row[0], row[1], "; ".join(said)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def items_of(paper: str) -> str:
    """A table of a paper's items: whether each was run, and the verdicts on its claims."""
    shown = {
        key: results
        for name in names()
        for results in [read_results(name)]
        for key in results.get("items", [name])
    }
    rows = [["item", "what", "our results"], ["---"] * 3]
    for key, item in (ITEMS | PRINTED).items():
        if key.partition("/")[0] != paper:
            continue
        if key in shown:
            each = [one for group in judged_in(shown[key]["blocks"]) for one in group]
            state = (tally(each) or "run") + ", reduced" * (shown[key]["scale"] == "short")
        elif isinstance(item, Item):
            state = f"not run: {item.seconds['paper'] / 3600:,.1f} h"
        else:
            state = "not run: the paper's numbers and an experiment"
        rows.append([f"`{key}`", item.title, state])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def counts(*papers: str) -> dict[str, int]:
    """How often the comparisons of some papers have each verdict.

    >>> list(counts("fedavg"))
    ['holds']
    """
    found: dict[str, int] = {}
    for name in names():
        if name.partition("/")[0] in papers:
            for group in judged_in(read_results(name)["blocks"]):
                for verdict in group:
                    found[verdict] = found.get(verdict, 0) + 1
    return found


def judged_items(*papers: str) -> int:
    """How many items of some papers have verdicts."""
    each = (name for name in names() if name.partition("/")[0] in papers)
    return sum(any(judged_in(read_results(name)["blocks"])) for name in each)


def does_not_hold() -> str:
    """A table of the comparisons of FedProx and its draft that do not hold."""
    header = ["item", "the paper's claim", "data", "larger, says the paper", "smaller"]
    rows = [[*header, "difference", "p"], ["---"] * 7]
    for name in names():
        if not name.startswith("fedprox"):
            continue
        blocks = read_results(name)["blocks"]
        claims = [block for block in blocks if "claim" in block]
        for claim, verdicts in zip(claims, judged_in(blocks), strict=True):
            for one, verdict in zip(claim["comparisons"], verdicts, strict=True):
                if verdict == "does not hold":
                    evidence = evidence_in(claim, one)
                    difference = one["difference"].partition(" [")[0]
                    p = f"{evidence.p:.2g}" if evidence else ""
                    where = [f"`{name}`", claim["claim"], one["where"]]
                    rows.append([*where, *one["sides"], difference, p])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
