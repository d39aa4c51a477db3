r"""
Fairness over clients
=====================

Which clients does a good average leave behind? q-FFL gives clients with a larger loss a larger weight: the largest loss
falls, the others rise. The lines are the clients' losses, from worst to best. More in :doc:`/howto/evaluation`.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedprox as fp

federation = fp.datasets.synthetic(clients=12)
model = fp.models.logistic(federation)
runs = fp.simulate(
    federation,
    model,
    fp.qffl(q=[0.0, 1.0, 5.0]),
    solver=fp.Solver(learning_rate=0.05, batch_size="all", steps=1),
    cohort=fp.Cohort(clients_per_round=12),
    rounds=800,
    evaluation=fp.Evaluation(every=200, gradients=False),
    progress=False,
)

fig, ax = plt.subplots()
for run in runs:
    losses = fp.evaluate(model, run.params, federation).by_client["train_loss"]
    ax.plot(np.sort(losses)[::-1], "o-", label=run.label)
    print(f"{run.label:<10} mean loss {losses.mean():.3f}, largest {losses.max():.3f}")
ax.set(xlabel="client, worst first", ylabel="loss of its rows")
ax.legend()
