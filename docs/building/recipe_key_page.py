"""The page of recipe keys, from the tables of `deep5.recipe.keys`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mkdocs.exceptions import PluginError

from deep5.core.plugins import KINDS
from deep5.recipe.key_checks import allowed_values
from deep5.recipe.keys import CODE, COLLECTIVES, OPERATORS, RECIPES, SERVING, TRAINING, Key, Kind
from tables import code, require, with_code

HEAD = """\
# Recipe keys

A recipe is a Python file with these names:

`FIXED`
:   A dict of the keys that define the benchmark. A command cannot change them. Their hash, with that of your own code
    and files, decides which results are comparable.

`MUTABLE`
:   A dict of the keys that a command may change: `--set KEY=VALUE`, `--framework`, `--seed`, `--device`, `--threads`
    and `--init`. A key is in `FIXED` or in `MUTABLE`, not in both.

`METRICS`
:   A list of pairs of a metric and a goal: a number, a string such as `">= 97 %"`, or `None` for a metric without a
    goal.

`SIZES`
:   Optional. By name of a size, a dict of keys that change at that size: `{"smoke": {"epochs": 1}}`. `--size NAME`
    selects one; `full` is the recipe without changes.

`STUDY`
:   Optional, for recipes that train. By name of a candidate, a dict of settings: `{"adam": {"optimizer": "adam"}}`.
    `deep5 study` trains every candidate with several seeds.

A key's value is a plain value or a component. A component is a registered name, `FILE.py:NAME`, or in Python a class, a
function or an object. For each key of a component, `KEY_args` is a list of positional arguments and `KEY_kwargs` a dict
of keyword arguments: `"optimizer": "adam", "optimizer_kwargs": {"lr": 0.01}`, or on the command line
`--set optimizer_kwargs.lr=0.01`. When a setting replaces a component, the previous component's arguments are dropped.

