"""Models made of a model: frozen bases, low-rank adapters, mixed precision.

The parameters of a model with a frozen base are the trained ones alone. So the frozen values are
not sent, averaged, clipped or decayed, and no client has state for them, whatever the method and
the optimizer. They are arguments of the compiled programs (`Model.base`): as constants they would
be written into each program, and compiled and cached with it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedprox.errors import require, require_number, require_whole, shown
from fedprox.model.model import Model, dotted, fitted_params, rewritten
from fedprox.model.variables import Params, trainable
from fedprox.precision import real_type
from fedprox.user_code import SHOWN

FACTORS = ".A", ".B"
"""The suffixes of a matrix's name in the names of its adapter's factors."""


@dataclass(frozen=True)
class _Whole:
    """(frozen arrays by name, trained parameters) -> the parameters of the whole model.

    Attributes:
        names: The names of all arrays of the whole model, in order.
        structure: The structure of the whole model's pytree.
        scale: Factor of the products of adapters.
    """

    names: tuple[str, ...]
    structure: Any
    scale: float = 1.0

    def __call__(self, frozen: dict[str, jax.Array], trained: Params) -> Params:
        def whole(name: str) -> jax.Array:
            if name in trained:
                return trained[name]
            array, (a, b) = frozen[name], (name + factor for factor in FACTORS)
            if a not in trained:
                return array
            product = self.scale * (trained[a] @ trained[b])
            return array + product.reshape(array.shape).astype(array.dtype)

        return jax.tree.unflatten(self.structure, list(map(whole, self.names)))


@dataclass(frozen=True, eq=False)
class _Init:
    """(random key) -> the first trained parameters.

    Programs are the same for all values that training starts from, so these are not compared by
    `fedprox.same.by_value`.

    Attributes:
        whole: `Model.init` of the whole model.
        names: Names of the parts that are trained whole.
        matrices: Rows and columns of the matrices that have adapters, by name.
        rank: Rank of the adapters.
        start: The values of the parts that are trained whole, by name.
    """

    whole: Callable[[jax.Array], Params]
    names: tuple[str, ...]
    matrices: dict[str, tuple[int, int]]
    rank: int
    start: dict[str, jax.Array] = field(compare=False)

    def __call__(self, key: jax.Array) -> Params:
        factors, draw = {}, jax.nn.initializers.he_uniform()
        for i, (name, (rows, columns)) in enumerate(self.matrices.items()):
            a, b = (name + factor for factor in FACTORS)
            factors[a] = draw(jax.random.fold_in(key, i), (rows, self.rank), real_type())
            factors[b] = jnp.zeros((self.rank, columns), real_type())
        return self.start | factors


@dataclass(frozen=True)
class _State:
    """(random key) -> a given state, whose values programs do not depend on."""

    values: Any = field(compare=False)

    def __call__(self, key: jax.Array) -> Any:
        del key
        return self.values


def _over(model: Model, given: Params, init: _Init, base: Partial) -> Model:
    """A model over a base, whose state begins as the given variables' does."""
    state = _State(given.state) if model.state else None
    return replace(model, init=init, base=base, state=state)


def freeze(model: Model, params: Params, names: Sequence[str]) -> Model:
    """Freeze parts of a model, so that only the others are trained.

    Args:
        model: The whole model.
        params: Parameters of the whole model, such as those of `fedprox.load_model`: the values of
            the frozen parts, and those from which the others start. Of a model with state,
            `fedprox.Variables`, whose state is the first one. It moves, also that of frozen layers,
            as long as a method's `model_state` is not "server".
        names: Dotted names of parameters ("dense.weight") or of parts with several ("dense"), or
            shell-style patterns of them, such as ``*.bias``.

    Returns:
        A model whose parameters are those that are trained, a dict by dotted name. Its
        :meth:`~fedprox.Model.whole` returns the parameters of the whole model from them; for a
        model with state, `fedprox.Variables`.

    Raises:
        InputError: If the parameters are not the model's, a name is not one of its parts, or
            nothing is left to train.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> model = fp.Model(
        ...     lambda key: {"embedding": jnp.ones((5, 2)), "head": jnp.zeros((2, 3))},
        ...     lambda params, x: params["embedding"][x] @ params["head"],
        ... )
        >>> frozen = fp.freeze(model, model.init(jax.random.key(0)), ["embedding"])
        >>> trained = frozen.init(jax.random.key(1))
        >>> list(trained), list(frozen.whole(trained))
        (['head'], ['embedding', 'head'])
    """
    given, arrays, structure = _named("frozen", model, params)
    frozen = _matching("frozen", names, arrays)
    start = {name: array for name, array in arrays.items() if name not in frozen}
    require(start, "frozen: these are all parameters of the model; leave some out")
    values = {name: arrays[name] for name in frozen}
    init = _Init(model.init, tuple(start), {}, 0, start)
    return _over(model, given, init, Partial(_Whole(tuple(arrays), structure), values))


