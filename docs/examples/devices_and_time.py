r"""
Devices and time
================

Wait for slow devices, or set a deadline? Waiting needs fewer rounds, but may need more time. Devices' speeds are drawn
here; they may also be listed, or read from a trace. More in :doc:`/howto/time`.
"""

import matplotlib.pyplot as plt

import fedprox as fp

federation = fp.datasets.synthetic()
model = fp.models.logistic(federation)
population = fp.Population(step_seconds=fp.LogNormal(0.1, spread=1.5), upload=100_000.0)
rules = {
    "wait for all": fp.Systems(),
    "deadline, late work dropped": fp.Systems(deadline=30.0),
    "deadline, partial work kept": fp.Systems(deadline=30.0),
}

fig, ax = plt.subplots()
for name, systems in rules.items():
    (run,) = fp.simulate(
        federation,
        model,
        fp.fedprox(mu=0.1) if "kept" in name else fp.fedavg(),
        solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=10),
        cohort=fp.Cohort(clients_per_round=10),
        population=population,
        systems=systems,
        rounds=60,
        evaluation=fp.Evaluation(gradients=False),
        progress=False,
    )
    minutes = [record.time / 60 for record in run.history]
    ax.plot(minutes, [record.test_accuracy for record in run.history], label=name)
    print(f"{name:<28}{minutes[-1]:6.0f} minutes for 60 rounds")
ax.set(xlabel="minutes", ylabel="test accuracy", xlim=(0, 60))
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend()
