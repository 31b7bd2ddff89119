"""A network that predicts clicks from numeric and categorical features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deep5.core.errors import UsageError
from deep5.networks.zoo.parts import check_arguments, stacked_linear

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.network import Network

__all__ = ["dlrm"]


def dlrm(
    *,
    numeric: int = 13,
    tables: Sequence[int] = (1000, 1000, 1000, 1000),
    width: int = 16,
    bottom: Sequence[int] = (64,),
    top: Sequence[int] = (64, 32),
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """The deep learning recommendation model: embeddings, their pairwise dot products, and two stacks of dense layers.

    The bottom layers make a vector of the numeric features, as wide as the embeddings. The dot products of all pairs of
    these vectors (of a symmetric matrix, those below the diagonal) and the bottom vector are the input of the top
    layers, whose one output is the log-odds of a click.

    Args:
        numeric: Number of numeric features.
        tables: Number of values of each categorical feature.
        width: Size of an embedding.
        bottom: Sizes of the bottom's hidden layers, each with ReLU; a last one of `width` follows, with ReLU.
        top: Sizes of the top's hidden layers, each with ReLU; a last one of one unit follows.
        dtype: Element type of parameters and numeric features.
        seed: Seed of the initial weights: dense layers He-normal with biases of zero, embeddings of n values uniform
            within 1/sqrt(n).

    Returns:
        Inputs `numeric` (N, numeric), `categories` (N, features) int64, each in [0, values of its feature), and `label`
        (N,) int64, 0 or 1; outputs `logits` (N,), the log-odds of label 1, and the scalar `loss`, the mean binary cross
        entropy.

    Raises:
        UsageError: An unknown dtype, a size that is not an integer of at least 1, or no categorical feature.

    References:
        Naumov et al., Deep learning recommendation model for personalization and recommendation systems,
        arXiv:1906.00091, section 2.

    >>> import deep5 as d5
    >>> network = d5.networks.dlrm(numeric=3, tables=(50, 20), width=4, bottom=(8,), top=(8,))
    >>> {name: str(spec) for name, spec in network.inputs.items()}
    {'numeric': 'float32[N, 3]', 'categories': 'int64[N, 2]', 'label': 'int64[N]'}
    >>> {name: spec.shape for name, spec in network.parameter_specs.items() if name.endswith("weight")}
    {'bottom0.weight': (8, 3), 'bottom1.weight': (4, 8), 'top0.weight': (8, 7), 'top1.weight': (1, 8)}
    """
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder

    for name, sizes in (("tables", tables), ("bottom", bottom), ("top", top)):
        if not isinstance(sizes, Sequence):
            raise UsageError(f"got {name} = {sizes!r:.60}; allowed: a sequence of sizes, such as (64, 32)")
    if not tables:
        raise UsageError("got tables = (); allowed: the number of values of at least one categorical feature")
    listed = {"tables": tables, "bottom": bottom, "top": top}
    named = {f"{name}[{index}]": size for name, sizes in listed.items() for index, size in enumerate(sizes)}
    check_arguments(dtype, "cross_entropy", numeric=numeric, width=width, **named)
    build = NetworkBuilder("dlrm", dtype=dtype, seed=seed)
    x, categories = build.input("numeric", ("N", numeric)), build.input("categories", ("N", len(tables)), "int64")
    build.input("label", ("N",), "int64")

    x = build.op("Relu", stacked_linear(build, x, "bottom", (numeric, *bottom, width)))
    vectors = [x]
    for index, size in enumerate(tables):
        table = build.parameter(f"embedding{index}", (size, width), _uniform)
        column = build.op("Gather", categories, build.constant(f"column{index}", np.array(index)), axis=1)
        vectors.append(build.op("Gather", table, column, axis=0))
    count = len(vectors)
    joined = build.op("Concat", *vectors, axis=1)
    stacked = build.op("Reshape", joined, build.constant("stacked", np.array([0, count, width])))
    products = build.op("MatMul", stacked, build.op("Transpose", stacked, perm=[0, 2, 1]))
    flat = build.op("Reshape", products, build.constant("flat", np.array([0, count * count])))
    rows, columns = np.tril_indices(count, -1)
    below = build.op("Gather", flat, build.constant("below_diagonal", rows * count + columns), axis=1)
    x = build.op("Concat", x, below, axis=1)
    x = stacked_linear(build, x, "top", (width + len(rows), *top, 1))
    logits = build.op("Reshape", x, build.constant("one_score", np.array([-1])))
    return build.network({"logits": logits}).add_loss("logits", "binary_cross_entropy")


def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform within one divided by the square root of the number of rows."""
    bound = 1.0 / math.sqrt(shape[0])
    return rng.uniform(-bound, bound, shape)
