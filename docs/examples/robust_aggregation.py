r"""
Clients that lie
================

Which aggregation rule withstands attackers? A fifth of the clients send their update times -5. The mean follows them;
robust rules do not. These clients' data are alike. Where data differ, honest clients look like attackers, and robust
rules cost accuracy too. More in :doc:`/howto/faults`.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedprox as fp

rng = np.random.default_rng(0)
centres, labels = rng.normal(size=(10, 20)), rng.integers(0, 10, (40, 100))
features = centres[labels] + 1.5 * rng.normal(size=(40, 100, 20))
clients = list(zip(features, labels))
federation = fp.Federation.from_arrays(
    [(x[:80], y[:80]) for x, y in clients], [(x[80:], y[80:]) for x, y in clients]
)

fig, ax = plt.subplots()
for rule in ("mean", "median", "trimmed-mean", "geometric-median"):
    (run,) = fp.simulate(
        federation,
        fp.models.logistic(federation),
        fp.fedprox(mu=0.1),
        solver=fp.Solver(learning_rate=0.05, batch_size=10, epochs=2),
        cohort=fp.Cohort(clients_per_round=20),
        rounds=30,
        aggregation=fp.Aggregation(rule, faulty=0.3),
        attack=fp.Attack("sign-flip", share=0.2, scale=5.0),
        evaluation=fp.Evaluation(every=2, gradients=False),
        progress=False,
    )
    rounds = [record.round for record in run.history]
    ax.plot(rounds, [record.test_accuracy for record in run.history], label=rule)
    print(f"{rule:<18}{run.final.test_accuracy:.1%}")
ax.set(xlabel="round", ylabel="test accuracy")
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend()