`deep5 list keys` prints the keys with their meanings. The examples below are entries of `FIXED` or `MUTABLE`; `d5` is
`import deep5 as d5`.
"""
KINDS_OF_RECIPES: Mapping[str, tuple[str, str]] = {
    TRAINING.name: (
        "Training",
        "A recipe with none of the keys `candidate`, `operator`, `problems`, `collective` and `scenario`.",
    ),
    CODE.name: ("Code", "A recipe with the key `candidate`. It times two pieces of code against each other."),
    OPERATORS.name: ("Operators", "A recipe with the key `operator`, `problems` or both. It times operators."),
    COLLECTIVES.name: ("Collectives", "A recipe with the key `collective`. It times a collective among ranks."),
    SERVING.name: ("Serving", "A recipe with the key `scenario`. It serves a network under a load."),
}
"""Title and introduction by kind of recipe."""
EXAMPLES: Mapping[str, Mapping[str, str]] = {
    TRAINING.name: {
        "model": '"lenet"',
        "loss": '"cross_entropy"',
        "dataset": '"digits"',
        "train_sampler": '"bucket"',
        "validation_sampler": '"stream"',
        "validation": "0.1",
        "train_transforms": "[d5.RandomCrop(32, padding=4), d5.Flip()]",
        "test_transforms": "[d5.CenterCrop(28)]",
        "prefetch": "2",
        "epochs": "40",
        "batch_size": "d5.GrowingBatches(start=64, factor=2, every=30)",
        "accumulate": "4",
        "framework": '"pytorch:compiled"',
        "executor": '"own.py:make_executor"',
        "device": '"cuda"',
        "threads": "2",
        "deterministic": "False",
        "tf32": "True",
        "precision": '"bfloat16"',
        "optimizer": '"native:adam"',
        "scheme": '"local_sgd"',
        "compression": '"top_k"',
        "schedules": '{"lr": d5.Cosine(0.1), "clip_norm": 1.0}',
        "parameter_groups": "[d5.ParameterGroup(is_bias, weight_decay=0.0)]",
        "gradient_modifier": '"own.py:centralize"',
        "clip_norm": "1.0",
        "clip_value": "0.5",
        "weight_decay": "0.01",
        "coupled_weight_decay": "0.0005",
        "loss_scale": '"dynamic"',
        "master_weights": "False",
        "events": "[d5.EarlyStopping(patience=5)]",
        "init": '"weights.safetensors"',
        "seed": "1",
        "ranks": "2",
        "launcher": '"torchrun"',
    },
    CODE.name: {
        "candidate": '"own.py:fast"',
        "baseline": '"own.py:slow"',
        "rounds": "30",
        "steps": "10",
        "threads": "2",
        "seed": "1",
        "ranks": "2",
        "launcher": '"threads"',
    },
    OPERATORS.name: {
        "operator": '"MatMul"',
        "problems": '"deepbench.conv"',
        "uses": '("training",)',
        "shapes": "((64, 64), (64, 64))",
        "attributes": '{"axis": 1}',
        "dtype": '"float64"',
        "bounds": "(0.0, 1.0)",
        "backward": "True",
        "bare": '"own.py:hand_written"',
        "frameworks": '("pytorch", "jax")',
        "limit_gflop": "0.5",
        "take": "10",
        "cold": "True",
        "rigorous": "True",
        "processes": "10",
        "rounds": "60",
        "threads": "2",
        "device": '"cuda"',
        "pictures": "True",
        "box": '"conv-24"',
        "seed": "1",
    },
    COLLECTIVES.name: {
        "collective": '"all_reduce"',
        "sizes": '"4:64M"',
        "algorithms": '"ring,library"',
        "op": '"max"',
        "dtype": '"float64"',
        "segment": '"64K"',
        "rounds": "40",
        "seed": "1",
        "ranks": "4",
        "launcher": '"threads"',
    },
    SERVING.name: {
        "scenario": '"server"',
        "queries": "1000",
        "rate": "(50, 100, 200)",
        "samples_per_query": "4",
        "bound_s": "0.05",
        "percentile": "95",
        "max_batch": "8",
        "deadline_s": "0.002",
        "timeout_s": "10",
        "transport": '"http"',
        "samples": "64",
        "model": '"lenet"',
        "dataset": '"digits"',
        "framework": '"onnxruntime"',
        "executor": '"own.py:make_executor"',
        "device": '"cuda"',
        "threads": "2",
        "deterministic": "False",
        "tf32": "True",
        "precision": '"bfloat16"',
        "init": '"weights.safetensors"',
        "seed": "1",
    },
}
"""A value in Python by kind of recipe and key; tests/project/test_reference_pages.py makes a recipe with each."""


def pages(kinds: Sequence[Kind] = RECIPES) -> dict[str, str]:
    """The page.

    Args:
        kinds: The kinds of recipes.

    Raises:
        PluginError: A key without a meaning or without an example.
    """
    parts = [HEAD]
    for kind in kinds:
        title, about = KINDS_OF_RECIPES[kind.name]
        require(f"keys of {kind.name}", [(key, known.meaning) for key, known in kind.keys.items()], "deep5.recipe.keys")
        missing = [key for key in kind.keys if key not in EXAMPLES[kind.name]]
        if missing:
            raise PluginError(
                f"keys of {kind.name} without an example: {', '.join(missing)}; remedy: recipe_key_page.EXAMPLES"
            )
        measured = ""
        if kind.measured:
            named = ", ".join(code(key) for key in kind.keys if key in kind.measured)
            measured = f"\n\nTwo results are comparable only if their recipes have these keys in `FIXED`: {named}."
        parts.append(f"## {title}\n\n{about}{measured}\n")
        parts += [_entry(kind, name, key) for name, key in kind.keys.items()]
    return {"reference/recipe_keys.md": "\n".join(parts)}


def _entry(kind: Kind, name: str, key: Key) -> str:
    """A key as an entry of a list of definitions."""
    default = "Required." if key.required else f"Default: {code(repr(key.default))}."
    example = code(f'"{name}": {EXAMPLES[kind.name][name]}')
    return (
        f"{code(name)} {{ #{kind.name}-{name} }}\n:   {with_code(key.meaning)}\n\n"
        f"    {_value(name, key)} {default} Example: {example}\n"
    )


def _value(name: str, key: Key) -> str:
    """A sentence on the allowed values."""
    if key.kind in KINDS:
        several = " Or a list of them." if name in ("events", "train_transforms", "test_transforms") else ""
        return f"Component: [{KINDS[key.kind]}](entry_points.md#{key.kind}).{several}"
    if key.kind is not None:
        return "Value: a function, or `FILE.py:NAME` of one."
    allowed = allowed_values(name, key) or ""
    # Names in a list, such as "cpu, cuda".
    words = [f"`{word}`" if re.fullmatch(r"[a-z][\w:]*", word) else word for word in allowed.split(", ")]
    listed = with_code(", ".join(words))
    if " or " not in listed:
        listed = re.sub(r", (`[^`]+`)$", r" or \1", listed)
    return f"Value: {listed}."
