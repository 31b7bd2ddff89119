"""A validation part that is held out of the training samples."""

import numpy as np
import pytest

import deep5 as d5
from deep5.audit.folders import audit
from deep5.core.errors import RecipeError, UsageError
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute
from deep5.trained.evaluate import evaluate_result
from deep5.training.held_out import Subset, held_out


def _numbers(count, labels):
    return d5.ArrayDataset({"input": np.arange(count, dtype=np.float32), "label": np.asarray(labels)})


def _inputs(data):
    return data.batch(np.arange(len(data)))["input"].astype(int).tolist()


def test_no_test_sample_and_every_training_sample_once():
    train, test = _numbers(50, np.arange(50) % 5), _numbers(7, [9] * 7)
    splits = held_out(d5.Splits(train=train, test=test), 0.2)
    assert sorted(_inputs(splits.train) + _inputs(splits.test)) == list(range(50))
    assert np.bincount(splits.test.labels()).tolist() == [2] * 5  # a fifth of each class
    assert _inputs(splits.train) == sorted(_inputs(splits.train))  # in the data set's order


def test_the_split_is_the_same_each_time_and_another_for_another_share():
    data = d5.Splits(train=_numbers(50, np.arange(50) % 5), test=_numbers(7, [9] * 7))
    one, again, other = (held_out(data, share) for share in (0.2, 0.2, 0.1))
    assert one.split_hash == again.split_hash != other.split_hash
    assert one.train.content_hash() == again.train.content_hash() != other.train.content_hash()


@pytest.mark.parametrize(
    "labels", [np.linspace(0, 1, 20), [*range(20)], [[0, 1]] * 20], ids=["real", "single", "pairs"]
)
def test_samples_that_cannot_be_stratified_are_drawn(labels):
    splits = held_out(d5.Splits(train=_numbers(20, labels), test=_numbers(2, labels[:2])), 0.25)
    assert (len(splits.train), len(splits.test)) == (15, 5)
    assert "stratified" not in splits.description["validation"]


def test_batches_and_attributes_are_those_of_the_chosen_samples():
    data = _numbers(6, range(6))
    data.lengths, data.vocabulary = np.array([5, 4, 3, 2, 1, 0]), ("a", "b")
    subset = Subset(data, np.array([4, 0, 2]))
    order = np.array([2, 0, 1])
    batches = [(ids.tolist(), batch["label"].tolist()) for ids, batch in subset.in_batches(order, 2)]
    assert batches == [([2, 0], [2, 4]), ([1], [0])]
    assert subset.lengths.tolist() == [1, 5, 3]
    assert subset.vocabulary == ("a", "b")
    with pytest.raises(UsageError, match="index"):
        subset.batch(np.array([3]))


def test_a_stream_is_refused():
    class Numbers(d5.StreamDataset):
        specs = {"input": d5.TensorSpec(shape=(), dtype="int64")}  # noqa: RUF012

        def samples(self, epoch, start=0):
            return iter([{"input": np.int64(3)}][start:])

        def cast(self, specs):
            return self

    splits = d5.Splits(train=Numbers(), test=Numbers())
    with pytest.raises(UsageError, match="allowed: a data set whose samples have indices; remedy: validation=None"):
        held_out(splits, 0.1)


@pytest.mark.daily
def test_a_run_evaluates_the_held_out_samples_is_open_and_audited(tmp_path):
    recipe = load_recipe("digits_lenet").at_size("smoke")
    result = execute(recipe.with_settings({"validation": 0.25}), out=tmp_path, quiet=True)
    assert result.division == "open"
    assert any("held out of the training samples" in warning for warning in result.document["warnings"])
    plain = execute(recipe, out=tmp_path / "plain", quiet=True)
    assert result.document["provenance"]["split"] != plain.document["provenance"]["split"]
    assert not audit([tmp_path]).findings
    again = evaluate_result(result.folder)
    assert again.same_data
    assert again.samples == 80  # a quarter of 320
    assert again.accuracy == result.metric("test_accuracy")


@pytest.mark.parametrize("share", [0, 1.0, -0.1, "a tenth", True])
def test_other_shares_are_refused(share):
    with pytest.raises((UsageError, RecipeError), match=r"'validation'.*allowed: a fraction above 0 and below 1"):
        load_recipe("digits_lenet").with_settings({"validation": share})
