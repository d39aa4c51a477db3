r"""
Without a barrier
=================

What if the server does not wait at all? With FedBuff it steps as soon as five messages have arrived, even if a client
started from an old model. It learns faster at first; later its model leans towards fast devices, which take part more
often. More in :doc:`/howto/time`.
"""

import matplotlib.pyplot as plt

import fedprox as fp

federation = fp.datasets.synthetic()
settings = dict(
    solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=5),
    cohort=fp.Cohort(clients_per_round=10),
    population=fp.Population(step_seconds=fp.LogNormal(0.1, spread=1.5)),
    progress=False,
)
model, method = fp.models.logistic(federation), fp.fedprox(mu=0.1)
(waits,) = fp.simulate(
    federation, model, method, rounds=40, evaluation=fp.Evaluation(gradients=False), **settings
)
(steps,) = fp.simulate(
    federation,
    model,
    method,
    rounds=500,
    asynchronous=fp.Asynchronous(buffer=5),
    evaluation=fp.Evaluation(every=10, gradients=False),
    **settings,
)

fig, ax = plt.subplots()
for name, run in (("rounds of 10 clients", waits), ("FedBuff, steps of 5 messages", steps)):
    minutes = [record.time / 60 for record in run.history]
    ax.plot(minutes, [record.train_loss for record in run.history], label=name)
    print(f"{name:<30}{run.final.round:4} steps of the server in {minutes[-1]:.0f} minutes")
ax.set(xlabel="minutes", ylabel="training loss", xlim=(0, 20))
ax.legend()
