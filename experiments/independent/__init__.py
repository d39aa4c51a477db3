"""What the authors of other methods proved in closed form, beside what this library measures."""

from experiments.independent.ditto import POINT_ESTIMATION
from experiments.independent.fednova import QUADRATICS
from experiments.independent.fedsplit import LEAST_SQUARES

ITEMS = {
    "fednova-quadratics": QUADRATICS,
    "fedsplit-least-squares": LEAST_SQUARES,
    "ditto-point-estimation": POINT_ESTIMATION,
}
