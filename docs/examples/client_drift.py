r"""
Client drift
============

Where do local steps lead when clients disagree? Two clients have quadratics with different minimizers and curvature.
FedAvg converges to a point that does not minimize their mean; SCAFFOLD and FedDyn correct each local step and reach the
minimizer. More in :doc:`/howto/choose`.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import fedprox as fp

a = np.array([np.diag([10.0, 1.0]), np.diag([1.0, 4.0])])
b = np.array([[1.0, 0.0], [0.0, 1.0]])


def loss(outputs, y):
    a, w = outputs
    return 0.5 * jnp.einsum("bi,bij,bj->b", w - y, a, w - y)


federation = fp.Federation.from_arrays([(a[k : k + 1], b[k : k + 1]) for k in (0, 1)])
model = fp.Model(lambda _: jnp.zeros(2), lambda w, x: (x, w), loss, correct=None)
runs = fp.simulate(
    federation,
    model,
    [fp.fedavg(), fp.scaffold(), fp.feddyn(alpha=1.0)],
    solver=fp.Solver(learning_rate=0.02, batch_size="all", steps=20),
    cohort=fp.Cohort(clients_per_round=2),
    rounds=30,
    evaluation=fp.Evaluation(gradients=False),
    progress=False,
)
best = np.linalg.solve(a.sum(axis=0), np.einsum("kij,kj->i", a, b))
least = np.mean([0.5 * (best - b[k]) @ a[k] @ (best - b[k]) for k in (0, 1)])

fig, ax = plt.subplots()
for run in runs:
    ax.plot([record.train_loss - least for record in run.history], label=run.label)
    print(f"{run.label:<16} ends {np.linalg.norm(run.params - best):.4f} from the minimizer")
ax.set(xlabel="round", ylabel="loss above the minimum", yscale="log", ylim=(1e-6, None))
ax.legend()
