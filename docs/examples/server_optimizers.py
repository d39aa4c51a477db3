r"""
An optimizer on the server
==========================

Does the server's step matter? Any method can have another server rule: Adam uses the mean update as a gradient,
and extrapolation computes a longer step. On FedAvg these are FedAdam and FedExP. More in :doc:`/howto/compose`.
"""

import matplotlib.pyplot as plt

import fedprox as fp

federation = fp.datasets.synthetic()
methods = {
    "FedAvg": fp.fedavg(),
    "FedAvg, Adam": fp.fedavg().with_server(fp.server.adam(0.1)),
    "FedAvg, extrapolation": fp.fedavg().with_server(fp.server.extrapolate()),
    "FedProx": fp.fedprox(mu=0.1),
    "FedProx, Adam": fp.fedprox(mu=0.1).with_server(fp.server.adam(0.1)),
    "FedProx, extrapolation": fp.fedprox(mu=0.1).with_server(fp.server.extrapolate()),
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

fig, ax = plt.subplots()
for name, run in zip(methods, runs):
    ax.plot([r.round for r in run.history], [r.train_loss for r in run.history], label=name)
ax.set(xlabel="round", ylabel="training loss", yscale="log")
ax.legend()
