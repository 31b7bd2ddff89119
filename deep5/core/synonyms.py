"""Words that users of other tools type, with the names in deep5 that messages suggest for them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["SYNONYMS", "nearest"]

SYNONYMS: dict[str, tuple[str, ...]] = {
    # Frameworks
    "torch": ("pytorch",),
    "pt": ("pytorch",),
    "inductor": ("pytorch",),
    "tf": ("tensorflow",),
    "keras": ("tensorflow",),
    "flax": ("jax",),
    "ort": ("onnxruntime",),
    "onnx": ("onnxruntime",),
    "ov": ("openvino",),
    "numpy": ("reference",),
    "np": ("reference",),
    # Devices
    "gpu": ("cuda",),
    "nvidia": ("cuda",),
    "host": ("cpu",),
    # Commands
    "train": ("run",),
    "execute": ("run",),
    "start": ("run",),
    "validate": ("check",),
    "verify": ("check",),
    "lint": ("check",),
    "test": ("evaluate", "check"),
    "plot": ("report",),
    "diff": ("compare",),
    "versus": ("compare",),
    "ls": ("list", "results"),
    "describe": ("show",),
    "inspect": ("show",),
    "version": ("info",),
    "doctor": ("info",),
    "infer": ("predict",),
    "trace": ("profile",),
    "sweep": ("study",),
    "rm": ("clean",),
    # Keys of recipes, and arguments of components
    "backend": ("framework",),
    "network": ("model",),
    "net": ("model",),
    "data": ("dataset",),
    "bs": ("batch_size",),
    "minibatch_size": ("batch_size",),
    "num_epochs": ("epochs",),
    "n_epochs": ("epochs",),
    "callbacks": ("events",),
    "metrics": ("events",),
    "scheduler": ("schedules",),
    "lr_scheduler": ("schedules",),
    "weights": ("init",),
    "checkpoint": ("init",),
    "pretrained": ("init",),
    "num_threads": ("threads",),
    "workers": ("prefetch",),
    "num_workers": ("prefetch",),
    "dtype": ("precision",),
    "amp": ("precision",),
    "world_size": ("ranks",),
    "nprocs": ("ranks",),
    "grad_clip": ("clip_norm",),
    "max_grad_norm": ("clip_norm",),
    "gradient_accumulation_steps": ("accumulate",),
    "augmentation": ("train_transforms",),
    "transforms": ("train_transforms",),
    "transformations": ("train_transforms",),
    "learning_rate": ("lr",),
    "eps": ("epsilon",),
    # Element types
    "fp64": ("float64",),
    "double": ("float64",),
    "fp32": ("float32",),
    "single": ("float32",),
    "fp16": ("float16",),
    "half": ("float16",),
    "bf16": ("bfloat16",),
    # Components
    "gd": ("sgd",),
    "nag": ("nesterov",),
    "shuffled": ("shuffle",),
    "sequential": ("ordered",),
    "ddp": ("all_reduce",),
    "acc": ("accuracy", "test_accuracy"),
    "latency": ("step_latency",),
    # Hooks of Deep500's events
    "before_optimizer_step": ("before_step",),
    "after_optimizer_step": ("after_step",),
    "before_training_set": ("before_epoch",),
    "after_training_set": ("after_epoch",),
    "before_test_set": ("before_evaluation",),
    "after_test_set": ("after_evaluation",),
    "after_test_batch": ("after_evaluation_batch",),
    "after_sampling": ("before_batch",),
}
"""A word in lower case to names, the most likely one first; messages suggest only a name that is allowed there."""


def nearest(got: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that was probably meant, or None.

    The order of preference: the same letters in another case, a synonym, a misspelling of a name or of a synonym.

    >>> nearest("torch", ["jax", "pytorch"]), nearest("trian", ["check", "run"]), nearest("x", ["run"])
    ('pytorch', 'run', None)
    """
    names, word = list(allowed), str(got)
    alike = [name for name in names if name.casefold() == word.casefold()]
    if alike:
        return difflib.get_close_matches(word, alike, n=1, cutoff=0.0)[0]
    known = set(names)
    meant = {other: name for other, targets in SYNONYMS.items() if (name := _first(targets, known)) is not None}
    if (name := meant.get(word.casefold().replace("-", "_"))) is not None:
        return name
    # Names come first: of two equally similar ones, a name is the better answer.
    near = {name.casefold(): name for name in reversed(names)}
    near = {**near, **{other: name for other, name in meant.items() if len(other) > 3 and other not in near}}
    # Most words are similar to some short one.
    short = {other: name for other, name in meant.items() if len(other) <= 3}
    for words, cutoff in ((near, 0.6), (short, 0.8)):
        for close in difflib.get_close_matches(word.casefold(), words, n=5, cutoff=cutoff):
            if _is_misspelt(word.casefold(), close):
                return words[close]
    return None


def _is_misspelt(got: str, name: str) -> bool:
    """Whether a user who typed one of two similar words may have meant the other.

    What both have in common, such as a folder or `.py`, does not count. Of the rest, at most half of the letters
    differ, or one is the beginning or the end of the other, or has all words of the other.
    """
    first, second = re.split(r"[./]", got), re.split(r"[./]", name)
    for at in (0, -1):
        while first and second and first[at] == second[at]:
            del first[at], second[at]
    one, other = sorted((".".join(first), ".".join(second)), key=len)
    if other.startswith(one) or other.endswith(one) or set(_words(one)) <= set(_words(other)):
        return True
    return len(other) <= _LONGEST and _slips(one, other) <= len(other) // 2


# A longer word is no misspelling, and takes long to compare.
_LONGEST = 200


def _words(name: str) -> list[str]:
    return re.split(r"[_\W]+", name)


def _slips(one: str, other: str) -> int:
    """Optimal string alignment distance: inserted, omitted and wrong letters, and neighbors in the wrong order."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        two_before, before, row = before, row, [i + 1]
        for j, wanted in enumerate(other):
            row.append(min(before[j + 1] + 1, row[j] + 1, before[j] + (letter != wanted)))
            if i and j and letter == other[j - 1] and one[i - 1] == wanted:
                row[-1] = min(row[-1], two_before[j - 1] + 1)
    return row[-1]


def _first(targets: Iterable[str], known: set[str]) -> str | None:
    return next((name for name in targets if name in known), None)
