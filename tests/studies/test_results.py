"""Tables, differences and sentences of studies whose numbers are given."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import fedprox as fp
from fedprox.report.table import LATEX, latex
from fedprox.studies.run import best_label
from tests.studies.made_up import outcome, run, study

FIVE = {"FedAvg": [0.50, 0.52, 0.49, 0.51, 0.53], "FedProx": [0.54, 0.55, 0.52, 0.53, 0.57]}


def test_differences_are_paired_by_seed() -> None:
    (found,) = study(FIVE).differences()
    differences = [b - a for a, b in zip(*FIVE.values(), strict=True)]
    known = stats.ttest_rel(FIVE["FedProx"], FIVE["FedAvg"])
    low, high = known.confidence_interval(0.95)
    assert (found.method, found.other, found.seeds) == ("FedProx", "FedAvg", 5)
    assert found.difference == pytest.approx(sum(differences) / 5)
    assert (found.low, found.high, found.p) == pytest.approx((low, high, known.pvalue))
    assert found.significant
    # the order of runs does not matter, seeds do
    cells = [outcome(FIVE["FedAvg"]), outcome(FIVE["FedProx"], "FedProx")]
    cells[1].runs.reverse()
    assert fp.Study(cells).differences() == [found]


def test_holm_corrects_for_all_comparisons_of_a_call() -> None:
    three = study({**FIVE, "FedDyn": [0.54, 0.54, 0.53, 0.53, 0.56]})
    alone = study(FIVE).differences()[0].p
    all_pairs = {(d.method, d.other): d for d in three.differences()}
    assert len(all_pairs) == 3
    to_one = {(d.method, d.other): d for d in three.differences(against="FedAvg")}
    assert list(to_one) == [("FedProx", "FedAvg"), ("FedDyn", "FedAvg")]
    pair = ("FedProx", "FedAvg")
    assert alone < to_one[pair].p < all_pairs[pair].p <= 3 * alone * (1 + 1e-9)
    assert all_pairs[pair].low < to_one[pair].low < study(FIVE).differences()[0].low
    assert "correction for 2 comparisons" in three.table(against="FedAvg").caption


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=2, max_size=4))
def test_an_interval_has_zero_inside_as_p_says(accuracies: list[list[int]]) -> None:
    methods = {f"method {i}": [0.1 * each for each in of] for i, of in enumerate(accuracies)}
    for found in study(methods).differences():
        if found.low < found.high and abs(found.p - 0.05) > 1e-6:
            assert (found.low < 0 < found.high) == (not found.significant)


@pytest.mark.parametrize(
    ("accuracies", "sentence"),
    [
        (
            FIVE,
            "FedProx is best: test accuracy 3.20 points [2.16, 4.24] above FedAvg over 5 seeds "
            "(p = 0.001).",
        ),
        (
            {"FedAvg": [0.5, 0.6], "FedProx": [0.5, 0.6]},
            "No method leads: FedAvg and FedProx have the same mean test accuracy over 2 seeds.",
        ),
        (
            {"FedAvg": [0.5, 0.6, 0.7], "FedProx": [0.6, 0.5, 0.9]},
            "FedProx leads, but 3 seeds do not settle it: test accuracy 6.67 points "
            "[-31.28, 44.61] above FedAvg (p = 0.53).",
        ),
        (
            {"FedAvg": [0.5], "FedProx": [0.75]},
            "FedProx leads: test accuracy 25.00 points above FedAvg with one seed, which says "
            "nothing of other seeds.",
        ),
        (
            {"FedAvg": [0.5, 0.5], "FedProx": [0.75, 0.76]},
            "FedProx leads: test accuracy 25.50 points [19.15, 31.85] above FedAvg; 2 seeds are "
            "too few to say how surely.",
        ),
        (
            {"FedAvg": [0.5, math.nan, 0.5], "FedProx": [0.4, 0.4, 0.4]},
            "FedProx leads: FedAvg has runs that diverged over 3 seeds (p = 1).",
        ),
        (
            {"FedAvg": [math.nan] * 3, "FedProx": [math.nan] * 3},
            "No method leads: FedAvg and FedProx have runs that diverged over 3 seeds (p = 1).",
        ),
    ],
)
def test_a_sentence_says_who_won_by_how_much_and_how_surely(
    accuracies: dict[str, list[float]], sentence: str
) -> None:
    assert study(accuracies).conclusions() == [sentence]


def test_sentences_name_the_levels_and_the_side() -> None:
    cells = [
        outcome(values, method, stragglers=level)
        for level, shift in (("0 %", 0.0), ("90 %", 0.2))
        for method, values in (
            ("FedAvg", FIVE["FedAvg"]),
            ("FedProx", [value + shift for value in FIVE["FedAvg"]]),
        )
    ]
    alike, apart = fp.Study(cells, "train_loss").conclusions()
    assert alike.startswith("No method leads at 0 % stragglers: FedAvg and FedProx have the same ")
    assert apart.startswith("FedProx is best at 90 % stragglers: training loss 0.2000 [0.2000, ")
    assert "below FedAvg over 5 seeds (p < 0.001)" in apart
    # a baseline that is the best is compared to the second
    (_, other) = fp.Study(cells, against="FedProx").conclusions()
    assert other.startswith("FedProx is best at 90 % stragglers: test accuracy 20.00 points")


def test_a_table_has_the_best_of_each_column_in_bold() -> None:
    shown = study(FIVE).table()
    assert shown.cells == [["51.00 ± 1.58"], ["54.20 ± 1.92"]]
    assert shown.best == {(1, 0)}
    assert shown.caption == "Test accuracy (%), mean ± standard deviation over 5 seeds."
    assert str(shown).splitlines()[2].split() == ["FedProx", "54.20", "±", "1.92", "*"]
    assert "| FedProx | **54.20 ± 1.92** |" in shown.markdown()
    assert "<th>FedProx</th><td><strong>54.20 ± 1.92</strong></td>" in shown.html()
    assert r"FedProx & \textbf{54.20 $\pm$ 1.92} \\" in shown.latex()
    assert study(FIVE).table(best=None).best == frozenset()
    assert study(FIVE).table(measure="train_loss").best == {(1, 0)}  # the lowest
    lost = study({"FedAvg": [math.nan, 0.5], "FedProx": [math.nan, 0.5]}).table()
    assert lost.cells == [["1 of 2 diverged"]] * 2
    assert lost.best == frozenset()


def test_a_table_against_a_method_has_paired_differences() -> None:
    baseline, other = study(FIVE).table(against="FedAvg").cells
    assert baseline == ["51.00 ± 1.58"]
    assert other == ["+3.20 [+2.16, +4.24], p = 0.001"]


def test_the_columns_of_several_factors_share_headers_in_latex() -> None:
    cells = [
        outcome([0.5, 0.6], method, data=data, stragglers=level)
        for data in ("a_1", "b&c")
        for level in ("0 %", "90 %")
        for method in ("FedAvg", "$\\mu$")
    ]
    lines = fp.Study(cells).table().latex().splitlines()
    header = lines[lines.index(r"\toprule") + 1 : lines.index(r"\midrule")]
    assert header == [
        r" & \multicolumn{2}{c}{a\_1} & \multicolumn{2}{c}{b\&c} \\",
        r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}",
        r"method & 0 \% & 90 \% & 0 \% & 90 \% \\",
    ]
    assert any(line.startswith(r"\$\textbackslash{}mu\$ & ") for line in lines)
    rows = fp.Study(cells).table(["data", "method"], "stragglers")
    assert rows.rows[1] == ("a_1", "$\\mu$")
    assert rows.headers == ["data", "method", "0 %", "90 %"]


def test_no_character_of_latex_is_left_as_it_is() -> None:
    for character in LATEX:
        written = latex(f"a{character}b")
        assert written[0] + written[-1] == "ab"
        assert written[1:-1] == LATEX[character]
    # outside commands and mathematics no special character is bare
    plain = re.sub(r"\\text\w+\{\}|\$\\?\w*[<>]?\$|\\.", "", latex("".join(LATEX)))
    assert plain == ""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"rows": "data"}, "rows = 'data'; the factors are method"),
        ({"rows": []}, None),
        ({"columns": "method"}, "table: 'method' is given twice, in rows or columns"),
        ({"rows": [], "columns": []}, "table: 'method' is in neither rows nor columns"),
        ({"measure": "f1"}, "measure = 'f1'; records have train_loss, "),
        ({"against": "FedDyn"}, "against = 'FedDyn'; the methods are FedAvg, FedProx"),
        ({"best": "italic"}, "best = 'italic'; it must be \"bold\" or None"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: dict[str, Any], line: str | None) -> None:
    if line is None:
        assert study(FIVE).table(**arguments).columns == [("FedAvg",), ("FedProx",)]
        return
    with pytest.raises(fp.InputError) as refused:
        study(FIVE).table(**arguments)
    assert str(refused.value).startswith(line)


def test_records_are_tidy() -> None:
    cells = [outcome([0.5, 0.6], "FedAvg", stragglers="90 %")]
    rows = fp.Study(cells).records()
    assert [list(row)[:4] for row in rows] == [["stragglers", "method", "seed", "label"]] * 2
    assert [(row["stragglers"], row["method"], row["seed"]) for row in rows] == [
        ("90 %", "FedAvg", 0),
        ("90 %", "FedAvg", 1),
    ]
    assert [row["test_accuracy"] for row in rows] == [0.5, 0.6]


def test_a_target_is_a_measure() -> None:
    shown = study(FIVE).table(measure=fp.Target("test_accuracy", 0.505))
    assert shown.cells == [["2 of 5 did not reach it"], ["1.0 ± 0.0"]]
    assert shown.best == {(1, 0)}
    assert shown.caption.startswith("Rounds to 50.5 %, mean")


def test_the_best_is_chosen_by_the_mean_over_seeds_of_validation_rows() -> None:
    # the second has the best test rows, the third the best mean on validation rows, the last
    # diverges with a seed
    values = {"a": [(0.5, 0.6), (0.5, 0.4)], "b": [(0.9, 0.7), (0.9, 0.2)]}
    values |= {"c": [(0.1, 0.5), (0.1, 0.55)], "d": [(0.8, 0.99), (math.nan, 0.99)]}
    runs = [
        run(accuracy, seed, label, validation)
        for label, seeds in values.items()
        for seed, (accuracy, validation) in enumerate(seeds)
    ]
    assert best_label(runs, "validation_accuracy", lower=False) == "c"
    assert best_label(runs, "validation_accuracy", lower=True) == "b"
    assert (
        best_label([r for r in runs if r.label == "d"], "validation_accuracy", lower=False) == "d"
    )


def test_what_is_no_study_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(fp.InputError, match=r"no study\.json; not the folder of a complete study"):
        fp.Study.read(tmp_path)
    for content in ("{", '{"cells": []}', "[" * 10_000):
        (tmp_path / "study.json").write_text(content)
        with pytest.raises(fp.InputError, match=r"study\.json: damaged: "):
            fp.Study.read(tmp_path)
