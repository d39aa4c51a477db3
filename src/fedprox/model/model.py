"""A model as pure functions: initial parameters, predictions, loss and accuracy."""

import dataclasses
import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.errors import require
from fedprox.features import Features, index_of, look_up, row_count, rows_like
from fedprox.federation import Federation
from fedprox.jax_internals import require_backend
from fedprox.losses import (
    Correct,
    CrossEntropy,
    Loss,
    accuracy_of,
    by_labels,
    check_loss,
    is_of_library,
    met_by_labels,
)
from fedprox.metrics import Metric, check_metrics, weighted_sums
from fedprox.model.convolution import fast
from fedprox.model.variables import Params, Variables, trainable
from fedprox.precision import real_type
from fedprox.same import made_once
from fedprox.user_code import call, listed, shapes_of

if TYPE_CHECKING:
    from flax import linen, nnx


AUTO: Any = "auto"
"""The default of `Model.correct`."""

Apply = Callable[..., jax.Array]
Train = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as pure functions of its parameters.

    Attributes:
        init: (random key) -> initial parameters, a pytree of floating-point arrays.
        apply: (parameters, features (B, ...)) -> outputs (B, ...). Features are one array, or the
            dict or tuple of arrays that the federation has. It refuses parameters that do not have
            the structure and shapes of `init`.
        loss: (outputs, labels) -> loss of each example, shape (B,): one of :mod:`fedprox.losses`,
            or a function. By default, it follows from the labels and the outputs' shape. For whole
            numbers with an output for each class it is cross-entropy. For 0 and 1 with one output
            for each label it is sigmoid cross-entropy. For floating-point labels it is the squared
            error.
        correct: (outputs, labels) -> whether each label is met, booleans of shape (B,), or of the
            labels' shape if a row has several, false if outputs are NaN. Accuracy is their share of
            all labels. None for a model without accuracy. By default, it follows from the loss. For
            cross-entropy the label must have the largest output. For sigmoid cross-entropy an
            output above 0 means a label of 1. For other losses there is none.
        metrics: Further measures by name, see :class:`fedprox.Metric`. Evaluations report each as
            `test_NAME` over all test rows and as `train_NAME` over all training rows.
        train: (parameters, features, random key) -> outputs, in place of `apply` on the
            mini-batches that clients train on, as with dropout. The key depends on (seed, round,
            client, mini-batch); each part of a mini-batch that is read in parts has its own.
            Evaluations, predictions and gradients over all of a client's rows use `apply`. None for
            `apply`.
        representation: (parameters, features) -> the representation of each example, (B, ...),
            such as the values before the last layer, without dropout. `fedprox.moon` compares them.
            None if the model does not say.
        base: (parameters) -> the parameters that the functions `apply` and `train` take, if
            training changes only a part of these, as with :func:`fedprox.freeze` and
            :func:`fedprox.lora`. It is a `jax.tree_util.Partial`, whose arrays are arguments of
            compiled programs: they are stored once on each device, and never sent, averaged or
            saved. None for the parameters themselves.
        state: (random key) -> the initial state, a pytree of arrays that no gradient moves, such as
            the running statistics of batch normalization. None for a model without. With state
            `apply` and `representation` are functions of (parameters, state, features), and `train`
            is one of (parameters, state, features, random key) that returns the outputs and the
            next state. If `train` has a parameter `mask`, it receives by this name which rows
            count, booleans (B,), since mini-batches are padded with copies of their own rows.
            `init` and `apply` of the model itself return and take :class:`fedprox.Variables`.

    Raises:
        InputError: If an attribute is not a function, `metrics` is not a dict of metrics, or `base`
            is not a `jax.tree_util.Partial`. Later, from `apply`: if parameters have another
            structure or shape, or the model cannot take the features.

    Example:
        Two functions are enough; here with a loss for regression:

        >>> import jax, jax.numpy as jnp
        >>> import fedprox as fp
        >>> def init(key):
        ...     return {"slope": jnp.zeros(2)}
        >>> def apply(params, x):
        ...     return x @ params["slope"]
        >>> def squared(outputs, y):
        ...     return (outputs - y) ** 2
        >>> model = fp.Model(init, apply, squared)
        >>> model.apply(model.init(jax.random.key(0)), jnp.ones((3, 2))).shape
        (3,)
        >>> model.apply({"intercept": jnp.zeros(2)}, jnp.ones((3, 2)))
        Traceback (most recent call last):
        ...
        fedprox.errors.InputError: model: parameters have 'intercept' where 'slope' is needed
    """

    init: Callable[[jax.Array], Params]
    apply: Apply
    loss: Loss = by_labels
    correct: Correct | None = AUTO
    metrics: Mapping[str, Metric] = dataclasses.field(default_factory=dict, hash=False)
    train: Train | None = None
    representation: Apply | None = None
    base: Callable[[Params], Params] | None = dataclasses.field(
        default=None, compare=False, repr=False
    )
    state: Callable[[jax.Array], Any] | None = None

    def __post_init__(self) -> None:
        check_metrics(self.metrics)
        check_loss("model.loss", self.loss)
        object.__setattr__(self, "metrics", dict(self.metrics))
        # the default of another loss, as `dataclasses.replace` leaves it
        left = self.correct is met_by_labels and is_of_library(self.loss)
        if self.correct is AUTO or left:
            object.__setattr__(self, "correct", accuracy_of(self.loss))
        optional = "correct", "train", "representation", "state"
        for name in ("init", "apply", "loss", *optional):
            function = getattr(self, name)
            require(
                callable(function) or (name in optional and function is None),
                f"model.{name} = {function!r}; it must be a function",
            )
        require(
            isinstance(self.base, jax.tree_util.Partial | None),
            f"model.base: of type {type(self.base).__name__}; it must be a jax.tree_util.Partial",
        )
        require(
            not self.state or self.train,
            "model.train: a model with state needs it, since it says how the state moves",
        )
        init = self.init.params if isinstance(self.init, _Init) else self.init
        object.__setattr__(self, "init", _Init(init, self.state) if self.state else init)
        if self.state and self.train and not isinstance(self.train, _Train):
            object.__setattr__(self, "train", _Train(self.train))
        function = self.apply.function if isinstance(self.apply, _Apply) else self.apply
        object.__setattr__(self, "apply", _Apply(function, self.init, self.base))

    @property
    def shapes(self) -> Params:
        """Shapes and types of what `init` returns, a pytree of `jax.ShapeDtypeStruct`.

        Raises:
            InputError: If `init` does not return a pytree of floating-point arrays.
        """
        assert isinstance(self.apply, _Apply)
        return self.apply.shapes

    @property
    def size_bytes(self) -> int:
        """Bytes of the parameters, and of the state if there is one."""
        return bytes_of(self.shapes)

    def whole(self, params: Params) -> Params:
        """The parameters that the function `apply` takes, such as for `fedprox.save_model`.

        Args:
            params: Parameters like those of `init`.

        Returns:
            The parameters of the whole model; the given ones without `base`.

        Raises:
            InputError: If the parameters have another structure or shape.
        """
        check_params("model", params, self.shapes)
        whole, *state = arguments(params, self.base)
        return Variables(whole, *state) if state else whole

    @classmethod
    def from_nnx(
        cls,
        build: "Callable[[nnx.Rngs], nnx.Module]",
        loss: Loss = by_labels,
        correct: Correct | None = AUTO,
        metrics: Mapping[str, Metric] = MappingProxyType({}),
    ) -> "Model":
        """A model from a flax.nnx module.

        Args:
            build: (`flax.nnx.Rngs`) -> module. Its `nnx.Param` are the parameters. Random streams,
                as of `nnx.Dropout`, get a key for each training mini-batch, and are off elsewhere.
                All other variables, as the running statistics of `nnx.BatchNorm`, are the model's
                state; those of `nnx.BatchNorm(..., use_running_average=True)`, as of a pretrained
                module that `build` returns, are constants. A method `representation` becomes that
                of the model. Whether dropout is on does not depend on the mode, `module.train()` or
                `module.eval()`, in which `build` returns it.
            loss: As in `Model`.
            correct: As in `Model`.
            metrics: As in `Model`.

        Returns:
            The model.

        Raises:
            InputError: If `build` is not such a function.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> import fedprox as fp
            >>> from flax import nnx
            >>> model = fp.Model.from_nnx(lambda rngs: nnx.Linear(4, 3, rngs=rngs))
            >>> model.apply(model.init(jax.random.key(0)), jnp.ones((2, 4))).shape
            (2, 3)
        """
        from fedprox.model.flax_functions import of_nnx  # here, since flax is slow to import

        functions = made_once(of_nnx, build)._asdict()
        return cls(loss=loss, correct=correct, metrics=metrics, **functions)

    @classmethod
    def from_linen(
        cls,
        module: "linen.Module",
        example: Any,
        loss: Loss = by_labels,
        correct: Correct | None = AUTO,
        metrics: Mapping[str, Metric] = MappingProxyType({}),
    ) -> "Model":
        """A model from a flax.linen module.

        Args:
            module: The module. Its parameters are the collection `params`; all others but
                `intermediates` are the model's state. Arguments of its call named `train`,
                `training` or `is_training` are true on mini-batches that clients train on and else
                false; `deterministic` and `use_running_average` the other way round. Dropout gets a
                key for each mini-batch. A method `representation` becomes that of the model.
            example: Some rows of features, of which only the shapes and types matter.
            loss: As in `Model`.
            correct: As in `Model`.
            metrics: As in `Model`.

        Returns:
            The model.

        Raises:
            InputError: If it is no module, or has no parameters.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> import fedprox as fp
            >>> from flax import linen as nn
            >>> class Network(nn.Module):
            ...     @nn.compact
            ...     def __call__(self, x, train):
            ...         x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
            ...         return nn.Dense(3)(nn.relu(x))
            >>> model = fp.Model.from_linen(Network(), jnp.ones((1, 4)))
            >>> whole = model.init(jax.random.key(0))
            >>> sorted(whole.params), sorted(whole.state)
            (['BatchNorm_0', 'Dense_0', 'Dense_1'], ['batch_stats'])
            >>> model.apply(whole, jnp.ones((2, 4))).shape
            (2, 3)
        """
        from fedprox.model.flax_functions import of_linen

        functions = of_linen(module, example)._asdict()
        return cls(loss=loss, correct=correct, metrics=metrics, **functions)


@dataclasses.dataclass(frozen=True)
class _Init:
    """`Model.init` of a model with state, from the user's functions."""

    params: Callable[[jax.Array], Params]
    state: Callable[[jax.Array], Any]

    def __call__(self, key: jax.Array) -> Variables:
        return Variables(self.params(key), self.state(key))


