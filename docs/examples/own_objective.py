r"""
A loss of your own
==================

Can clients minimize something else than their mean loss? Here it is the focal loss, in which rows that
are predicted well count less. It is a function of the model, its parameters and a mini-batch; aggregation, sweeps and
reports stay as they are. More in :doc:`/tutorials/local-objective`.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import fedprox as fp


def focal(model, params, batch, power):
    log_p = jax.nn.log_softmax(batch.outputs(model, params))
    log_p = jnp.take_along_axis(log_p, batch.y[:, None], axis=1)[:, 0]
    return batch.mean(-((1 - jnp.exp(log_p)) ** power) * log_p)


def method(power):
    return fp.Algorithm(
        "focal",
        lambda params, hparams, _: fp.Subproblem(params, given=hparams["power"]),
        hparams={"power": power},
        stragglers="keep",
        client=fp.OnClient(objective=focal),
    )


federation = fp.datasets.synthetic()
runs = fp.simulate(
    federation,
    fp.models.logistic(federation),
    [fp.fedprox(mu=0.0), method(power=[0.5, 2.0])],
    solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=10),
    cohort=fp.Cohort(clients_per_round=10),
    rounds=40,
    evaluation=fp.Evaluation(every=2, gradients=False, by_client=True),
    progress=False,
)

fig, ax = plt.subplots()
for run in runs:
    ax.plot([r.round for r in run.history], [r.test_accuracy for r in run.history], label=run.label)
ax.set(xlabel="round", ylabel="test accuracy")
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend()
