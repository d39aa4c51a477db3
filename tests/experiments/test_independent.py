"""What other authors proved, on one draw, and what the library measures there."""

import pytest

from experiments import ITEMS
from experiments.engine.series import Series
from experiments.independent.ditto import BEST, MULTIPLES
from experiments.independent.fedsplit import BOUND
from experiments.independent.fixed_points import proved

OFF = {
    # the methods that end elsewhere than at the minimizer
    "fednova-quadratics": {"FedAvg", "FedProx"},
    "fedsplit-least-squares": {"10 local steps", "proximal steps"},
}


def measured(name: str, other: str) -> dict[str, Series]:
    experiment, series = ITEMS[f"independent/{name}"].others[other]
    return {one.label: one for one in series(experiment, 7, None)}


@pytest.mark.parametrize("name", OFF)
def test_methods_end_where_it_is_proved(name: str) -> None:
    (other,) = ITEMS[f"independent/{name}"].others
    found = measured(name, other)
    claim = ITEMS[f"independent/{name}"].claims[0]
    assert claim.alike is not None
    for one in claim.comparisons:
        ours, ends = found[one.greater.label], found[one.less.label]
        assert ours.values["gap"][-1] < claim.alike / 2
        assert (ends.values["distance"][-1] > 0.01) == (one.where in OFF[name])
    if BOUND in found:
        bound, split = found[BOUND], found["FedSplit"]
        early = split.rounds <= 40
        assert (split.values["distance"] <= bound.values["distance"][split.rounds])[early].all()


def test_dittos_best_lambda_and_its_error_are_the_closed_forms() -> None:
    found = measured("ditto-point-estimation", "n = 1, sigma = 2")
    errors = {label: found[label].values["error"][-1] for label in MULTIPLES}
    for label, error in errors.items():
        assert error == pytest.approx(found[proved(label)].values["error"][-1], rel=0.02)
    assert min(errors, key=errors.__getitem__) == BEST
