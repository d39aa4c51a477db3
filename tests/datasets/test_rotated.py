"""Rotated images, by hand."""

from typing import Any

import numpy as np
import pytest

import fedprox as fp

IMAGE = np.arange(4.0, dtype=np.float32).reshape(2, 2)


def federation(image: Any = IMAGE, **options: Any) -> fp.Federation:
    clients = [(np.stack([image + 10 * k] * (k + 1)), [0] * (k + 1)) for k in range(3)]
    tests: Any = [(clients[0][0], [0]), ([], []), (clients[1][0], [0, 0])]
    return fp.Federation.from_arrays(clients, test=tests, **options)


def test_each_clients_rows_are_turned_alike() -> None:
    turned = fp.datasets.rotated(federation(), [0, 90])
    assert turned.train.x[0].tolist() == [[0, 1], [2, 3]]
    assert turned.train.x[1].tolist() == turned.train.x[2].tolist() == [[11, 13], [10, 12]]
    assert turned.train.x[3].tolist() == [[20, 21], [22, 23]]  # the third client again by 0
    assert turned.test.x[1].tolist() == [[10, 11], [12, 13]]


def test_bytes_stay_bytes_and_channels_stay_behind() -> None:
    stored = fp.Prepared(np.array(IMAGE[None], np.uint8), lambda raw: raw / 2)
    rows = fp.Rows(stored, np.array([0]), np.array([0, 1]))
    one = fp.Federation(rows, rows, 1, ("a",))
    turned = fp.datasets.rotated(one, [180])
    assert isinstance(turned.train.x, fp.Prepared)
    assert turned.train.x.index.dtype == np.uint8
    assert np.asarray(turned.train.x)[0].tolist() == [[1.5, 1], [0.5, 0]]
    colours = federation(np.stack([IMAGE, -IMAGE], axis=-1))
    once = fp.datasets.rotated(colours, [270]).train.x[0]
    assert once[..., 0].tolist() == [[2, 0], [3, 1]]
    assert once[..., 1].tolist() == [[-2, 0], [-3, -1]]


@pytest.mark.parametrize(
    ("image", "degrees", "message"),
    [
        (IMAGE, [0, 45], r"rotated: degrees = \[0, 45\]; each must be a multiple of 90"),
        (IMAGE, [], "rotated: degrees is empty"),
        (IMAGE[0], [90], r"rotated: features of shape \(2,\); they must be square images"),
    ],
)
def test_what_cannot_be_turned_is_refused(image: Any, degrees: list[int], message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        fp.datasets.rotated(federation(image), degrees)
