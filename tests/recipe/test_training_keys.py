"""Keys of training other than model, data and optimizer: every key takes effect, and is refused where it cannot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from command import Command
from deep5.core.seeds import derive_seed
from deep5.results.result import load
from deep5.results.store import result_folders
from deep5.training.datasets.class_templates import synthetic
from deep5.training.optimizer import RuleOptimizer

BASE = """
import numpy as np
import deep5 as d5

def halved(name, param, grad):
    return grad * 0.5

def is_bias(name):
    return name.endswith("bias")

class Halving(d5.Schedule):
    def value(self, info, plan):
        return 0.1 * 0.5 ** info.epoch

halving = Halving()

def lonely(grad):
    return grad

class Scaled:
    def __init__(self, by=0.5):
        self.by = by

    def __call__(self, name, param, grad):
        return grad * self.by

biases = [d5.ParameterGroup(is_bias, lr=0.5)]

def growing(epoch):
    return 2 + epoch

def doubled(inputs, ids, epoch):
    return {**inputs, "input": inputs["input"] * np.float32(2)}

twice = [doubled, doubled]

FIXED = {
    "model": "mlp", "model_kwargs": {"features": 4, "hidden": 3, "classes": 3}, "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 22, "test": 9}, "epochs": 3,
}
MUTABLE = {"batch_size": 4, "framework": "reference", "optimizer": "momentum", "optimizer_kwargs": {"lr": 0.1}, MORE}
METRICS = [(d5.TestAccuracy(), None), (d5.TrainingLoss(), None)]
"""


def run(deep5: Command, more: str = "", *words: str) -> tuple[str, dict[str, Any]]:
    """The hash of the trained weights, and the result."""
    Path("own.py").write_text(BASE.replace("MORE", more))
    before = set(result_folders("results")) if Path("results").is_dir() else set()
    answer = deep5("run", "own.py", "--quiet", *words)
    assert answer.status == 0, answer.err
    (folder,) = set(result_folders("results")) - before
    document = load(folder).document
    return document["provenance"]["trained_weights"], document


def by_hand(
    optimizer: Any = None,
    *,
    framework: str = "reference",
    events: Any = (),
    batch_size: Any = 4,
    double: bool = False,
    **options: Any,
) -> str:
    """The same training without a recipe."""
    seeds = {purpose: derive_seed(0, purpose) for purpose in ("weights", "order", "noise")}
    network = d5.networks.mlp(features=4, hidden=3, classes=3, seed=seeds["weights"])
    executor = d5.framework(framework).executor(network, seed=seeds["noise"])
    data = synthetic(shape=(4,), classes=3, train=22, test=9)

    def doubled(inputs: Any, ids: Any, epoch: int) -> Any:
        return {**inputs, "input": inputs["input"] * np.float32(2)}

    transforms = (doubled,) if double else ()
    sampler = d5.ShuffleSampler(data.train, batch_size, seed=seeds["order"], transforms=transforms)
    trainer = d5.Trainer(executor, optimizer or d5.Momentum(lr=0.1), sampler, seed=seeds["noise"], **options)
    trainer.train(3, events)
    return str(executor.export().weights_hash())


def is_bias(name: str) -> bool:
    return name.endswith("bias")


def halved(name: str, param: Any, grad: Any) -> Any:
    return grad * 0.5


class Halving(d5.Schedule):
    def value(self, info: d5.StepInfo, plan: d5.Plan) -> float:
        return float(0.1 * 0.5**info.epoch)


ACTS: dict[str, tuple[str, Callable[[], str]]] = {
    "clip_norm": ('"clip_norm": 0.05', lambda: by_hand(RuleOptimizer(d5.Momentum(lr=0.1), clip_norm=0.05))),
    "clip_value": ('"clip_value": 0.01', lambda: by_hand(RuleOptimizer(d5.Momentum(lr=0.1), clip_value=0.01))),
    "weight_decay": ('"weight_decay": 0.1', lambda: by_hand(RuleOptimizer(d5.Momentum(lr=0.1), weight_decay=0.1))),
    "coupled_weight_decay": (
        '"coupled_weight_decay": 0.1',
        lambda: by_hand(RuleOptimizer(d5.Momentum(lr=0.1), coupled_weight_decay=0.1)),
    ),
    "gradient_modifier": (
        '"gradient_modifier": halved',
        lambda: by_hand(RuleOptimizer(d5.Momentum(lr=0.1), modifier=halved)),
    ),
    "parameter_groups": (
        '"parameter_groups": [d5.ParameterGroup(is_bias, lr=0.5)]',
        lambda: by_hand(RuleOptimizer(d5.Momentum(lr=0.1), groups=[d5.ParameterGroup(is_bias, lr=0.5)])),
    ),
    "schedules": ('"schedules": {"lr": halving}', lambda: by_hand(events=[d5.Scheduled({"lr": Halving()})])),
    "accumulate": ('"accumulate": 3', lambda: by_hand(accumulate=3)),
    "train_transforms": ('"train_transforms": [doubled]', lambda: by_hand(double=True)),
    "batch_size": (
        '"batch_size": d5.GrowingBatches(start=4, factor=2, every=1)',
        lambda: by_hand(batch_size=d5.GrowingBatches(start=4, factor=2, every=1)),
    ),
}


@pytest.mark.parametrize("key", ACTS)
def test_a_key_does_what_its_object_does(key: str, deep5: Command) -> None:
    more, hand = ACTS[key]
    found, _ = run(deep5, more)
    assert found == hand()
    assert found != by_hand()


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
def test_a_native_optimizer_accumulates(framework: str, deep5: Command) -> None:
    def hand(accumulate: int) -> str:
        optimizer = d5.framework(framework).optimizer("momentum")(lr=0.1)
        return by_hand(optimizer, framework=framework, accumulate=accumulate)

    found, document = run(deep5, f'"framework": "{framework}", "optimizer": "native:momentum", "accumulate": 3')
    assert found == hand(3)
    assert found != hand(1)
    assert document["components"]["optimizer"]["native"] == framework


def test_a_data_set_of_one_s_own_needs_no_hash(deep5: Command) -> None:
    made = """
