"""Correlated noise: the table of its gains, the study, and a tiny run of it."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

import fedprox as fp
from experiments.correlated import EPSILONS as PRINTED
from experiments.correlated import PLANS, Plan, cyclic, gain, noise, poisson, row
from experiments.engine.item import Scale
from experiments.engine.run import reproduce
from experiments.studies.correlated import (
    BANDED,
    BLT,
    CLIPPING,
    EPSILONS,
    INDEPENDENT,
    ITEMS,
    MECHANISMS,
    POISSON,
    TASKS,
    experiment,
    place,
)
from fedprox.experiment import parse
from fedprox.parts.privacy.accounting import Mechanism, epsilon_of
from fedprox.parts.privacy.correlated import Strategy

PAGE = Path(__file__).parents[2] / "docs/howto/privacy.md"
SMALL = Plan(6, 3, 9, 2)


def test_noise_is_that_of_an_epsilon_over_all_rounds() -> None:
    """Independent noise of a model grows with the root of the rounds, 3.5 on average."""
    strategy = Strategy("independent", SMALL.separation, SMALL.rounds)
    what = Mechanism(9, 2, "cyclic", None, 0.0, 1, 1e-5, "pld", strategy)
    z = noise(what, 6, 4.0) / math.sqrt(3.5)
    assert 3.99 <= epsilon_of(what._replace(noise_multiplier=z), 6) <= 4.0
    assert gain(SMALL, "independent", 4.0).cyclic == 1.0
    sampled = Mechanism(
        9, 2, "bernoulli", None, poisson(SMALL, 4.0) / math.sqrt(3.5), 1, 1e-5, "pld"
    )
    assert 3.99 <= epsilon_of(sampled, 6) <= 4.0
    assert cyclic(SMALL, "independent", 4.0) < cyclic(SMALL, "independent", 2.0)


def rows() -> list[str]:
    """The rows of the page's table."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("| rounds | apart |") :].split("\n\n")[0]
    return table.splitlines()


@pytest.mark.slow
def test_the_first_row_of_the_page_is_what_the_script_prints() -> None:
    assert row(PLANS[0]) in rows()


def test_the_page_has_a_row_for_each_plan() -> None:
    header, _, *written = rows()
    assert header.count("|") == 4 + 2 + len(PRINTED) + 1
    assert [line.split(" | ")[:4] for line in written] == [
        [f"| {plan.rounds:,}", *(f"{number:,}" for number in plan[1:])] for plan in PLANS
    ]


def test_mechanisms_differ_in_noise_and_cohorts_alone() -> None:
    for task in TASKS:
        for epsilon in EPSILONS:
            first = experiment(task, INDEPENDENT, epsilon)
            for mechanism in MECHANISMS:
                table = experiment(task, mechanism, epsilon)
                assert {key for key in table if table[key] != first[key]} <= {"cohort", "privacy"}
                parsed = parse("study", table | {"seed": [0]})
                assert parsed.cohort.clients_per_round == task.clients // 10
                assert parsed.privacy is not None
                assert (parsed.privacy.epsilon, parsed.privacy.clip) == (epsilon, 0.5)
                names = {BANDED: "banded", BLT: "blt"}
                assert parsed.privacy.mechanism == names.get(mechanism, "independent")
                assert (parsed.cohort.sampling == "bernoulli") == (mechanism == POISSON)


def images() -> fp.Federation:
    """Four images of each of twenty clients to train on, which are also those to test on."""
    x = np.random.default_rng(0).normal(size=(20, 4, 28, 28)).astype(np.float32)
    rows = [(each, np.arange(4)) for each in x]
    return fp.Federation.from_arrays(rows, test=rows, classes=10)


@pytest.mark.slow
def test_a_tiny_study_runs_end_to_end(tmp_path: Path) -> None:
    """One epsilon of the item itself, on few images, with one rate and two rounds."""
    item, where = ITEMS["correlated-mnist"], place(TASKS[0], 8.0)

    def tiny(run: str) -> dict[str, object]:
        table = item.runs[run]
        changed = {
            "rounds": 2,
            "data": {"name": f"{__name__}:images"},
            "solver": table["solver"] | {"learning_rate": 0.1, "epochs": 1, "batch_size": 2},
            "evaluation": {"gradients": False, "every": 1},
            "cohort": table["cohort"] | {"clients_per_round": 2},
            "privacy": table["privacy"] | {"delta": 1e-3, "accountant": "rdp"},  # a fast one
        }
        return {**table, **changed}

    def here(comparison: object) -> bool:
        return {side.run for side in comparison[1:3]} == {where}  # type: ignore[index]

    claims = [
        claim._replace(comparisons=tuple(filter(here, claim.comparisons))) for claim in item.claims
    ]
    without = f"correlated-mnist-{CLIPPING}"
    small = dataclasses.replace(
        item,
        runs={run: tiny(run) for run in (*item.joined[where], without)},
        joined={where: item.joined[where]},
        panels=((item.panels[0][-1],),),
        claims=tuple(claim for claim in claims if claim.comparisons),
        values=tuple(
            table._replace(rows=tuple(row for row in table.rows if row[1][0].run == where))  # type: ignore[union-attr]
            for table in item.values
        ),
    )
    text = reproduce("studies/tiny", small, Scale("tiny", 1, (0, 1)), tmp_path)
    assert "banded noise is more accurate than independent noise" in text
    table = json.loads((tmp_path / "studies/tiny/results.json").read_text())["blocks"][0]
    assert table["header"][1:] == [*MECHANISMS, CLIPPING]
    ((_, *cells),) = table["rows"]
    assert len(set(cells)) > 1