@dataclasses.dataclass(frozen=True)
class _Train:
    """`Model.train` of a model with state, which may be told which rows count."""

    function: Train

    @cached_property
    def takes_mask(self) -> bool:
        """Whether the user's function has a parameter `mask`."""
        return "mask" in inspect.signature(self.function).parameters

    def __call__(self, params: Params, state: Any, x: Any, key: Any, mask: Any = None) -> Any:
        told = {"mask": mask} if self.takes_mask else {}
        return self.function(params, state, x, key, **told)


@dataclasses.dataclass(frozen=True)
class _Apply:
    """`Model.apply`: the user's function, which refuses parameters unlike those of `init`."""

    function: Apply
    init: Callable[[jax.Array], Params]
    base: Callable[[Params], Params] | None = dataclasses.field(default=None, compare=False)

    @cached_property
    def shapes(self) -> Params:
        """See `Model.shapes`."""
        require_backend()
        like = shapes_of("model.init(key)", self.init, jax.random.key(0))
        if isinstance(like, Variables):
            _check_state(like.state)
        leaves = jax.tree_util.tree_leaves_with_path(trainable(like))
        require(leaves, "model.init(key) returns no array; it must return the parameters")
        for path, leaf in leaves:
            require(
                jnp.issubdtype(leaf.dtype, jnp.floating),
                f"model.init(key) returns {dotted(path) or 'an array'} of type {leaf.dtype}; "
                "parameters must be floating-point numbers",
            )
        beside = _beside_params(trainable(like))
        require(
            not beside,
            f"model.init(key) returns {', '.join(map(repr, beside))} beside 'params', as a "
            "flax.linen module does; training would change them like parameters: use "
            "fedprox.Model.from_linen(module, example)",
        )
        return like

    @cached_property
    def _expected(self) -> tuple[Any, list[tuple[int, ...]]]:
        leaves, structure = jax.tree.flatten(self.shapes)
        return structure, [leaf.shape for leaf in leaves]

    def __call__(self, params: Params, x: Features) -> jax.Array:
        leaves, structure = call("model: its parameters", jax.tree.flatten, params)
        if (structure, [np.shape(leaf) for leaf in leaves]) != self._expected:
            check_params("model", params, self.shapes)
        given = arguments(params, self.base)
        return call(named("apply", given), fast(self.function), *given, x, given={"x": x})


