"""The study of which part helps: equal grids, and a tiny run of it from end to end."""

import dataclasses
from pathlib import Path

import pytest

from experiments.engine.item import Scale
from experiments.engine.run import reproduce
from experiments.studies.composition import (
    ADAM,
    CHOICES,
    ITEMS,
    KEEP,
    LOCALS,
    MEAN,
    PLAIN,
    PROXIMAL,
    RULES,
    SETTINGS,
    TASKS,
    experiment,
    product,
)
from fedprox.experiment import parse
from fedprox.experiment.resolved import method_of, solver_of
from fedprox.protocol.method import sweep_points


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
def test_products_differ_in_what_they_are_named_after_and_have_equal_budgets(task: object) -> None:
    seen = set()
    for local in LOCALS:
        for rule in RULES:
            for choice in CHOICES:
                table = experiment(task, 0.5, local, rule, choice)  # type: ignore[arg-type]
                parsed = parse(product(local, rule, choice), table | {"seed": [0]})
                solver, _ = solver_of(parsed.solver)
                method, _ = method_of(parsed.method[0], parsed.solver, solver, "method.0")
                assert len(sweep_points(method, method.solver(solver))) == SETTINGS
                assert method.stragglers == choice
                assert method.average == "rows"
                assert ("mu" in method.hparams) == (local == PROXIMAL)
                seen.add((local, method.fixed.get("server", ""), method.stragglers))
                others = {k: v for k, v in table.items() if k not in ("method", "solver")}
                same = experiment(task, 0.5, PLAIN, MEAN, KEEP)  # type: ignore[arg-type]
                assert others == {k: same[k] for k in others}
    assert len(seen) == len(LOCALS) * len(RULES) * len(CHOICES)


@pytest.mark.slow
def test_a_tiny_study_runs_end_to_end(tmp_path: Path) -> None:
    """One share of stragglers, two rules and four settings of each, of the item itself."""
    item = ITEMS["composition-synthetic"]
    group = "Synthetic(1,1), 50% stragglers"
    named = {
        run: words
        for run, words in item.joined[group].items()
        if any(rule in " ".join(words.values()) for rule in (MEAN, ADAM))
    }

    def tiny(run: str) -> dict[str, object]:
        table = item.runs[run]
        data = table["data"] | {"clients": 6}
        solver = table["solver"] | {"learning_rate": [0.01, 0.03], "epochs": 1}
        cohort = {"clients_per_round": 3}
        changed = {"data": data, "solver": solver, "cohort": cohort, "rounds": 2}
        return {**table, **changed, "evaluation": {"gradients": False, "every": 1}}

    panel = item.panels[0][1]
    labels = tuple(each for each in panel.labels if MEAN in each or ADAM in each)
    small = dataclasses.replace(
        item,
        runs={run: tiny(run) for run in named},
        joined={group: named},
        panels=((panel._replace(labels=labels),),),
        claims=tuple(
            claim._replace(comparisons=tuple(c for c in claim.comparisons if c.where == group))
            for claim in item.claims[:3]
        ),
        values=(),
    )
    text = reproduce("studies/tiny", small, Scale("tiny", 1, (0, 1)), tmp_path)
    assert "Partial work lowers FedAvg's loss." in text
    assert "plain, mean, keep" in text
    assert "proximal, Adam, keep" in text
