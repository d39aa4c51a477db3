r"""
Dividing clients into clusters
==============================

How many models do clients need? This is a form of CFL (Sattler et al. 2021): all clients train one model; where their
gradients at it still fall into groups, each group goes on with a model of its own. CFL divides in two by thresholds;
here :func:`fedprox.diagnostics.grouping` says whether there are groups, and which. :func:`fedprox.ifca` is for a known
number of clusters. More in :doc:`/tutorials/clusters`.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedprox as fp

rng = np.random.default_rng(0)
rules = rng.normal(size=(3, 10, 4))  # a client's labels follow one of three rules
both = []
for k in range(24):
    features = rng.normal(size=(60, 10))
    both.append((features, (features @ rules[k % 3]).argmax(axis=1)))
federation = fp.Federation.from_arrays(
    [(x[:40], y[:40]) for x, y in both], [(x[40:], y[40:]) for x, y in both]
)
model = fp.models.logistic(federation)

fig, ax = plt.subplots()
waiting = [(np.arange(24), None)]
while waiting:
    clients, start = waiting.pop(0)
    cluster = federation.of_clients(clients)
    (run,) = fp.simulate(
        cluster,
        model,
        fp.fedavg(),
        solver=fp.Solver(learning_rate=0.5, batch_size="all", steps=5),
        cohort=fp.Cohort(clients_per_round=len(clients)),
        rounds=30,
        evaluation=fp.Evaluation(every=30, gradients=False),
        initial=start,
        progress=False,
    )
    found = fp.diagnostics.grouping(model, run.params, cluster)
    print(f"{len(clients)} clients: {run.final.test_accuracy:.3f}, {found.clusters} cluster(s)")
    accuracy = fp.evaluate(model, run.params, cluster).by_client["test_accuracy"]
    ax.plot(clients, accuracy, "o", label=f"model of {len(clients)} clients")
    if found.clusters > 1:
        parts = (clients[found.labels == j] for j in range(found.clusters))
        waiting.extend((part, run.params) for part in parts)
ax.set(xlabel="client", ylabel="accuracy on own test rows", ylim=(0, 1.05))
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend()
