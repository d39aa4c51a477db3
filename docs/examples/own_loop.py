r"""
A loop of your own
==================

How can the learning rate follow the loss? :func:`fedprox.rounds` pauses after each evaluation, and yields the record,
the parameters and the server's state. The loop halves the rate when the loss grows, and stops once the rate is small.
The results are those of :func:`fedprox.simulate` with such a schedule.
"""

import matplotlib.pyplot as plt

import fedprox as fp

federation = fp.datasets.synthetic(clients=12)
options = {
    "solver": fp.Solver(learning_rate=0.3, batch_size=10, epochs=5),
    "cohort": fp.Cohort(clients_per_round=4),
    "progress": False,
}
loss = float("inf")
for stage in fp.rounds(
    federation, fp.models.logistic(federation), fp.fedavg(), rounds=60, **options
):
    if stage.record.train_loss > loss:
        stage.learning_rate /= 2
    loss = stage.record.train_loss
    if stage.learning_rate < 0.001:
        break

rounds = [record.round for record in stage.run.history]
fig, (top, bottom) = plt.subplots(2, 1, sharex=True)
top.semilogy(rounds, [record.train_loss for record in stage.run.history])
bottom.step(rounds, [record.learning_rate for record in stage.run.history])
top.set(ylabel="training loss")
bottom.set(xlabel="round", ylabel="learning rate")
print(
    f"round {stage.record.round}: {stage.run}; the last round trained clients {', '.join(stage.clients)}"
)
