"""The training and evaluation batches of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deep5.core.errors import RecipeError, UsageError, contained, described
from deep5.core.progress import Ongoing
from deep5.recipe.faults import batch_size_fault
from deep5.recipe.part import Part, Parts, where_of
from deep5.run.assemble_network import LABEL

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator
    from deep5.core.own_model import OwnModel

__all__ = ["length", "samplers", "splits_of"]


def samplers(
    parts: Parts, network: Any, own: OwnModel | None, splits: Any, seed: int, communicator: Communicator | None
) -> tuple[Any, Any, int]:
    """Samplers of the training and evaluation batches, restricted to this rank's part.

    Args:
        parts: The recipe's parts, by key.
        network: What runs.
        own: The model of a framework's library that the network is made of, if there is one.
        splits: The data set.
        seed: Seed of the order.
        communicator: Communicator of the ranks that train together; None: a single process.

    Returns:
        Both samplers, the second None if the recipe has none, and the size of a training batch.

    Raises:
        RecipeError: The data set does not fit the network, the batch size or the ranks.
    """
    from deep5.training.batch_source import BatchSource
    from deep5.training.dataset import Dataset, StreamDataset
    from deep5.training.reinforcement.online import OnlineSampler
    from deep5.training.transforms import fitted

    batch_size = parts["batch_size"].component()
    size = _first_size(batch_size, parts["batch_size"].where)
    count = length(splits.train)
    if count is not None and size > count:
        raise RecipeError(
            f"{where_of(parts['batch_size'], parts['dataset'])}'batch_size' is {size}; allowed: at most {count}, the "
            "number of training samples"
        )
    # Evaluation stores nothing for gradients: larger batches take little more memory, and less time.
    evaluation_size = max(size, 256)
    evaluation_size = min(evaluation_size, length(splits.test) or evaluation_size)
    made: list[Any] = []
    for key, listed, samples, number in (
        ("train_sampler", "train_transforms", splits.train, batch_size),
        ("validation_sampler", "test_transforms", splits.test, evaluation_size),
    ):
        if parts[key].value is None:
            made.append(None)
            continue
        transforms = parts[listed].transforms()
        if transforms and not isinstance(samples, (Dataset, StreamDataset)):
            raise RecipeError(f"{where_of(parts[listed])}{listed!r} is for samples; allowed: none of an environment")
        try:
            _check_labels(network, own, samples, "training" if key == "train_sampler" else "test")
            fit, transforms = fitted(samples, transforms, network.inputs)
        except UsageError as error:
            what, mark, remedy = str(error).partition("; remedy: ")
            allowed = "" if "allowed: " in what else "; allowed: samples of the network's inputs"
            remedy = remedy if mark else "model_kwargs, dataset_kwargs or transforms that fit"
            where = where_of(parts["dataset"], parts["model"], parts["loss"], parts[listed])
            raise RecipeError(f"{where}data set and network do not fit: {what}{allowed}; remedy: {remedy}") from error
        part = parts[key]
        sampler = part.made(fit, number, seed=seed, transforms=transforms)
        if not isinstance(sampler, BatchSource):
            raise part.not_a(sampler, "a d5.Sampler, its class or name, or another source of batches")
        if transforms and not getattr(sampler, "transforms", None):
            raise RecipeError(
                f"{where_of(parts[listed], part)}{listed!r} is for a sampler that takes transforms; allowed: none "
                f"beside {type(sampler).__name__}"
            )
        made.append(sampler)
    if isinstance(made[0], OnlineSampler):
        _check_online(parts, communicator)
    if communicator is not None and communicator.size > 1:
        from deep5.distributed.sharding import ShardedSampler

        rank, ranks = communicator.rank, communicator.size
        test_count = length(splits.test)
        if test_count is not None and test_count < ranks:
            raise RecipeError(
                f"{parts['dataset'].where}{ranks} ranks share {test_count} test samples; allowed: at least one a rank; "
                "remedy: fewer ranks"
            )
        try:
            made[0] = ShardedSampler(made[0], rank, ranks)
            if made[1] is not None:
                made[1] = ShardedSampler(made[1], rank, ranks, borrow=False)
        except UsageError as error:
            raise RecipeError(f"{parts['batch_size'].where}{error}") from error
    if depth := parts["prefetch"].value:
        from deep5.training.prefetch import Prefetched

        made = [None if sampler is None else Prefetched(sampler, depth=depth) for sampler in made]
    return made[0], made[1], size


def _check_online(parts: Parts, communicator: Communicator | None) -> None:
    """Reject what separates the batches of an agent from what it has learned."""
    if parts["prefetch"].value:
        raise RecipeError(
            f"{parts['prefetch'].where}'prefetch' is {parts['prefetch'].value}, and batches that an agent plays cannot "
            "be prepared before it has learned; allowed: 0"
        )
    if parts["accumulate"].value != 1:
        raise RecipeError(
            f"{parts['accumulate'].where}'accumulate' is {parts['accumulate'].value}, and an agent learns from each "
            "batch that it plays; allowed: 1; remedy: a larger batch_size"
        )
    if communicator is not None and communicator.size > 1:
        raise RecipeError(
            f"{parts['train_sampler'].where}{communicator.size} ranks share one agent's batches; allowed: one process; "
            "remedy: without --ranks"
        )


def _check_labels(network: Any, own: OwnModel | None, samples: Any, what: str) -> None:
    """Reject invalid class labels before training starts, of a graph and of native code."""
    from deep5.networks.labels import label_inputs
    from deep5.networks.network import Network
    from deep5.training.dataset import check_labels

    ranges: dict[str, tuple[int, int | None]] = {}
    if own is not None and own.class_axis is not None:
        classes = network.outputs["logits"].shape[own.class_axis]
        ranges = {LABEL: (classes, None)} if isinstance(classes, int) else {}
    if isinstance(network, Network):
        ranges |= {each.name: (each.classes, each.ignored) for each in label_inputs(network)}
    for name, (classes, ignored) in ranges.items():
        if name in samples.specs:
            check_labels(samples, classes, name=name, ignore=ignored, what=what)


def _first_size(given: Any, where: str) -> int:
    """Batch size of the first epoch; `where` is the position of the key, for messages."""
    if not callable(given):
        if fault := batch_size_fault(given):
            raise RecipeError(f"{where}'batch_size' {fault}")
        return int(given)
    try:
        with contained():
            size = given(0)
    except Exception as error:
        raise RecipeError(
            f"{where}'batch_size' raised {type(error).__name__} for epoch 0: {described(error).partition(': ')[2]}; "
            "allowed: a function of the epoch that returns an integer"
        ) from error
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise RecipeError(f"{where}'batch_size' gave {size!r} for epoch 0; allowed: an integer of at least 1")
    return size


def length(samples: Any) -> int | None:
    """Number of samples, if known."""
    return len(samples) if hasattr(samples, "__len__") else None


def splits_of(part: Part, validation: Part | None = None) -> Any:
    """The data set of a recipe.

    Args:
        part: The data set.
        validation: Fraction of the training samples that takes the place of the test samples; None: none.

    Raises:
        RecipeError: The component returns something else, or cannot be split.
    """
    from deep5.training.dataset import Splits
    from deep5.training.held_out import held_out

    with Ongoing("preparing the data set"):
        splits = part.made()
    if not isinstance(splits, Splits):
        raise part.not_a(splits, "Splits (deep5.training.dataset), or a function that returns them")
    if validation is None or validation.value is None:
        return splits
    try:
        return held_out(splits, validation.value)
    except UsageError as error:
        raise RecipeError(f"{where_of(validation, part)}{error}") from error
