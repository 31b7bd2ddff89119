"""Synthetic clicks whose probability follows a stated rule."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.seeds import generator
from deep5.training.dataset import ArrayDataset, Splits

__all__ = ["clicks"]

# Size of the latent vectors, exponent of Zipf's law, and the standard deviations of both parts of the log-odds.
_FACTORS, _ZIPF, _INTERACTIONS, _EFFECTS = 4, 1.05, 2.0, 0.5
_BIAS = -1.0


def clicks(
    *,
    numeric: int = 4,
    tables: Sequence[int] = (500, 300, 50, 20),
    train: int = 60_000,
    test: int = 10_000,
    data_seed: int = 0,
) -> Splits:
    """Clicks of users on items: pairwise interactions of latent vectors decide, as in a factorization machine.

    A sample has `numeric` standard normal features and one value of each categorical feature (a user, an item, and
    what else `tables` lists). Value r of a feature is drawn with a probability proportional to r^-1.05 (Zipf's law), so
    few values are frequent and most are rare. Each value has a latent vector of 4 standard normal numbers; the numeric
    features have one, too: their product with a fixed normal matrix. The log-odds of a click are
    -1 + 2 * i + 0.5 * e: i is the sum of the dot products of all pairs of latent vectors, e the sum of an effect per
    value and a linear function of the numeric features, each divided by what would be its standard deviation if all
    vectors and effects were drawn anew for every sample. The click is drawn from the sigmoid of the log-odds.

    Args:
        numeric: Number of numeric features.
        tables: Number of values of each categorical feature.
        train: Number of training samples.
        test: Number of test samples.
        data_seed: The seed of the rule's numbers and of the samples.

    Returns:
        Samples `numeric` float32 (numeric,), `categories` int64 (features,), each in [0, values of its feature), and
        `label` int64 (), 1 for a click. The description states `best_roc_auc`: the area under the ROC curve that is
        expected of the test samples' true probabilities, and which no other score is expected to exceed.

    Raises:
        UsageError: A size is not an integer of at least 1 (2 for `test`), or there is no categorical feature.

    References:
        Rendle, Factorization machines, ICDM 2010, equation 1.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.datasets.clicks(tables=(50, 20), train=1000, test=500)
    >>> {name: str(spec) for name, spec in data.train.specs.items()}
    {'numeric': 'float32[4]', 'categories': 'int64[2]', 'label': 'int64[]'}
    >>> data.train.batch(np.arange(3))["label"], data.description["best_roc_auc"]
    (array([1, 0, 0]), '81.42 %')
    """
    if not isinstance(tables, Sequence) or not tables:
        raise UsageError(
            f"clicks with tables {tables!r:.60}; allowed: a sequence with the number of values of each categorical "
            "feature, such as (500, 300)"
        )
    sizes = (numeric, train, test, *tables)
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes) or test < 2:
        raise UsageError(
            f"clicks of {train!r} + {test!r} samples, {numeric!r} numeric features, tables {tuple(tables)!r:.60}; "
            "allowed: integers of at least 1, and two test samples"
        )
    rule = _Rule(numeric, tables, data_seed)
    parts, best = {}, 0.0
    for name, count in (("train", train), ("test", test)):
        draw = generator(data_seed, "clicks", name)
        features = draw.standard_normal((count, numeric), dtype=np.float32)
        categories = np.stack([draw.choice(len(p), count, p=p) for p in rule.frequencies], axis=1)
        chance = 1.0 / (1.0 + np.exp(-rule.log_odds(features, categories)))
        labels = (draw.random(count) < chance).astype(np.int64)
        parts[name] = ArrayDataset({"numeric": features, "categories": categories, "label": labels})
        best = _expected_auc(chance)
    stated = (
        f"log-odds = {_BIAS:g} + {_INTERACTIONS:g} * interactions + {_EFFECTS:g} * effects, {_FACTORS} factors, Zipf "
        f"{_ZIPF:g}, {numeric} numeric features, tables {tuple(tables)}, seed {data_seed}, {train} + {test} samples"
    )
    return Splits(
        train=parts["train"],
        test=parts["test"],
        split_hash=hashlib.sha256(stated.encode()).hexdigest(),
        description={
            "source": "synthetic",
            "rule": stated,
            "samples": {"train": train, "test": test},
            # Rounded to what does not depend on the rounding of a library's exponential function.
            "best_roc_auc": f"{100 * best:.2f} %",
        },
    )


class _Rule:
    """The numbers of the rule, drawn once for training and test samples."""

    def __init__(self, numeric: int, tables: Sequence[int], seed: int) -> None:
        draw = generator(seed, "clicks", "rule")
        self.frequencies = [_zipf(size) for size in tables]
        self._vectors = [draw.standard_normal((size, _FACTORS)) for size in tables]
        self._mixing = draw.standard_normal((numeric, _FACTORS)) / np.sqrt(numeric)
        self._effects = [draw.standard_normal(size) for size in tables]
        self._slopes = draw.standard_normal(numeric) / np.sqrt(numeric)
        features = len(tables) + 1
        # Of independent standard normal vectors: each pair's product has a variance of the number of factors.
        self._spread = np.sqrt(_FACTORS * features * (features - 1) / 2)
        self._effect_spread = np.sqrt(features)

    def log_odds(self, numeric: np.ndarray, categories: np.ndarray) -> np.ndarray:
        """float64, shape (samples,)."""
        columns = list(enumerate(categories.T))
        vectors = [self._vectors[number][column] for number, column in columns]
        vectors.append((numeric[:, :, None] * self._mixing).sum(axis=1))
        total = np.sum(vectors, axis=0)
        # The sum over pairs is half of what the square of the sum has beside the squares.
        pairs = 0.5 * (np.square(total) - np.sum(np.square(vectors), axis=0)).sum(axis=1)
        effects = (numeric * self._slopes).sum(axis=1)
        effects += np.sum([self._effects[number][column] for number, column in columns], axis=0)
        odds: np.ndarray = _BIAS + _INTERACTIONS * pairs / self._spread + _EFFECTS * effects / self._effect_spread
        return odds


def _zipf(size: int) -> np.ndarray:
    weights = np.arange(1, size + 1, dtype=np.float64) ** -_ZIPF
    frequencies: np.ndarray = weights / weights.sum()
    return frequencies


def _expected_auc(chance: np.ndarray) -> float:
    """The expected area under the ROC curve of scores that are the samples' true probabilities.

    Samples of equal probability, which are rare, count as if they were in the wrong order.
    """
    rising = np.sort(chance)
    below = np.cumsum(1.0 - rising) - (1.0 - rising)
    pairs = (rising * below).sum()
    # Each pair of a click and another sample, of which one sample cannot be both.
    return float(pairs / (rising.sum() * (1.0 - rising).sum() - (rising * (1.0 - rising)).sum()))