def lora(
    model: Model,
    params: Params,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] = ("*",),
    trained: Sequence[str] = (),
) -> Model:
    r"""Train low-rank adapters of matrices, and freeze all else.

    The matrix :math:`W_0` of each target becomes

    .. math:: W = W_0 + \frac{\alpha}{r} A B,

    with :math:`A` of :math:`r` columns and :math:`B` of :math:`r` rows. :math:`A` starts at random
    (He et al.'s uniform distribution) and :math:`B` at zero, so the first model is the given one.

    A tensor with more than two axes is a matrix whose rows are its first axes and whose columns are
    the others, split where A and B are smallest. For example, a convolution's kernel (3, 3, 64,
    128) is a matrix of 576 by 128, and that of an attention layer (768, 12, 64) one of 768 by 768.

    Args:
        model: The whole model.
        params: Parameters of the whole model: the frozen values, and those from which the parts in
            `trained` start. Of a model with state, `fedprox.Variables`, as in `fedprox.freeze`.
        rank: Rank :math:`r` of the adapters, at most the rows and the columns of each matrix.
        alpha: :math:`\alpha`, above 0.
        targets: Shell-style patterns of the dotted names of arrays that get adapters, or of parts
            with several; arrays with one axis among them get none.
        trained: Names or patterns, likewise, of parts that are trained whole, such as a new head.
            They get no adapters.

    Returns:
        A model whose parameters are the factors and the parts that are trained whole, a dict: the
        factors of "dense.weight" are "dense.weight.A" and "dense.weight.B". Its
        :meth:`~fedprox.Model.whole` merges the adapters into the matrices.

    Raises:
        InputError: If the parameters are not the model's, a name or pattern matches none of its
            arrays, no matrix is left, or `rank` or `alpha` is out of range.

    Example:
        >>> import jax
        >>> import fedprox as fp
        >>> model = fp.models.logistic(fp.datasets.synthetic(clients=2))
        >>> adapted = fp.lora(model, model.init(jax.random.key(0)), rank=2)
        >>> {name: array.shape for name, array in adapted.shapes.items()}
        {'dense.weight.A': (10, 2), 'dense.weight.B': (2, 60)}

    References:
        Hu et al., `LoRA: Low-Rank Adaptation of Large Language Models
        <https://arxiv.org/abs/2106.09685>`_, ICLR 2022, section 4.1.
    """
    require_whole("lora.rank", rank)
    require_number("lora.alpha", alpha, positive=True)
    given, arrays, structure = _named("lora", model, params)
    kept = _matching("lora.trained", trained, arrays) if len(trained) else []
    chosen = [name for name in _matching("lora.targets", targets, arrays) if name not in kept]
    matrices = {name: _as_matrix(arrays[name].shape) for name in chosen if arrays[name].ndim > 1}
    require(matrices, f"lora.targets = {shown(list(targets))}; no matrix to adapt is among them")
    for name, sides in matrices.items():
        require(
            rank <= min(sides),
            f"lora.rank = {rank}; {name} is a matrix of {sides[0]} by {sides[1]}",
        )
    start = {name: arrays[name] for name in kept}
    values = {name: array for name, array in arrays.items() if name not in start}
    init = _Init(model.init, tuple(start), matrices, rank, start)
    whole = _Whole(tuple(arrays), structure, alpha / rank)
    return _over(model, given, init, Partial(whole, values))


