"""CIFAR-10 for benchmarks: the real images, or made-up ones of the same shapes."""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import fedprox as fp
from benchmarks.gpu_parts.part import Part
from fedprox.datasets import CATALOGUE
from fedprox.datasets.cifar import CIFAR_10
from fedprox.datasets.sources import at_hand


class Images(NamedTuple):
    """A federation of images, and whether they are real."""

    federation: fp.Federation
    real: bool

    @property
    def name(self) -> str:
        """What the images are."""
        return "CIFAR-10" if self.real else "made-up images"


def images(part: Part, clients: int, augmentation: Literal["none", "feddyn"]) -> Images:
    """CIFAR-10, IID, if it is in the folder with data; else images of ten made-up classes.

    Args:
        part: The part; a tiny one has few made-up images.
        clients: Number of clients.
        augmentation: As in `fedprox.datasets.cifar_10`.
    """
    real = all(at_hand(file, part.data_dir) for file in CATALOGUE["cifar-10"].files)
    if real and not part.tiny:
        federation = fp.datasets.cifar_10(
            clients=clients, augmentation=augmentation, data_dir=part.data_dir
        )
        return Images(federation, real=True)
    train, test = (10 * clients, 2 * clients) if part.tiny else (50_000, 10_000)
    rng = np.random.default_rng(0)
    # classes differ in the colours of the four corners
    centres = np.kron(rng.integers(64, 192, (10, 2, 2, 3)), np.ones((1, 16, 16, 1)))
    augment: Any = CIFAR_10.augmented if augmentation == "feddyn" else None
    return Images(
        fp.Federation(
            rows(rng, centres, train, clients),
            rows(rng, centres, test, clients),
            10,
            tuple(map(str, range(clients))),
            augment,
        ),
        real=False,
    )


def rows(rng: np.random.Generator, centres: NDArray[Any], count: int, clients: int) -> fp.Rows:
    """Images of random classes as bytes, in equal shares."""
    y = rng.integers(0, 10, count).astype(np.uint8)
    x = np.empty((count, 32, 32, 3), np.uint8)
    for i in range(0, count, 5000):  # noise in single precision, a part at a time
        of = y[i : i + 5000]
        noise = 64 * rng.standard_normal((len(of), 32, 32, 3), np.float32)
        x[i : i + 5000] = np.clip(centres[of] + noise, 0, 255).astype(np.uint8)
    offsets = np.linspace(0, count, clients + 1).astype(np.int64)
    return fp.Rows(fp.Prepared(x, CIFAR_10.standardised), y, offsets)


def follow(part: Part, table: str, rounds: int) -> fp.Callback:
    """A callback that writes each record with the seconds since the first one."""
    begin: list[float] = []

    def on_record(record: fp.Record) -> None:
        begin.append(part.left)
        part.write(
            table,
            **{
                "round": record.round,
                "of": rounds,
                "seconds since round 0": begin[0] - begin[-1],
                "training loss": record.train_loss,
                "test accuracy": record.test_accuracy,
            },
        )

    return fp.Callback(on_record=on_record)


def speed(run: fp.Run, data: str) -> dict[str, Any]:
    """The seconds of a finished run."""
    return {
        "images": data,
        "rounds": run.final.round,
        "seconds a round": run.run_seconds / max(run.final.round, 1),
        "run s": run.run_seconds,
        "compile s": run.compile_seconds,
        "client steps a second": run.client_steps / run.run_seconds,
        "test accuracy": run.final.test_accuracy,
    }
