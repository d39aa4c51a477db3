"""Pages are made from files, and what README and pages say of them is so."""

import re
from pathlib import Path

import pytest

from experiments import ITEMS
from experiments.engine.results import encoded, read_results
from experiments.engine.table import judged_in, markdown
from experiments.printed import PRINTED
from fedprox_docs import papers

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "papers"
MADE = ("fedprox", "fedprox-draft", "feddyn", "fedavg", "models")
"""The pages whose tables are all made from files."""


def written(page: str) -> str:
    return (PAGES / f"{page}.md").read_text(encoding="utf-8")


def test_every_table_of_a_file_is_on_a_page_once() -> None:
    shown: list[tuple[str, int]] = []
    for page in MADE:
        for name, first, last in papers.MARK.findall(written(page)):
            shown += [(name, k) for k in range(int(first), int(last or first) + 1)]
    stored = [
        (name, k) for name in papers.names() for k in range(len(read_results(name)["blocks"]))
    ]
    assert sorted(shown) == sorted(stored)


@pytest.mark.parametrize("page", MADE)
def test_a_page_has_no_table_but_those_of_files(page: str) -> None:
    assert not [line for line in written(page).splitlines() if line.startswith("|")]
    rows = [line for line in papers.filled(written(page)).splitlines() if line.startswith("|")]
    assert len(rows) > 10
    assert "<!--" not in papers.filled(written(page))


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


def test_counts_are_said_as_they_are() -> None:
    both = ("fedprox", "fedprox-draft")
    counts, items = papers.counts(*both), papers.judged_items(*both)
    assert sum(counts.values()) == 170
    hold, noise, not_hold = (counts[v] for v in ("holds", "within noise", "does not hold"))
    said = f"{hold} hold, {noise} are within noise,? (and )?{not_hold} do not hold"
    for page in ("README.md", "docs/papers/index.md", "docs/papers/fedprox.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert re.search(f"170 comparisons.{{0,120}}{said}", text), (page, said)
        assert "about one verdict is expected by chance" in text
    assert f"the {items} items with verdicts" in " ".join(written("index").split())
    assert round(0.05 * items) == 1
    page = " ".join(written("what-does-not-hold").split())
    assert f"| 170 comparisons | {not_hold} | {noise} |" in page
    assert f"Another {noise} lie within noise" in page
    assert papers.does_not_hold().count("\n") == 1 + not_hold


def test_numbers_that_are_far_off_are_listed_with_their_factor() -> None:
    listed = papers.far_off("feddyn").splitlines()[2:]
    marked = [row for row in papers.filled(written("feddyn")).splitlines() if " times**" in row]
    assert len(listed) == len(marked) > 30
    assert (
        "| `feddyn/table-6` | Homogeneous | loss 0.0603 | FedAvg 136, 266 ± 13 (2 times); "
        in "\n".join(listed)
    )


NAME = re.compile(r"^\| `((?:fedavg|feddyn|fedprox|fedprox-draft|models)/[a-z0-9-]+)`")


def test_every_item_has_a_row_that_says_what_was_run() -> None:
    text = papers.filled(written("every-item"))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [row for row in rows if not all(c.strip() for c in row.strip("|").split("|"))] == []
    found = {name[1]: row for row in rows if (name := NAME.match(row))}
    assert sorted(found) == sorted(ITEMS | PRINTED)
    for key, end in (
        ("fedavg/figure-1", "3 holds"),
        ("fedavg/table-2-whole", "not run: the paper's numbers and an experiment"),
        ("fedavg/figure-9", "run, reduced"),
        ("feddyn/table-6", "run"),
    ):
        assert found[key].endswith(f"| {end} |")
