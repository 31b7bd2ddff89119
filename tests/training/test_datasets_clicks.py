"""Synthetic clicks follow their rule, and the best possible score is the stated one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from deep5.core.errors import UsageError
from deep5.training.datasets.click_log import _expected_auc, _Rule, _zipf, clicks


def samples(part: Any) -> dict[str, np.ndarray]:
    return part.batch(np.arange(len(part)))


def test_samples_have_the_stated_shapes_and_are_a_function_of_the_seed() -> None:
    sizes: dict[str, Any] = {"numeric": 3, "tables": (40, 7), "train": 200, "test": 100}
    one, again, other = clicks(**sizes), clicks(**sizes), clicks(**sizes, data_seed=1)
    assert one.train.content_hash() == again.train.content_hash() != other.train.content_hash()
    assert one.test.content_hash() == again.test.content_hash() != one.train.content_hash()
    assert one.split_hash == again.split_hash != other.split_hash
    found = samples(one.train)
    assert {name: (array.shape, str(array.dtype)) for name, array in found.items()} == {
        "numeric": ((200, 3), "float32"),
        "categories": ((200, 2), "int64"),
        "label": ((200,), "int64"),
    }
    assert found["categories"].min() == 0
    assert (found["categories"].max(axis=0) < (40, 7)).all()
    assert set(found["label"]) == {0, 1}


def test_more_test_samples_leave_the_training_samples_as_they_are() -> None:
    few, many = (clicks(tables=(9,), train=50, test=count) for count in (10, 20))
    assert few.train.content_hash() == many.train.content_hash()


def test_values_follow_zipfs_law() -> None:
    data = samples(clicks(tables=(100, 5), train=50_000, test=2).train)
    for column, size in enumerate((100, 5)):
        frequencies = np.bincount(data["categories"][:, column], minlength=size) / 50_000
        expected = _zipf(size)
        # Five standard errors of a share.
        assert (np.abs(frequencies - expected) < 5 * np.sqrt(expected / 50_000)).all()
        assert expected[0] / expected[3] == pytest.approx(4**1.05, rel=1e-12)


def test_the_log_odds_are_a_sum_over_pairs() -> None:
    rule = _Rule(3, (8, 6), 0)
    draw = np.random.default_rng(0)
    numeric, categories = draw.standard_normal((20, 3)), draw.integers(0, 6, (20, 2))
    expected = []
    for x, (user, item) in zip(numeric, categories, strict=True):
        u, v, w = rule._vectors[0][user], rule._vectors[1][item], x @ rule._mixing
        pairs = (u @ v + u @ w + v @ w) / np.sqrt(3 * 4)
        effects = (rule._effects[0][user] + rule._effects[1][item] + x @ rule._slopes) / np.sqrt(3)
        expected.append(-1 + 2 * pairs + 0.5 * effects)
    # float64, some thirty operations on numbers of about one.
    np.testing.assert_allclose(rule.log_odds(numeric, categories), expected, rtol=0, atol=1e-12)


def test_clicks_are_as_frequent_as_their_probability() -> None:
    data = samples(clicks(tables=(20, 20), train=40_000, test=2).train)
    chance = 1 / (1 + np.exp(-_Rule(4, (20, 20), 0).log_odds(data["numeric"], data["categories"])))
    order = np.argsort(chance)
    for group in np.array_split(order, 8):
        # Five standard errors of 5 000 draws.
        assert abs(data["label"][group].mean() - chance[group].mean()) < 5 * 0.5 / np.sqrt(len(group))


def test_the_best_area_is_that_of_drawn_labels_in_the_mean() -> None:
    chance = np.random.default_rng(0).random(400)
    draws = [np.random.default_rng(seed).random(400) < chance for seed in range(1, 401)]
    areas = [roc_auc_score(labels, chance) for labels in draws]
    # Five standard errors of the mean.
    assert abs(np.mean(areas) - _expected_auc(chance)) < 5 * np.std(areas) / np.sqrt(len(areas))


def test_the_description_states_the_rule_and_the_best_area() -> None:
    data = clicks()
    described = data.description
    assert described["best_roc_auc"] == "86.35 %"
    assert described["rule"].startswith("log-odds = -1 + 2 * interactions + 0.5 * effects, 4 factors, Zipf 1.05")
    found = samples(data.test)
    own = _Rule(4, (500, 300, 50, 20), 0).log_odds(found["numeric"], found["categories"])
    # The labels are one draw: the area's standard error is about 0.4 % for 10 000 samples (Hanley and McNeil).
    assert abs(100 * roc_auc_score(found["label"], own) - 86.35) < 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tables": ()}, r"clicks with tables \(\); allowed: a sequence"),
        ({"tables": 500}, "clicks with tables 500; allowed: a sequence"),
        ({"tables": "500"}, "allowed: integers of at least 1"),
        ({"tables": (5, 0)}, "allowed: integers of at least 1"),
        ({"train": 0}, "clicks of 0 .* allowed: integers of at least 1"),
        ({"test": 1.5}, "allowed: integers of at least 1"),
        ({"test": 1}, "allowed: integers of at least 1, and two test samples"),
        ({"numeric": True}, "allowed: integers of at least 1"),
    ],
)
def test_sizes_that_are_none(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        clicks(**arguments)
