"""Server optimizers against the oracle; plain SGD is FedAvg."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedprox import InputError, fedopt, line_search_descent
from tests import methods
from tests.byhand import CLIENTS, START, beside_the_oracle


def test_momentum_is_the_oracles() -> None:
    """Whose round without anyone leaves its state as it was."""
    beside_the_oracle(
        fedopt(functools.partial(optax.sgd, momentum=0.9), server_learning_rate=[0.3, 1.0]),
        lambda hparams, _: methods.Ruled(
            methods.FedProx(START, CLIENTS, drop=True),
            methods.Momentum(hparams["server_learning_rate"]),
        ),
    )


def test_sgd_of_rate_one_is_fedavg() -> None:
    ours, mean = fedopt(optax.sgd), jnp.array([0.3, -0.1, 2.0])
    hparams = {name: jnp.float32(value[0]) for name, value in ours.hparams.items()}  # type: ignore[index]
    after = ours.server.update(ours.server.init(jnp.asarray(START)), mean, hparams)
    np.testing.assert_allclose(ours.server.params(after), START + mean, rtol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (optax.sgd(0.1), "must be a function of learning_rate="),
        (line_search_descent, "searches along a line"),
        (optax.lbfgs, "searches along a line"),
        (optax.inject_hyperparams(optax.sgd), "keeps its learning rate in its state"),
    ],
)
def test_an_optimizer_that_cannot_serve_is_refused(optimizer: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"fedopt.*{words}"):
        fedopt(optimizer)
