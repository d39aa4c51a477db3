r"""
Label skew
==========

How much does it cost that clients have different classes? The same 4,000 rows are divided over 20 clients by Dirichlet
draws; the smaller the concentration, the fewer classes a client has. More in :doc:`/howto/data`.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedprox as fp
from fedprox.datasets import partition

rng = np.random.default_rng(0)
centres, labels = rng.normal(size=(10, 20)), rng.integers(0, 10, 4000)
features = centres[labels] + 1.5 * rng.normal(size=(4000, 20))

fig, ax = plt.subplots()
for concentration in (100.0, 0.1, 0.01):
    parts = partition.dirichlet_by_client(labels, clients=20, concentration=concentration, seed=0)
    train = [(features[part[::2]], labels[part[::2]]) for part in parts]
    test = [(features[part[1::2]], labels[part[1::2]]) for part in parts]
    federation = fp.Federation.from_arrays(train, test)
    (run,) = fp.simulate(
        federation,
        fp.models.logistic(federation),
        fp.fedavg(),
        solver=fp.Solver(learning_rate=0.1, batch_size=10, epochs=10),
        cohort=fp.Cohort(clients_per_round=3),
        rounds=30,
        evaluation=fp.Evaluation(gradients=False),
        progress=False,
    )
    accuracy = [record.test_accuracy for record in run.history]
    ax.plot(accuracy, label=f"concentration {concentration:g}")
    print(f"{concentration:>6g}: {accuracy[-1]:.1%} after {run.final.round} rounds")
ax.set(xlabel="round", ylabel="test accuracy")
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend()
