r"""
The price of privacy
====================

What does differential privacy of clients cost? Messages are clipped, and noise is added so that all rounds together
spend epsilon. The noise hides a single client, so it costs less accuracy with more clients. More in
:doc:`/howto/privacy`.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedprox as fp

rng = np.random.default_rng(0)
truth = rng.normal(size=(20, 5))


def rows(count):
    x = rng.normal(size=(count, 20)) + 0.5 * rng.normal(size=20)
    return x, (x @ truth).argmax(axis=1)


fig, ax = plt.subplots()
for clients, colour in ((100, "C0"), (1000, "C1")):
    federation = fp.Federation.from_arrays(
        [rows(20) for _ in range(clients)], [rows(5) for _ in range(clients)]
    )
    finals = []
    for noise in (None, 1.0, 2.0, 4.0):
        (run,) = fp.simulate(
            federation,
            fp.models.logistic(federation),
            fp.fedavg(),
            solver=fp.Solver(learning_rate=0.1, batch_size=10, epochs=2),
            cohort=fp.Cohort(clients_per_round=clients // 10, sampling="bernoulli"),
            rounds=30,
            privacy=fp.Privacy(clip=0.5, noise_multiplier=noise, delta=1e-4) if noise else None,
            evaluation=fp.Evaluation(every=30, gradients=False),
            progress=False,
        )
        finals.append(run.final)
    without, *private = finals
    epsilons = [final.epsilon for final in private]
    accuracies = [final.test_accuracy for final in private]
    ax.plot(epsilons, accuracies, "o-", color=colour, label=f"{clients:,} clients")
    ax.axhline(without.test_accuracy, color=colour, linestyle=":", label="without noise")
    print(f"{clients:>5} clients:", ", ".join(f"epsilon {e:.2g}" for e in epsilons))
ax.set(xlabel="epsilon", ylabel="test accuracy")
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend()
