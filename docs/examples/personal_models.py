r"""
A model for each client
=======================

Do clients gain from a model of their own? Each measure is over the clients' own test rows: of the global model, of the
global model after 20 steps on the client's rows, and of Ditto's personal models. More in :doc:`/howto/personal`.
"""

import matplotlib.pyplot as plt

import fedprox as fp

federation = fp.datasets.synthetic()
runs = fp.simulate(
    federation,
    fp.models.logistic(federation),
    [fp.fedavg(), fp.ditto(lam=0.1)],
    solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=5),
    cohort=fp.Cohort(clients_per_round=10),
    rounds=30,
    evaluation=fp.Evaluation(every=2, gradients=False, fine_tune=20),
    progress=False,
)
fedavg, ditto = runs
rounds = [record.round for record in fedavg.history]

fig, ax = plt.subplots()
ax.plot(rounds, [record.test_accuracy for record in fedavg.history], label="one model for all")
ax.plot(rounds, [record.personal_accuracy for record in fedavg.history], label="fine-tuned")
ax.plot(rounds, [record.personal_accuracy for record in ditto.history], label="Ditto")
ax.set(xlabel="round", ylabel="accuracy on own test rows")
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend()
print(fp.table(runs))
