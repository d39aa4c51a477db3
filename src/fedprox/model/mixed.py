"""Mixed precision: models that compute in bfloat16 with parameters in float32."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedprox.model.model import Model, rewritten
from fedprox.precision import real_type


@dataclass(frozen=True)
class _InBfloat16:
    """A model's function of (parameters, features, ...), computed in bfloat16.

    Attributes:
        function: The function.
    """

    function: Callable[..., jax.Array]

    def __call__(self, *given: Any) -> jax.Array:
        def low(array: Any) -> Any:
            real = jnp.issubdtype(array.dtype, jnp.floating)
            return array.astype(jnp.bfloat16) if real else array

        return self.function(*jax.tree.map(low, given)).astype(real_type())


def mixed_precision(model: Model) -> Model:
    """Compute a model in bfloat16, with its parameters in float32.

    Parameters and features are rounded to bfloat16, which has 8 significant bits and the range of
    float32, before each forward and backward pass. So activations and their gradients are in
    bfloat16, at half the memory. Everything else stays in float32: the parameters that local steps
    move, since most steps are too small for bfloat16, losses, messages, sums and the server's
    state. Evaluations compute as training does.

    It pays on accelerators with matrix units for bfloat16; most CPUs are slower with it.

    Args:
        model: The model.

    Returns:
        The model, whose functions round what they take; frozen values are rounded likewise.

    Example:
        >>> import jax
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=2)
        >>> model = fp.models.logistic(federation)
        >>> params, x = model.init(jax.random.key(0)), federation.train.x[:2]
        >>> low = fp.mixed_precision(model).apply(params, x)
        >>> low.dtype, bool(jnp.allclose(low, model.apply(params, x), atol=0.1))
        (dtype('float32'), True)

    References:
        Micikevicius et al., `Mixed Precision Training <https://arxiv.org/abs/1710.03740>`_, ICLR
        2018, section 3.1; with bfloat16 losses need no scaling.
    """
    return rewritten(model, _InBfloat16)
