"""User-defined schemes and compressions: a fault in a class is reported by name, before any training."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.communicator import SingleRank
from deep5.core.errors import CommunicationError, RecipeError, UsageError
from deep5.distributed.communicators.threads import run_in_threads
from deep5.distributed.compression import check_compression
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import Recipe
from deep5.run.assemble import assemble
from pipeline_cases import batch, executor, network
from scheme_cases import rows_of, trained

OWN = '''
import numpy as np

import deep5 as d5


class NoInit(d5.DistributedOptimizer):
    def __init__(self, every=4):
        self.every = every

    def step(self, inputs, info):
        return self.optimizer.step(inputs, info)


class NoStep(d5.DistributedOptimizer):
    """Nothing at all."""


class LessStep(d5.DistributedOptimizer):
    def step(self, inputs):
        return self.optimizer.step(inputs, None)


class Half(d5.Compression):
    def __init__(self, *, feedback=True):
        super().__init__(feedback=feedback)

    def message_bytes(self, count, dtype, *, step=None):
        return 2 * count

    def _pack(self, values, message, key, step):
        message.view(np.float16)[...] = values

    def _unpack(self, message, out):
        out[...] = message.view(np.float16)


class NoStepNumber(Half):
    def message_bytes(self, count, dtype):
        return 2 * count


class MuteHalf(Half):
    def __init__(self):
        """The base's is not called."""