def own():
    draw = np.random.default_rng(0)
    def part(count):
        inputs = draw.standard_normal((count, 4), np.float32)
        return d5.ArrayDataset({"input": inputs, "label": draw.integers(0, 3, count)})
    return d5.Splits(train=part(20), test=part(10))
"""
    text = BASE.replace("MORE", "")
    head, tail = text[: text.index("FIXED = {")], text[text.index("MUTABLE = {") :]
    model = '"model": "mlp", "model_kwargs": {"features": 4, "hidden": 3, "classes": 3}'
    Path("own.py").write_text(f'{head}\n{made}\nFIXED = {{{model}, "dataset": own, "epochs": 1}}\n{tail}')
    answer = deep5("run", "own.py", "--quiet")
    assert answer.status == 0, answer.err
    (folder,) = result_folders("results")
    provenance = load(folder).document["provenance"]
    assert provenance["split"] == provenance["data"]


def test_prefetching_changes_no_bit(deep5: Command) -> None:
    assert run(deep5, '"prefetch": 3')[0] == by_hand()


def test_test_transforms_act_on_the_test_alone(deep5: Command) -> None:
    weights, document = run(deep5, '"test_transforms": [doubled]')
    assert weights == by_hand()
    assert document["metrics"][0]["name"] == "test_accuracy"
    plain, _ = run(deep5)
    assert plain == weights


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("--set", "clip_norm=0.05"), '"clip_norm": 0.05'),
        (("--set", "weight_decay=0.1"), '"weight_decay": 0.1'),
        (("--set", "gradient_modifier=own.py:halved"), '"gradient_modifier": halved'),
        (("--set", "schedules.lr=own.py:Halving"), '"schedules": {"lr": halving}'),
        (("--set", "schedules.lr=0.03"), '"schedules": {"lr": 0.03}'),
        (("--set", "accumulate=3"), '"accumulate": 3'),
        (("--set", "parameter_groups=own.py:biases"), '"parameter_groups": biases'),
        (("--set", "batch_size=own.py:growing"), '"batch_size": growing'),
        (("--set", "train_transforms=own.py:twice"), '"train_transforms": [doubled, doubled]'),
        (("--set", "precision=float64"), '"precision": "float64"'),
    ],
)
def test_the_command_line_sets_them(words: tuple[str, ...], more: str, deep5: Command) -> None:
    assert run(deep5, "", *words)[0] == run(deep5, more)[0] != run(deep5)[0]


def test_precision_is_what_the_result_says(deep5: Command) -> None:
    _, document = run(deep5, '"precision": "float64"')
    assert document["numerics"]["dtype"] == "float64"
    weights, document = run(deep5, '"precision": "bfloat16"')
    assert (document["numerics"]["dtype"], document["numerics"]["compute_dtype"]) == ("float32", "bfloat16")
    assert weights != run(deep5)[0]


def test_a_dynamic_loss_scale_trains(deep5: Command) -> None:
    # A power of two changes no bit where nothing overflows.
    assert run(deep5, '"loss_scale": "dynamic"')[0] == run(deep5, '"loss_scale": 1024.0')[0]


def test_what_is_said_of_the_optimizer_is_all_of_it(deep5: Command) -> None:
    more = '"clip_norm": 0.5, "weight_decay": 0.1, "gradient_modifier": halved'
    told = run(deep5, more)[1]["components"]["optimizer"]
    assert (told["clip_norm"], told["weight_decay"], told["gradient_modifier"]) == (0.5, 0.1, "halved")


WRONG = [
    ('"clip_norm": 0', "'clip_norm' is 0; allowed: a number above 0, or None"),
    ('"clip_value": "big"', "'clip_value' is 'big'"),
    ('"weight_decay": -1', "'weight_decay' is -1; allowed: a number of at least 0, or None"),
    ('"coupled_weight_decay": "L2"', "'coupled_weight_decay' is 'L2'; allowed: a number of at least 0, or None"),
    ('"master_weights": "float32"', "'master_weights' is 'float32'; allowed: True (float32 master weights), False"),
    ('"loss_scale": "static"', "'loss_scale' is 'static'; allowed: a number above 0, 'dynamic', or None"),
    ('"precision": "int8"', "'precision' is 'int8'; allowed: 'float32', 'float64', 'bfloat16', 'float16', or None"),
    ('"accumulate": 0', "'accumulate' is 0; allowed: an integer of at least 1"),
    ('"prefetch": -1', "'prefetch' is -1; allowed: an integer of at least 0"),
    ('"schedules": [1]', "'schedules' is [1]; allowed: a dict from hyperparameters to schedules"),
    ('"schedules": {"lr": "cosin"}', "unknown schedule 'cosin'"),
    ('"schedules": {"speed": 0.1}', "unknown hyperparameter of Momentum 'speed'; allowed: "),
    ('"gradient_modifier": "halve"', "'gradient_modifier' is 'halve'; allowed: a function, or FILE.py:NAME"),
    ('"parameter_groups": 5', "'parameter_groups' is 5; allowed: a list of d5.ParameterGroup"),
    (
        '"parameter_groups": "own.py:halved"',
        "'parameter_groups' gives a function; allowed: a list of d5.ParameterGroup",
    ),
    ('"batch_size": "own.py:biases"', "'batch_size' is [<deep5.core.executors.ParameterGroup"),
    ('"clip_norm": 1.0, "optimizer": "native:momentum", "framework": "pytorch"', "or no 'clip_norm'"),
    ('"parameter_groups": [5]', "groups: got (5,); allowed: a sequence of ParameterGroup"),
    ('"train_transforms": ["flop"]', "unknown transform 'flop'"),
    ('"train_transforms": [d5.RandomCrop(3)]', "data set and network do not fit: "),
    ('"train_transforms": [d5.RandomCrop(3)]', "; remedy: model_kwargs, dataset_kwargs or transforms that fit"),
    ('"batch_size": 0', "'batch_size' is 0; allowed: an integer of at least 1, or a function of the epoch"),
    ('"batch_size": halved', "'batch_size' raised TypeError for epoch 0"),
    ('"batch_size": 23', "'batch_size' is 23; allowed: at most 22, the number of training samples"),
    ('"clip_norm": 1.0, "optimizer": "lbfgs", "optimizer_kwargs": {}', "'clip_norm' is for an update rule, and LBFGS"),
    (
        '"accumulate": 2, "framework": "pytorch", "optimizer": "native:lbfgs"',
        "got accumulate=2 with LBFGSOptimizer, which owns its step; allowed: a d5.UpdateRule, or an optimizer that ",
    ),
]


@pytest.mark.parametrize(("more", "message"), WRONG)
def test_what_cannot_be_is_refused_before_anything_runs(more: str, message: str, deep5: Command) -> None:
    Path("own.py").write_text(BASE.replace("MORE", more))
    answer = deep5("run", "own.py", "--quiet")
    assert answer.status in (2, 3)
    assert message in answer.err
    assert "Traceback" not in answer.err


# What `deep5 check` refuses or accepts as a run does.
CHECKED = [
    ('"gradient_modifier": halved', ""),
    ('"gradient_modifier": "own.py:halved"', ""),
    ('"gradient_modifier": Scaled', ""),
    ('"gradient_modifier": "own.py:Scaled", "gradient_modifier_kwargs": {"by": 2}', ""),
    ('"gradient_modifier": lonely', "'gradient_modifier' cannot be called: too many positional arguments"),
    ('"gradient_modifier": "own.py:lonely"', "allowed: a function (name, param, grad) -> grad"),
    ('"gradient_modifier": "own.py:halving"', "'gradient_modifier' gives a Halving; allowed: a function (name"),
    ('"gradient_modifier": halved, "gradient_modifier_kwargs": {"by": 2}', "arguments of 'gradient_modifier' do not"),
    ('"gradient_modifier": Scaled, "gradient_modifier_kwargs": {"to": 2}', "arguments of 'gradient_modifier' do not"),
    ('"train_transforms": [doubled]', ""),
    ('"train_transforms": [doubled], "train_transforms_kwargs": {"by": 2}', "arguments of 'train_transforms' do not"),
    ('"ranks": 2, "scheme": "all_reduce", "scheme_kwargs": {"by": 2}', "the arguments of 'scheme' do not fit"),
    ('"ranks": 2, "scheme": "all_reduce", "compression": "none"', "unknown compression 'none'"),
    (
        '"framework": None, "executor": d5.framework("reference"), "executor_kwargs": {"by": 2}',
        "the arguments of 'executor' do not fit: got an unexpected keyword argument 'by'",
    ),
    (
        '"framework": d5.framework("reference"), "framework_kwargs": {"by": 2}',
        "the arguments of 'framework' do not fit: got an unexpected keyword argument 'by'",
    ),
]


@pytest.mark.parametrize(("more", "message"), CHECKED)
def test_a_check_refuses_what_a_run_refuses_and_nothing_else(more: str, message: str, deep5: Command) -> None:
    Path("own.py").write_text(BASE.replace("MORE", more))
    for command in ("check", "run"):
        answer = deep5(command, "own.py", "--quiet")
        assert (answer.status, message in answer.err) == (2 if message else 0, True), answer.err


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("TopK(4)", "the metric 'top_k': top_k with k=4 of a network of 3 classes; allowed: 1 to 3"),
        ("F1(positive=3)", "the metric 'f1': f1 with positive=3 of a network of 3 classes; allowed: 0 to 2"),
        ("ROCAUC(scores='logit')", "the metric 'roc_auc': unknown output 'logit'; allowed: logits, loss; did you mean"),
        ("WordErrorRate()", "the metric 'word_error_rate': unknown input 'target'; allowed: input, label"),
        ("LabelErrorRate()", "the metric 'label_error_rate': unknown output 'log_probabilities'; allowed: logits"),
        ("MeanAveragePrecision()", "the network has no output 'predicted_boxes'; it has logits, loss; remedy: a det"),
        ("TrainingLoss(output='cost')", "the metric 'training_loss': unknown output 'cost'; allowed: logits, loss"),
        ("LatencyPercentile(99)", "the metric 'latency_percentile': a training serves no load; allowed: in recipes"),
        ("TopK(k=3, logit='logits')", "d5.TopK got the argument 'logit'; allowed: k, logits, label; did you mean"),
        ("TopK(1, 2, 3, 4, 5)", "d5.TopK takes"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused_before_a_run(metric: str, message: str, deep5: Command) -> None:
    Path("own.py").write_text(BASE.replace("MORE", "").replace("(d5.TestAccuracy(), None)", f"(d5.{metric}, None)"))
    for command in ("check", "run"):
        answer = deep5(command, "own.py", "--quiet")
        assert (answer.status, message in answer.err) == (2, True), answer.err
    assert not Path("results").exists()


def test_a_run_is_of_another_hash_where_a_fixed_group_differs(deep5: Command) -> None:
    def fixed(group: str) -> str:
        text = BASE.replace("MORE", "").replace('"epochs": 3,', f'"epochs": 3, "parameter_groups": [{group}],')
        Path("own.py").write_text(text)
        answer = deep5("check", "own.py", "--json")
        assert answer.status == 0, answer.err
        return str(json.loads(answer.out)["hash"])

    assert fixed("d5.ParameterGroup(is_bias, lr=0.5)") == fixed("d5.ParameterGroup(is_bias, lr=0.5)")
    assert fixed("d5.ParameterGroup(is_bias, lr=0.5)") != fixed("d5.ParameterGroup(is_bias, lr=0.25)")
    Path("own.py").write_text(
        BASE.replace("MORE", "").replace(
            '"epochs": 3,', '"epochs": 3, "parameter_groups": [d5.ParameterGroup(lambda name: True)],'
        )
    )
    answer = deep5("check", "own.py")
    assert answer.status == 2
    assert "lambda, which has no name to hash" in answer.err


MUTABLE_PARTS = """
FIXED = {"model": "mlp", "model_kwargs": {"features": 4, "hidden": 3, "classes": 3}, "epochs": 3}
MUTABLE = {
    "batch_size": 4, "framework": "reference",
    "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 22, "test": 9},
    "optimizer": "momentum",
    "optimizer_kwargs": {"lr": 0.1},
    "schedules": {"momentum": 0.5},
}
METRICS = [("test_accuracy", None)]
"""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("optimizer_kwargs.lr=fast",),
            "--set optimizer_kwargs.lr=fast (own.py:7): the hyperparameter Momentum.lr is 'fast'; allowed: a number",
        ),
        (("dataset_kwargs.train=3",), "--set dataset_kwargs.train=3 (own.py:4): 'batch_size' is 4; allowed: at most 3"),
        (
            tuple(f"dataset_kwargs.{each}" for each in ("shape=(5,)", "train=30", "test=8", "data_seed=1")),
            "--set dataset_kwargs.shape=(5,), --set dataset_kwargs.train=30, --set dataset_kwargs.test=8 and 1 more "
            "(own.py:5): data set and network do not fit",
        ),
        (
            ("optimizer=adam",),
            "--set optimizer=adam (own.py:9): 'schedules': unknown hyperparameter of Adam 'momentum'",
        ),
        # A message names the key, or the argument, that was set.
        (("optimizer_kwargs.rate=3",), "the arguments of 'optimizer' do not fit: got an unexpected keyword"),
        (("batch_size=1000",), "'batch_size' is 1000; allowed: at most 22"),
    ],
)
def test_a_fault_in_a_setting_is_not_one_of_the_file(deep5: Command, settings: tuple[str, ...], message: str) -> None:
    Path("own.py").write_text(MUTABLE_PARTS)
    answer = deep5("check", "own.py", *(word for setting in settings for word in ("--set", setting)))
    assert answer.status == 2
    assert answer.err.startswith(f"deep5: {message}")


def test_a_remedy_names_arguments_as_they_were_given(deep5: Command) -> None:
    Path("t.csv").write_text("a,b,y\n" + "1,2,0\n3,4,1\n" * 20 + "1,,1\n")
    table = {"path": "t.csv", "target": "y"}
    Path("own.py").write_text(
        MUTABLE_PARTS.replace('"synthetic"', '"table"').replace(
            '{"shape": (4,), "classes": 3, "train": 22, "test": 9}', repr(table)
        )
    )
    assert "remedy: missing='drop', missing='mean' or features= without 'b'" in deep5("check", "own.py").err
    given = [word for name, value in table.items() for word in ("--set", f"dataset_kwargs.{name}={value}")]
    shown = "remedy: --set dataset_kwargs.missing=drop, --set dataset_kwargs.missing=mean or "
    assert shown in deep5("check", "own.py", "--set", "dataset=table", *given).err
    given = [word for name, value in table.items() for word in ("--set", f"{name}={value}")]
    assert "remedy: --set missing=drop, --set missing=mean or " in deep5("show", "dataset", "table", *given).err


def test_labels_that_are_no_class_are_refused_before_anything_runs(deep5: Command) -> None:
    Path("own.py").write_text(
        BASE.replace("MORE", "").replace('"hidden": 3, "classes": 3', '"hidden": 3, "classes": 2')
    )
    answer = deep5("run", "own.py", "--quiet")
    assert answer.status == 2
    assert "'label' of the training sample 2 is 2: the network has 2 outputs, the data set 3 classes" in answer.err
    assert "allowed: 0 to 1 (7 labels are out of range); remedy: a network of 3 outputs" in answer.err
    assert not Path("results").exists()


def test_data_without_a_known_length_train(deep5: Command) -> None:
    Path("own.py").write_text(
        BASE.replace("MORE", "")
        .replace(
            '"dataset": "synthetic",\n    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 22, "test": 9},',
            '"dataset": stream, "train_sampler": "stream",',
        )
        .replace(
            "FIXED =",
            """
from deep5.training.dataset import StreamDataset

class Stream(StreamDataset):
    def __init__(self, data):
        self.data, self.specs = data, data.specs

    def samples(self, epoch, start=0):
        for index in range(start, 22):
            yield {name: part[0] for name, part in self.data.batch(np.array([index])).items()}

    def cast(self, specs):
        return Stream(self.data.cast(specs))

def stream():
    data = d5.datasets.synthetic(shape=(4,), classes=3, train=22, test=9)
    return d5.Splits(train=Stream(data.train), test=data.test, split_hash="0" * 64, description={"source": "a stream"})

FIXED =""",
        )
    )
    answer = deep5("run", "own.py", "--quiet")
    assert answer.status == 0, answer.err
    (folder,) = result_folders("results")
    result = load(folder)
    assert len(result.samples()["training_loss"]) == 3 * 6
    assert hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
