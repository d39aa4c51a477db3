r"""
Look before you train
=====================

How different are the clients? :func:`fedprox.diagnose` measures sizes, classes and gradients in a short sweep, and
suggests a ``mu`` to start with. More in :doc:`/howto/choose`.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedprox as fp

federation = fp.datasets.synthetic()
diagnosis = fp.diagnose(
    federation,
    fp.models.logistic(federation),
    solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=10),
    cohort=fp.Cohort(clients_per_round=10),
    systems=fp.Systems(stragglers=0.5),
    rounds=50,
    progress=False,
)
for what, value, _ in diagnosis.facts():
    print(f"{what:<40}{value}")

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8))
left.bar(range(len(diagnosis.sizes)), np.sort(diagnosis.sizes)[::-1])
left.set(xlabel="client", ylabel="training rows")
right.plot(diagnosis.rounds, diagnosis.dissimilarity.mean(axis=0))
right.set(xlabel="round", ylabel="dissimilarity B(w)")
