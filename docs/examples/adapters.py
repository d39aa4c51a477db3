r"""
Low-rank adapters
=================

How much of a trained model must be trained again? A perceptron was trained on old data, and the clients' data have
shifted. They train adapters of rank 1, 2 or 8 on the frozen model, or the whole model. More in :doc:`/howto/adapters`.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedprox as fp

rng = np.random.default_rng(0)
centres = rng.normal(size=(10, 20))


def data(centres, clients):
    def part(rows):
        labels = rng.integers(0, 10, (clients, rows))
        return list(zip(centres[labels] + rng.normal(size=(clients, rows, 20)), labels))

    return fp.Federation.from_arrays(part(80), part(40))


old, new = data(centres, 10), data(centres + rng.normal(size=centres.shape), 20)
settings = dict(
    solver=fp.Solver(learning_rate=0.005, batch_size=10, epochs=2),
    cohort=fp.Cohort(clients_per_round=10),
    rounds=20,
    evaluation=fp.Evaluation(gradients=False),
    progress=False,
)
model = fp.models.mlp(old, hidden=[64])
(trained,) = fp.simulate(old, model, fp.fedavg(), **settings)

fig, ax = plt.subplots()
for rank in (1, 2, 8, None):
    part = fp.lora(model, trained.params, rank=rank, targets=["*.weight"]) if rank else model
    start = {} if rank else {"initial": trained.params}
    (run,) = fp.simulate(new, part, fp.fedavg(), **settings, **start)
    name = f"rank {rank}" if rank else "whole model"
    ax.plot([r.round for r in run.history], [r.test_accuracy for r in run.history], label=name)
    print(f"{name:<12}{part.size_bytes / 1e3:6.1f} kB a message")
ax.set(xlabel="round", ylabel="test accuracy")
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend()