def adapted(params: Params) -> list[str]:
    """The names of the matrices that have adapters among given parameters, or variables."""
    (first, _), found = FACTORS, trainable(params)
    names = found if isinstance(found, dict) else {}
    return [name.removesuffix(first) for name in names if str(name).endswith(first)]


def rank_of(params: Params) -> int:
    """The rank of the adapters among given parameters, or variables."""
    first, _ = FACTORS
    return int(trainable(params)[adapted(params)[0] + first].shape[1])


def _named(where: str, model: Model, params: Params) -> tuple[Params, dict[str, jax.Array], Any]:
    """Given parameters as the model's own, all arrays by their dotted names, and their structure.

    Of a model with state these are its variables, and the arrays those of its parameters.
    """
    require(not model.base, f"{where}: the model has frozen parts already")
    given = fitted_params(where, model, params)
    paths, structure = jax.tree_util.tree_flatten_with_path(trainable(given))
    arrays = {dotted(path): array for path, array in paths}
    require(len(arrays) == len(paths), f"{where}: two parameters of the model have the same name")
    return given, arrays, structure


def _matching(where: str, patterns: Sequence[str], names: dict[str, jax.Array]) -> list[str]:
    """The names that patterns match, themselves or the part that they are in."""
    require(
        isinstance(patterns, Sequence)
        and not isinstance(patterns, str)
        and len(patterns) > 0
        and all(isinstance(each, str) for each in patterns),
        f"{where} = {shown(patterns)}; it must be a list of names of parameters",
    )

    def matches(name: str, pattern: str) -> bool:
        return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")

    some = ", ".join([*list(names)[:SHOWN], *(["..."] if len(names) > SHOWN else [])])
    for pattern in patterns:
        found = any(matches(name, pattern) for name in names)
        require(found, f"{where}: the model has no part {shown(pattern)}; it has {some}")
    return [name for name in names if any(matches(name, pattern) for pattern in patterns)]


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The rows and columns of a tensor's matrix.

    >>> _as_matrix((3, 3, 64, 128)), _as_matrix((768, 12, 64))
    ((576, 128), (768, 768))
    """
    splits = [(math.prod(shape[:i]), math.prod(shape[i:])) for i in range(1, len(shape))]
    return min(splits, key=sum)


def _low(given: Any) -> Any:
    """Real numbers in bfloat16, and other arrays as they are."""

    def low(array: Any) -> Any:
        real = jnp.issubdtype(array.dtype, jnp.floating)
        return array.astype(jnp.bfloat16) if real else array

    return jax.tree.map(low, given)


def _high(computed: Any) -> Any:
    """Arrays of bfloat16 as the library's real numbers."""

    def high(array: Any) -> Any:
        return array.astype(real_type()) if array.dtype == jnp.bfloat16 else array

    return jax.tree.map(high, computed)


@dataclass(frozen=True)
class _InBfloat16:
    """A model's function of (parameters, features, ...), computed in bfloat16."""

    function: Callable[..., jax.Array]

    def __call__(self, *given: Any) -> Any:
        return _high(self.function(*_low(given)))


@dataclass(frozen=True)
class _BesideState:
    """The same of (parameters, state, features, ...), whose state stays as it is."""

    function: Callable[..., Any]

    def __call__(self, params: Params, state: Any, *given: Any, mask: Any = None) -> Any:
        told = {} if mask is None else {"mask": mask}
        return _high(self.function(_low(params), state, *_low(given), **told))


def mixed_precision(model: Model) -> Model:
    """Compute a model in bfloat16, with its parameters in float32.

    Parameters and features are rounded to bfloat16, which has 8 significant bits and the range of
    float32, before each forward and backward pass. So activations and their gradients are in
    bfloat16, at half the memory. Everything else stays in float32: the parameters and the state
    that local steps move, since most steps are too small for bfloat16, and losses, messages, sums
    and the server's state. Evaluations compute as training does.

    It pays on accelerators with matrix units for bfloat16; CPUs are slower with it.

    Args:
        model: The model to compute with.

    Returns:
        The model, whose functions round their arguments and the frozen values.

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
    return rewritten(model, _BesideState if model.state else _InBfloat16)
