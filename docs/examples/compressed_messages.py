r"""
Compressed messages
===================

How few bits are enough? Clients code their updates with 4 bits a number, by the largest 2 %, or by signs after a
rotation (DRIVE). Records count the bits. More in :doc:`/howto/compression`.
"""

import matplotlib.pyplot as plt

import fedprox as fp

federation = fp.datasets.synthetic()
codecs = {
    "full": fp.Compression("full"),
    "4 bits": fp.Compression("quantize", bits=4),
    "largest 2 %": fp.Compression("top-k", share=0.02, error_feedback=True),
    "signs, rotated": fp.Compression("sign", rotate=True),
}

fig, ax = plt.subplots()
for name, compression in codecs.items():
    (run,) = fp.simulate(
        federation,
        fp.models.logistic(federation),
        fp.fedprox(mu=0.1),
        solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=5),
        cohort=fp.Cohort(clients_per_round=10),
        rounds=60,
        compression=compression,
        evaluation=fp.Evaluation(every=2, gradients=False),
        progress=False,
    )
    kilobytes = [record.bits_up / 8e3 for record in run.history]
    ax.plot(kilobytes[1:], [record.train_loss for record in run.history[1:]], label=name)
    print(f"{name:<16}{kilobytes[-1]:6.0f} kB, loss {run.final.train_loss:.3f}")
ax.set(xlabel="kB sent by clients", ylabel="training loss", xscale="log")
ax.legend()