def bytes_of(tree: Any) -> int:
    """Bytes of the arrays of a tree, or of their shapes and types."""
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in jax.tree.leaves(tree))


def arguments(params: Params, base: Callable[[Params], Params] | None) -> tuple[Any, ...]:
    """The first arguments of a model's functions: whole parameters, and a state if any."""
    trained, *state = params if isinstance(params, Variables) else (params,)
    return (base(trained) if base else trained, *state)


def named(function: str, given: Sequence[Any], more: str = "") -> str:
    """The name of a model's function in messages, such as "model.apply(params, x)"."""
    return f"model.{function}({', '.join(('params', 'state')[: len(given)])}, x{more})"


def _check_state(like: Any) -> None:
    """Raise `InputError` unless a model's state consists of numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(like):
        require(
            jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.issubdtype(leaf.dtype, jnp.integer),
            f"model.state(key) returns {dotted(path) or 'an array'} of type {leaf.dtype}; a state "
            "must be numbers, of which clients' can be averaged",
        )


def _beside_params(tree: Any) -> list[str]:
    """The collections of a flax.linen module's variables beside its parameters, at any depth."""
    if not isinstance(tree, Mapping):
        return []
    if isinstance(tree.get("params"), Mapping):
        others = [name for name, part in tree.items() if isinstance(part, Mapping)]
        return [str(name) for name in others if name != "params"]
    return [name for part in tree.values() for name in _beside_params(part)]