'''


class EveryFew(d5.DistributedOptimizer):
    """The example of docs/how_to/distributed.md."""

    def __init__(self, every: int = 8) -> None:
        super().__init__()
        self.every = every

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        outputs = self.backprop(inputs, info)
        if info.batch_size:
            self.apply(self.gradients(), info)
        if (info.step + 1) % self.every == 0:
            self.average_parameters()
        return outputs


class OnlySays(d5.DistributedOptimizer):
    """Claims to keep ranks equal, and exchanges nothing."""

    consistent = True

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        return self.optimizer.step(inputs, info)


class Forgets(d5.DistributedOptimizer):
    consistent = True

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        outputs = self.backprop(inputs, info)
        self.apply(self.mean(self.gradients(), info), info)
        if self.communicator.size > 2:
            return outputs["loss"]
        return None


class Half(d5.Compression):
    """The example of docs/how_to/distributed.md."""

    def message_bytes(self, count: int, dtype: Any, *, step: int | None = None) -> int:
        return 2 * count

    def _pack(self, values: np.ndarray, message: np.ndarray, key: str, step: int) -> None:
        message.view(np.float16)[...] = values

    def _unpack(self, message: np.ndarray, out: np.ndarray) -> None:
        out[...] = message.view(np.float16)


def recipe(folder: Path, **mutable: Any) -> Recipe:
    (folder / "own.py").write_text(OWN)
    given = {
        name: f"{folder / 'own.py'}:{value}" if str(value)[0].isupper() else value for name, value in mutable.items()
    }
    fixed = {"model": "lenet", "dataset": "digits", "dataset_kwargs": {"limit": 64}, "epochs": 1, "batch_size": 8}
    return Recipe.make(fixed, {"framework": "reference", "optimizer": "adam", **given}, [], name="own")


def training(scheme: Any, epochs: int = 1, **options: Any) -> None:
    """Two steps per epoch, of two ranks."""

    def work(communicator: Any) -> None:
        data = d5.datasets.synthetic(shape=(6,), classes=3, train=16, test=6)
        run = d5.framework("reference").executor(network())
        whole = d5.ShuffleSampler(data.train, 8)
        own = scheme.wrap(d5.SGD(0.1), communicator)
        sampler = d5.ShardedSampler(whole, communicator.rank, communicator.size)
        d5.Trainer(run, own, sampler, communicator=communicator, **options).train(epochs=epochs)

    run_in_threads(2, work)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"scheme": "NoInit"},
            r"'scheme': NoInit\.__init__ did not call that of DistributedOptimizer; allowed: .*; remedy: call "
            r"super\(\)\.__init__\(\) first of all in NoInit\.__init__",
        ),
        (
            {"scheme": "NoStep"},
            r"'scheme': NoStep of \S*own\.py has no step; allowed: .*; remedy: write step\(self, inputs, info\) in it",
        ),
        (
            {"scheme": "LessStep"},
            r"'scheme': LessStep\.step is step\(self, inputs\); allowed: step\(self, inputs, info",
        ),
        (
            {"compression": "NoStepNumber"},
            r"'compression': NoStepNumber\.message_bytes is message_bytes\(self, count, dtype\); allowed: "
            r"message_bytes\(self, count, dtype, \*, step=None\)",
        ),
        ({"compression": "MuteHalf"}, r"'compression': MuteHalf\.__init__ did not call that of Compression"),
        (
            {"scheme": "gossip", "compression": "top_k"},
            r"Gossip takes no compression; allowed: None, or one of the schemes that take one: all_reduce, hierarch",
        ),
    ],
)
def test_what_is_wrong_with_a_class_of_ones_own_is_told(tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        assemble(recipe_parts(recipe(tmp_path, **given)), SingleRank())


def test_a_compression_of_ones_own_is_taken_from_a_file(tmp_path: Path) -> None:
    optimizer = assemble(recipe_parts(recipe(tmp_path, compression="Half")), SingleRank()).optimizer
    assert optimizer.describe()["compression"] == {"compression": "Half", "feedback": True}


def test_a_wrong_scheme_is_told_before_a_framework_is_loaded(tmp_path: Path) -> None:
    """Loading PyTorch, the recipe's framework, takes seconds; a result folder would remain."""
    (tmp_path / "own.py").write_text(OWN)
    program = """
    import sys
    from deep5.cli.main import main
    try:
        main()
    except SystemExit as ended:
        sys.exit(f"{ended.code} {'torch' in sys.modules}")
    """
    words = ["run", "digits_lenet", "--size", "smoke", "--ranks", "2", "--launcher", "threads"]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *words, "--set", "scheme=own.py:NoInit"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "NoInit.__init__ did not call that of DistributedOptimizer" in done.stderr
    assert done.stderr.splitlines()[-1] == "2 False"
    assert not (tmp_path / "results").exists()


def test_without_a_recipe_the_same_is_told_when_a_scheme_is_wrapped() -> None:
    scope: dict[str, Any] = {"__name__": "own"}
    exec(OWN, scope)  # noqa: S102
    with pytest.raises(UsageError, match=r"call super\(\)\.__init__\(\) first of all in NoInit\.__init__"):
        scope["NoInit"]().wrap(d5.SGD(0.1), SingleRank())
    with pytest.raises(UsageError, match=r"LessStep\.step is step\(self, inputs\); allowed: step\(self, inputs, info"):
        scope["LessStep"]().wrap(d5.SGD(0.1), SingleRank())
    for use in (lambda made: made.bound(0), check_compression, lambda made: d5.AllReduce(compression=made)):
        with pytest.raises(UsageError, match=r"call super\(\)\.__init__\(\) first of all in MuteHalf\.__init__"):
            use(scope["MuteHalf"]())


def test_methods_may_take_more_and_have_other_forms() -> None:
    class More(Half):
        def message_bytes(self, count: int, dtype: Any, step: int | None = None, **others: Any) -> int:
            return 2 * count

        def _pack(self, *given: Any) -> None:
            values, message, _, _ = given
            message.view(np.float16)[...] = values

    check_compression(More(), sizes=(2,), steps=20)


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        (
            "_pack",
            lambda self, values, message: None,
            r"Wrong\._pack is _pack\(self, values, message\); allowed: _pack\(",
        ),
        ("_unpack", lambda self, message, out, step: None, r"allowed: _unpack\(self, message, out\)"),
        ("_unpack", 3, r"Wrong\._unpack is a int; allowed: _unpack\(self, message, out\)"),
    ],
)
def test_each_method_of_a_compression_is_looked_at(name: str, value: Any, got: str) -> None:
    with pytest.raises(UsageError, match=got):
        type("Wrong", (Half,), {name: value})()


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow", "jax"])
def test_the_documented_scheme_with_an_argument_averages_as_it_says(framework: str) -> None:
    ranks = trained(EveryFew(every=4), lambda: d5.SGD(0.5), 3, framework)
    # Eight steps: the last one ends with a mean, which is bit-identical on all ranks.
    assert (rows_of(ranks) == rows_of(ranks)[0]).all()
    apart = trained(EveryFew(every=5), lambda: d5.SGD(0.5), 3, framework)
    assert not np.allclose(rows_of(apart)[0], rows_of(apart)[1])
    assert ranks[0].scheme.describe()["every"] == 4


def test_the_documented_compression_is_right_and_a_wrong_one_is_caught() -> None:
    check_compression(Half(), sizes=(1, 2), steps=50)

    class Doubles(Half):
        def _unpack(self, message: np.ndarray, out: np.ndarray) -> None:
            out[...] = 3.0 * message.view(np.float16)

    with pytest.raises(d5.Deep5Error, match="allowed: a distance that does not grow"):
        check_compression(Doubles(), sizes=(1,), steps=50)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_scheme_that_only_says_that_it_keeps_ranks_equal_is_found_out_in_a_short_run(epochs: int) -> None:
    with pytest.raises(CommunicationError, match="parameters at the end of an epoch of rank 1 differ from those"):
        training(OnlySays(), epochs)
    # Schemes that turn the check off, or claim nothing, are not checked.
    training(OnlySays(verify_every=0), epochs)
    training(EveryFew(), epochs)
    training(d5.AllReduce(), epochs)


def test_the_check_behind_an_epoch_costs_no_step_anything() -> None:
    def work(communicator: Any) -> int:
        run = executor("reference", network())
        own = d5.AllReduce().wrap(d5.SGD(0.1), communicator)
        own.bind(run)
        before = communicator.messages
        own.step(batch(0), d5.StepInfo(step=0, batch_size=8, global_batch_size=16))
        after = communicator.messages
        own.settle()
        assert communicator.messages == after + 1
        return after - before

    assert run_in_threads(2, work) == [1, 1]


@pytest.mark.parametrize(("size", "got"), [(2, "None"), (3, "a float32|a float64|a ndarray")])
def test_a_step_without_outputs_is_told(size: int, got: str) -> None:
    with pytest.raises(UsageError, match=rf"step\(\) of Forgets returned ({got}); allowed: the outputs of backprop"):
        trained(Forgets(), lambda: d5.SGD(0.1), size)


def test_a_compression_where_none_is_taken_is_told_with_who_takes_one() -> None:
    with pytest.raises(UsageError, match=r"allowed: none, .*; remedy: a scheme that takes one, such as d5\.AllReduce"):
        type("Own", (OnlySays,), {})(compression=Half())
