"""Continue prompts with a result's trained language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deep5.core.errors import UsageError

if TYPE_CHECKING:
    from deep5.generation.generator import TextGenerator

__all__ = ["generator_of"]


def generator_of(
    folder: str | Path, *, framework: str | None = None, device: str = "cpu", recipe: str | Path | None = None
) -> tuple[TextGenerator, tuple[str, ...]]:
    """A generator with the network of a result, and the tokens of its data set.

    Args:
        folder: Folder of a run that trained a `gpt` on a data set of text; nothing in it is executed.
        framework: The framework to use; None: the run's.
        device: The device to use.
        recipe: The recipe of the run, if its data set is the recipe's own code.

    Returns:
        The generator, and notes, one sentence each.

    Raises:
        UsageError: Not a result folder of a training run, a network that has no form with a cache, a data set that
            cannot be created, or one without a vocabulary.
        Unsupported: The framework does not run the network.
    """
    from deep5.core.plugins import framework as framework_of
    from deep5.generation.decoding import with_cache
    from deep5.generation.generator import TextGenerator
    from deep5.generation.tokenizer import VocabularyTokenizer
    from deep5.trained.load import same_data, splits_of, trained, weights_of

    run = trained(folder, recipe)
    network, notes = weights_of(run)
    cached, context = with_cache(network)
    if run.recipe is None:
        raise UsageError(run.reason)
    splits = splits_of(run.recipe)
    vocabulary = getattr(splits.train, "vocabulary", None)
    if vocabulary is None:
        raise UsageError(
            f"the data set of {run.result.folder} has no vocabulary; allowed: runs on data sets of text, such as "
            "docstrings and text; remedy: deep5.TextGenerator in Python, with token ids"
        )
    if same_data(run, splits)[0] is False:
        notes = (*notes, "the data set is another one than the run's, so tokens may stand for something else")
    name = framework or str((run.result.document["framework"] or {}).get("name"))
    executor = framework_of(name).executor(cached, device=device)
    generator = TextGenerator(executor, tokenizer=VocabularyTokenizer(vocabulary), context=context)
    return generator, (*run.notes, *notes)
