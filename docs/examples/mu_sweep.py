r"""
A sweep over mu
===============

How large should FedProx's ``mu`` be? A list of values is a sweep: all of them are trained at once, on the same cohorts,
stragglers and mini-batches. Validation rows choose, so that the test rows stay unseen. More in :doc:`/howto/sweeps`.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedprox as fp

federation = fp.datasets.synthetic().hold_out(0.2)
values = [0.0, 0.01, 0.1, 0.3, 1.0, 3.0]
runs = fp.simulate(
    federation,
    fp.models.logistic(federation),
    fp.fedprox(mu=values),
    solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=20),
    cohort=fp.Cohort(clients_per_round=10),
    systems=fp.Systems(stragglers=0.9),
    rounds=40,
    evaluation=fp.Evaluation(every=40, gradients=False),
    seed=[0, 1, 2],
    progress=False,
)

fig, ax = plt.subplots()
for seed in range(3):
    losses = [run.final.validation_loss for run in runs if run.seed == seed]
    ax.plot(range(len(values)), losses, "o-", label=f"seed {seed}")
ax.set_xticks(range(len(values)), [f"{mu:g}" for mu in values])
ax.set(xlabel="mu", ylabel="validation loss after 40 rounds")
ax.legend()
mean = [
    np.mean([run.final.validation_loss for run in runs if run.hparams["mu"] == mu]) for mu in values
]
print("best on validation rows: mu =", values[np.argmin(mean)])
