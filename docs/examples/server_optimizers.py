r"""
An optimizer on the server
==========================

Does the server's step matter? FedOpt takes the mean update as a gradient and hands it to an optimizer of optax: Adam
and Yogi beside plain averaging and FedExP's computed step. More in :doc:`/howto/choose`.
"""

import matplotlib.pyplot as plt
import optax

import fedprox as fp

federation = fp.datasets.synthetic()
methods = {
    "FedAvg": fp.fedavg(),
    "FedAdam": fp.fedopt(optimizer=optax.adam, server_learning_rate=0.1),
    "FedYogi": fp.fedopt(optimizer=optax.yogi, server_learning_rate=0.1),
    "FedExP": fp.fedexp(epsilon=0.001),
}
runs = fp.simulate(
    federation,
    fp.models.logistic(federation),
    list(methods.values()),
    solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=2),
    cohort=fp.Cohort(clients_per_round=10),
    rounds=80,
    evaluation=fp.Evaluation(every=2, gradients=False),
    progress=False,
)

fig, ax = plt.subplots(figsize=(6, 4))
for name, run in zip(methods, runs):
    ax.plot([r.round for r in run.history], [r.train_loss for r in run.history], label=name)
ax.set(xlabel="round", ylabel="training loss", yscale="log")
ax.legend()
