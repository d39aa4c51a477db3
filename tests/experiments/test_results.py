"""Pages are made from files, and what README and pages say of them is so."""

import re
from pathlib import Path

import numpy as np
import pytest

from experiments import ITEMS
from experiments.engine.figure import from_results, lines_of
from experiments.engine.results import encoded, read_results
from experiments.engine.table import judged_in, markdown
from experiments.printed import PRINTED
from fedprox_docs import papers

ROOT = Path(__file__).parents[2]
PAGES = {page.stem: page for page in (ROOT / "docs" / "papers").glob("*.md")}
MADE = (
    "fedprox",
    "fedprox-draft",
    "feddyn",
    "fedavg",
    "models",
    "independent",
    "time",
    "robust",
    "composition",
    "compression",
    "adapters",
    "normalization",
    "correlated",
)
"""The pages whose tables are all made from files."""

STUDIES = {
    *("time", "robust", "compression", "composition"),
    *("normalization", "correlated", "adapters"),
}
"""The pages of studies that no paper makes."""

SAID = {
    # by page, what the words beside made numbers say of settings and of what papers print
    "adapters": "1,248 22.6 250 384",
    "composition": "0.001 0.01 0.1 0.3 0.9 100 200",
    "compression": "",
    "correlated": "300 836",
    "differences": "100 256 5.1",
    "every-item": "2.1 3.2 5.3.3",
    "fedavg": "0.0464 0.1 0.215 1.2 100 240 60,000 600",
    "feddyn": "0.0001 0.001 0.01 0.1 0.3 0.6 0.63 1,000 1.5 10,000 100 200 500",
    "fedprox": "0.001 0.003 0.01 0.02 0.03 0.1 0.3 100 143 300 800",
    "fedprox-draft": "0.001 0.01 0.1",
    "independent": "",
    "index": "0.05",
    "models": "0.992 150 500",
    "newer": "",
    "normalization": "100",
    "robust": "1.5 200",
    "time": "0.01 0.75 100 200 3.6 500",
    "what-does-not-hold": "0.9934 1.5 3,750 4.1 5.3.3",
}
PRECISE = re.compile(r"(?<![\w.,-])(?:\d+(?:\.\d+)+|\d{1,3}(?:,\d{3})+|\d{3,})(?![\w-])|± \d")
"""Numbers of three digits or more, with a fraction or with a deviation, which a run may print."""