def with_base(model: Model, base: Any) -> Model:
    """A model with the arrays of another base, such as traced ones; see `Model.base`."""
    return model if base is model.base else dataclasses.replace(model, base=base)


def with_loss(model: Model, loss: Loss) -> Model:
    """A model with another loss, and the accuracy that belongs to it unless it has one of its own.

    >>> from fedprox.losses import squared
    >>> model = Model(lambda _: {"w": jnp.zeros(2)}, lambda params, x: x @ params["w"])
    >>> with_loss(model, squared()).correct is None
    True
    """
    own = model.correct is not accuracy_of(model.loss)
    return dataclasses.replace(model, loss=loss, correct=model.correct if own else AUTO)


def rewritten(model: Model, rewrite: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Model:
    """A model whose functions of (the whole model's parameters, ..., features, ...) are others."""
    assert isinstance(model.apply, _Apply)
    others = {name: getattr(model, name) for name in ("train", "representation")}
    changed: Any = {name: rewrite(each) for name, each in others.items() if callable(each)}
    return dataclasses.replace(model, apply=rewrite(model.apply.function), **changed)


def dotted(path: Sequence[Any]) -> str:
    """The name of an array of a pytree from its path, such as "dense.bias"."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator=".")


def named_part(name: str, known: Iterable[str]) -> list[str]:
    """The parameters, of those with dotted names `known`, that a name of one or of many denotes.

    >>> named_part("dense", ["dense.bias", "dense.kernel", "dense2.bias"])
    ['dense.bias', 'dense.kernel']
    """
    return [each for each in known if each == name or each.startswith(f"{name}.")]


def check_params(where: str, params: Params, shapes: Params) -> None:
    """Raise `InputError` unless parameters have given paths and shapes.

    The types of containers may differ if their keys agree, as a list's and a tuple's.

    >>> check_params("model", {"kernel": jnp.zeros((4, 3))}, {"kernel": jnp.zeros((3, 4))})
    Traceback (most recent call last):
    ...
    fedprox.errors.InputError: model: kernel: shape (4, 3) where (3, 4) is needed
    """
    given, needed = (dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in (params, shapes))
    extra = [path for path in given if path not in needed]
    missing = [path for path in needed if path not in given]
    # keys may differ only in type, as 0 and "0", which dotted names do not show
    alike = {dotted(path) for path in extra} & {dotted(path) for path in missing}
    name = jax.tree_util.keystr if alike else _quoted
    is_needed = f"{listed(missing, name)} {'is' if len(missing) == 1 else 'are'} needed"
    require(
        not extra or not missing,
        f"{where}: parameters have {listed(extra, name)} where {is_needed}",
    )
    require(not extra, f"{where}: parameters have {listed(extra, name)}, which the model does not")
    require(not missing, f"{where}: parameters lack {listed(missing, name)}")
    for path, leaf in given.items():
        require(
            np.shape(leaf) == needed[path].shape,
            f"{where}: {dotted(path) or 'parameters'}: shape {np.shape(leaf)} where "
            f"{needed[path].shape} is needed",
        )


def digest(params: Params) -> str:
    """SHA-256 of parameters: of their names, types, shapes and values, in hexadecimal.

    >>> digest({"w": jnp.zeros(2)}) == digest({"w": np.zeros(2, np.float32)})
    True
    """
    content = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(leaf, order="C")
        content.update(f"{dotted(path)} {array.dtype}{array.shape}\n".encode())
        content.update(array.reshape(-1).view(np.uint8).data)
    return content.hexdigest()


def fitted_params(where: str, model: Model, given: Params) -> Params:
    """Given parameters in the structure and the types of the model's own.

    >>> model = Model(lambda _: {"w": jnp.zeros(2)}, lambda params, x: x @ params["w"])
    >>> fitted_params("initial", model, {"w": [1.0, np.nan]})
    Traceback (most recent call last):
    ...
    fedprox.errors.InputError: initial: parameters have 'w.0', 'w.1' where 'w' is needed
    """
    call(f"{where}: its tree", jax.tree.leaves, given)
    check_params(where, given, model.shapes)
    arrays = dict(jax.tree_util.tree_leaves_with_path(given))
    paths, structure = jax.tree_util.tree_flatten_with_path(model.shapes)

    def fitted(path: Any, like: Any) -> jax.Array:
        array = arrays[path]
        name, leaf = dotted(path) or "parameters", np.asarray(array)
        real = (jnp.floating, jnp.integer)
        require(
            any(jnp.issubdtype(leaf.dtype, kind) for kind in real),
            f"{where}: {name}: of type {leaf.dtype}; it must be numbers",
        )
        leaf = leaf.astype(like.dtype, copy=False)
        finite = bool(np.isfinite(leaf.astype(real_type(), copy=False)).all())
        require(finite, f"{where}: {name}: not all numbers are finite")
        # no copy of a large array that is as it should be
        fits = isinstance(array, jax.Array) and array.dtype == like.dtype
        return array if fits else jnp.asarray(leaf)

    return jax.tree.unflatten(structure, [fitted(path, like) for path, like in paths])


def _quoted(path: Sequence[Any]) -> str:
    return repr(dotted(path)) if path else "one array"


def classes_of(model: Model, federation: Federation) -> int:
    """How many classes a model tells apart; its labels must be classes."""
    x, y = rows_like(federation.train.x), rows_like(federation.train.y)
    outputs = jax.eval_shape(model.apply, model.shapes, x)
    jax.eval_shape(CrossEntropy(), outputs, y)
    return int(outputs.shape[-1])


def losses_of(model: Model, outputs: jax.Array, y: jax.Array) -> jax.Array:
    """The loss of each example, shape (B,)."""
    given = {"outputs": outputs, "y": y}
    losses = call("model.loss(outputs, y)", fast(model.loss), outputs, y, given=given)
    require(
        np.shape(losses) == y.shape[:1],
        f"model.loss: an array of shape {np.shape(losses)} for {y.shape[0]} examples; it must "
        f"have shape {y.shape[:1]}, a number for each",
    )
    return losses


def outputs_of(model: Model, params: Params, x: Features, key: jax.Array | None) -> jax.Array:
    """The outputs of a model; with a key, by its `train`."""
    if key is None or not model.train:
        return model.apply(params, x)
    check_params("model", params, model.shapes)
    given = arguments(params, model.base)
    called = named("train", given, ", key")
    outputs: jax.Array = call(called, fast(model.train), *given, x, key, given={"x": x})
    return outputs


def weighted_loss(
    model: Model,
    params: Params,
    x: Features,
    y: jax.Array,
    weights: jax.Array,
    key: jax.Array | None = None,
) -> jax.Array:
    """sum_i weights_i loss(params; x_i, y_i), a scalar; with a key, by the model's `train`."""
    return loss_of_outputs(model, outputs_of(model, params, x, key), y, weights)


def loss_of_outputs(model: Model, outputs: Any, y: jax.Array, weights: jax.Array) -> jax.Array:
    """The sum of examples' losses times their weights, a scalar."""
    summed: jax.Array = weighted_sums(losses_of(model, outputs, y), weights)
    return summed


def has_accuracy(model: Model, labels: Any) -> bool:
    """Whether a model has an accuracy on labels of a type; by default, not if they are no classes.

    >>> model = Model(lambda _: {"w": jnp.zeros(2)}, lambda params, x: x @ params["w"])
    >>> has_accuracy(model, np.int32), has_accuracy(model, np.float32)
    (True, False)
    """
    regression = model.correct is met_by_labels and np.dtype(labels).kind == "f"
    return model.correct is not None and not regression


def labels_met(model: Model, outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Whether a model with accuracy meets each label: booleans of shape (B,), or that of y."""
    assert model.correct
    given = {"outputs": outputs, "y": y}
    met = call("model.correct(outputs, y)", model.correct, outputs, y, given=given)
    require(
        np.shape(met) in (y.shape[:1], y.shape),
        f"model.correct: an array of shape {np.shape(met)} for labels of shape {y.shape}; it "
        "must say of each label, or of each example, whether it is met",
    )
    kind = getattr(met, "dtype", type(met).__name__)
    require(
        kind == np.bool_,
        f"model.correct: an array of type {kind}; it must be booleans, whether each label is met",
    )
    return met


def read_slice(
    x: Features, y: jax.Array, begin: jax.Array | int, end: jax.Array | int, width: int
) -> tuple[Features, jax.Array, jax.Array]:
    """Rows begin, ..., end - 1 of flat data, at most `width`, with weights for `weighted_loss`.

    In place of other rows the slice repeats the row `begin`, so that other rows cannot change a
    sum: even weight zero times their gradient may be NaN.

    Weights (width,) are 1 for the rows, else 0. Begin and end may be traced; there are at least
    `width` rows.

    >>> x, y = jnp.arange(5.0)[:, None], jnp.arange(5)
    >>> _, labels, inside = read_slice(x, y, 3, 5, width=4)
    >>> labels.tolist(), inside.tolist()
    ([3, 3, 3, 4], [0.0, 0.0, 1.0, 1.0])
    """
    start = jnp.minimum(begin, max(row_count(x) - width, 0))
    rows = start + jnp.arange(width)
    inside = (rows >= begin) & (rows < end)
    slice_of = partial(jax.lax.dynamic_slice_in_dim, allow_negative_indices=False)

    def read(a: jax.Array) -> jax.Array:
        chosen = inside.reshape((-1,) + (1,) * (a.ndim - 1))
        return jnp.where(chosen, slice_of(a, start, width), slice_of(a, begin, 1))

    return look_up(x, jax.tree.map(read, index_of(x))), read(y), inside.astype(real_type())
