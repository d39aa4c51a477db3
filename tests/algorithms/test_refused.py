"""What methods refuse: values out of range, other solvers than plain SGD, and privacy."""

import functools
from typing import Any

import optax
import pytest

import fedprox as fp
from tests.byhand import START
from tests.quadratics import one_run, quadratic_model, ragged_quadratics

MOMENTUM = functools.partial(optax.sgd, momentum=0.9)
ANY: Any = "some"
MADE: dict[str, Any] = {
    "fednova: mu = -1.0; it must be at least 0": lambda: fp.fednova(mu=-1.0),
    "fednova: momentum = 1.0; it must be below 1": lambda: fp.fednova(momentum=1.0),
    "fednova: momentum = -0.1; it must be at least 0": lambda: fp.fednova(momentum=-0.1),
    "fednova: mu and momentum: one of them must be 0": lambda: fp.fednova(
        mu=[0.0, 1.0], momentum=0.9
    ),
    "mime: beta = 1.0; it must be below 1": lambda: fp.mime(1.0),
    "mime: beta = 1.5; it must be below 1": lambda: fp.mime([0.5, 1.5]),
    "mime: lite and whole_gradients: one of them must be false": lambda: fp.mime(
        lite=True, whole_gradients=True
    ),
    "scaffold: option = 'some'; it must be one of 1, 2": lambda: fp.scaffold(option=ANY),
    "scaffold: option = 3; it must be one of 1, 2": lambda: fp.scaffold(option=3),
    "fedsplit: average = 'some'; it must be one of all, active": lambda: fp.fedsplit(
        1.0, average=ANY
    ),
    "fedavg: average = 'some'; it must be one of rows, clients": lambda: fp.fedavg(average=ANY),
    "fedavg: stragglers = 'some'; it must be one of keep, drop": lambda: fp.fedavg(stragglers=ANY),
    "fedcm: alpha = 1.5; it must be at most 1": lambda: fp.fedcm(alpha=[0.5, 1.5]),
}
"""The whole message, and what is refused with it."""


@pytest.mark.parametrize("message", MADE)
def test_what_is_out_of_range_is_refused(message: str) -> None:
    with pytest.raises(fp.InputError) as error:
        MADE[message]()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("optimizer", [MOMENTUM, optax.adam])
@pytest.mark.parametrize(
    ("method", "words"),
    [
        (fp.mime(), "mime needs solver.optimizer = sgd without options"),
        (fp.fednova(), "fednova needs solver.optimizer = sgd without options"),
        (fp.feddc(0.1), "feddc needs solver.optimizer = sgd without options"),
        (fp.scaffold(), "scaffold: option 2 needs .*sgd"),
        (fp.scaffnew(p=0.5), "scaffnew.* solver.optimizer = sgd without options"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_steps_that_are_counted_are_those_of_plain_sgd(
    method: fp.Algorithm, words: str, optimizer: Any
) -> None:
    solver = fp.Solver(0.1, "all", steps=2, optimizer=optimizer)
    with pytest.raises(fp.InputError, match=words):
        method.solver(solver)
    assert fp.scaffold(option=1).solver(solver) == solver


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (fp.mime(), r"mime: one cohort would release .*, so privacy\.unit"),
        (fp.fednova(), r"fednova: a message holds the length .*, so privacy\.unit"),
        (fp.qffl(1.0), r"qffl: a message holds a bound .*, so privacy\.unit"),
        (fp.fedexp(), r"fedexp: a message holds the squared norm .*, so privacy\.unit"),
        (fp.scaffnew(p=0.5), "scaffnew: everyone takes part, so cohorts are not sampl"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_privacy_does_not_fit_what_a_message_holds(method: fp.Algorithm, words: str) -> None:
    federation, solver = ragged_quadratics(0, [1, 2]), fp.Solver(0.1, "all", steps=2)
    privacy = fp.Privacy(1.0, noise_multiplier=1.0)
    with pytest.raises(fp.InputError, match=words):
        one_run(federation, quadratic_model(START), method, solver, privacy=privacy)