def written(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def words(page: str) -> str:
    """A page's words: without comments, code, formulas, targets of links, headings and years."""
    text = re.sub(r"<!--.*?-->|```.*?```", "", written(page), flags=re.DOTALL)
    text = re.sub(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|^#.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\b20[12]\d(-\d\d)*", "", text)


def test_every_table_of_a_file_is_on_a_page_once() -> None:
    shown: list[tuple[str, int]] = []
    for page in MADE:
        for kind, arguments in papers.MARK.findall(written(page)):
            if kind == "results":
                name, _, blocks = arguments.partition(" ")
                first, _, last = (blocks or f"0-{len(read_results(name)['blocks']) - 1}").partition(
                    "-"
                )
                shown += [(name, k) for k in range(int(first), int(last or first) + 1)]
    stored = [
        (name, k) for name in papers.names() for k in range(len(read_results(name)["blocks"]))
    ]
    assert sorted(shown) == sorted(stored)


def test_every_figure_of_a_page_can_be_drawn() -> None:
    shown = [
        name
        for page in PAGES.values()
        for kind, name in papers.MARK.findall(page.read_text(encoding="utf-8"))
        if kind == "figure"
    ]
    assert len(shown) == len(set(shown)) > 7
    for name in shown:
        measured = from_results(read_results(name)["curves"])
        for panel in (panel for row in ITEMS[name].panels for panel in row):
            assert all(
                np.isfinite(series.values[panel.measure]).any()
                for _, _, group in lines_of(panel, measured)
                for series in group
            )


@pytest.mark.parametrize("page", MADE)
def test_a_page_has_no_table_but_those_of_files(page: str) -> None:
    assert not [line for line in written(page).splitlines() if line.startswith("|")]
    rows = [line for line in papers.filled(written(page)).splitlines() if line.startswith("|")]
    assert len(rows) > 10


@pytest.mark.parametrize("page", sorted(PAGES))
def test_words_have_no_measured_numbers(page: str) -> None:
    assert "<!--" not in papers.filled(written(page))
    assert sorted(set(PRECISE.findall(words(page)))) == SAID[page].split()


def test_pages_stay_short() -> None:
    assert sum(len(written(page).split()) for page in PAGES.keys() - STUDIES) <= 10_000
    assert max(len(written(page).split()) for page in STUDIES) <= 1_200


def test_files_say_what_they_were_made_with() -> None:
    for name in papers.names():
        results = read_results(name)
        assert results["item"] == name
        assert results["scale"] in ("short", "paper")
        assert results["seeds"]
        assert results["made"].keys() >= {"date", "revision", "versions", "cpu"}
        path = ROOT / "experiments" / "results" / f"{name}.json"
        assert path.read_bytes() == encoded(results)


def test_verdicts_of_printed_numbers_are_those_of_the_rule() -> None:
    claim = {
        "claim": "one is larger",
        "what": "test accuracy at the last round",
        "percent": True,
        "alike": 0.02,
        "comparisons": [
            {
                "where": "here",
                "sides": ["a 1", "b 1"],
                "difference": "+1.0 ± 0.2 points",
                "mean and deviation": [1.0, 0.2],
                "seeds": 5,
                "made_with": "",
            }
        ],
    }
    # the margin of one point is 11 standard errors, 0.2 / sqrt(5)
    assert judged_in([claim]) == [["holds"]]
    assert "| a 1 | b 1 | +1.0 ± 0.2 points | 0.00036 | **holds** |" in markdown([claim])[0]
    assert "within 2 %, by our reading" in markdown([claim])[0]


def test_the_readme_says_what_files_say() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    total = papers.verdicts("fedprox fedprox-draft").partition(" comparisons ")[0]
    less = papers.counted("fedprox fedprox-draft")["does not hold"]
    assert (
        f"{total.capitalize()} comparisons that the FedProx papers make, {less} do not hold"
        in readme
    )
    headline = papers.cell("fedprox/headline 0; By the paper's rule; mean of these")
    assert f"{headline.partition(' [')[0].lstrip('+')} percentage points" in readme


def test_counts_are_read_from_tables() -> None:
    cells = papers.counts_of("feddyn/table-6")
    assert len(cells) == 16
    assert cells[2] == ("Homogeneous", "loss 0.0603", False, "FedAvg", 136, 266, True)
    assert cells[14].ours == float("inf")
    assert "| `feddyn/table-6` | 16 | 10 | 0.24 to 5.4 |" in papers.races("feddyn")
    lower = [one for one in papers.counts_of("feddyn/table-5-mnist") if one.lower]
    assert {one.target for one in lower} == {"97.2 %", "97.3 %"}
    assert papers.factors("feddyn/table-5-mnist lower") == "0.57 to 0.73"


def test_another_order_is_that_of_the_first_method() -> None:
    rows = papers.other_order("feddyn").splitlines()[2:]
    assert rows[0].endswith(
        "| FedDyn 104, SCAFFOLD 160, FedProx 210, FedAvg 330 "
        "| SCAFFOLD 138, FedDyn 152, FedProx 212, FedAvg 284 |"
    )
    assert not [row for row in rows if "table-2-mnist" in row]


def test_what_does_not_hold_is_listed() -> None:
    rows = papers.does_not_hold("fedprox fedprox-draft").splitlines()[2:]
    assert len(rows) == papers.counted("fedprox fedprox-draft")["does not hold"]


def test_every_item_has_a_row() -> None:
    page = papers.filled(written("every-item"))
    rows = {row.split("`")[1]: row for row in page.splitlines() if row.startswith("| `")}
    assert sorted(rows) == sorted(ITEMS | PRINTED)
    assert all(all(cell.strip() for cell in row.strip("|").split("|")) for row in rows.values())
    assert rows["fedavg/figure-1"].endswith("| 3 hold |")
    assert rows["fedavg/table-2-whole"].endswith("| the paper's numbers, and an experiment |")
    assert rows["fedavg/figure-9"].endswith("| run, reduced |")
    assert rows["feddyn/table-6"].endswith("| run |")


def test_tests_that_pages_name_exist() -> None:
    page = written("every-item")
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", page))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []
    exact = (ROOT / "docs" / "development" / "tests.md").read_text(encoding="utf-8")
    numbers = {
        int(n)
        for said in re.findall(r"propert(?:y|ies) ([\d, to]+)", page)
        for n in re.findall(r"\d+", said)
    }
    assert numbers <= {int(n) for n in re.findall(r"^(\d+)\. ", exact, re.MULTILINE)}


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("<!-- table: fedavg/table-4 -->", "no comment 'table'; there are results"),
        ("<!-- cell: fedprox/headline 0; no row; paper -->", "0 rows, not one"),
    ],
)
def test_comments_that_say_nothing_are_refused(comment: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        papers.filled(comment)
