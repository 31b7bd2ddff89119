"""The recipes `overhead_…`: each compares the time of deep5 with that of the same work without it.

The table holds names, sentences and numbers. The timed functions are imported when a case is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deep5.recipe.family import RecipeFamily
from deep5.recipes.overhead.case import Case
from deep5.recipes.overhead.workloads.written import WRITTEN

__all__ = ["CASES", "FAMILY"]

Cases = Iterator[tuple[str, Case]]


# Steps, inference and training runs, compared with hand-written code for the framework

_ENGINES = {"pytorch": ("PyTorch", "<= 1.01"), "tensorflow": ("TensorFlow", "<= 1.02"), "jax": ("JAX", "<= 1.02")}
"""By framework: its name, and the goal for a step and for inference."""

_NETWORKS = {
    "lenet_1": ("LeNet, batch 1", "lenet", 1, 100, 200, 60),
    "lenet_64": ("LeNet, batch 64", "lenet", 64, 20, 40, 60),
    "resnet18": ("ResNet-18 on 32 x 32, batch 8", "resnet18_small", 8, 2, 4, 30),
    "transformer": ("a transformer encoder, batch 8", "transformer", 8, 10, 20, 60),
    "mlp": ("a multilayer perceptron (784-500-10), batch 64", "mlp", 64, 50, 100, 60),
    "gpt": ("a decoder (4 layers of width 128, 64 tokens), batch 8", "small_gpt", 8, 4, 8, 60),
}
"""By case: a sentence, network and batch size; steps per call of training and of inference; and rounds."""


def _step(network: str, engine: str, opponent: str, where: str, goal: str) -> Case:
    about, registered, batch_size, steps, _, rounds = _NETWORKS[network]
    return Case(
        about=f"A training step of {about}, {where}",
        kind="step",
        given={"engine": engine, "opponent": opponent, "network": registered, "batch_size": batch_size},
        goal=goal,
        steps=steps,
        rounds=rounds,
        smoke={"steps": 2, "rounds": 6},
    )


def _inference(network: str, engine: str, where: str, goal: str) -> Case:
    about, registered, batch_size, _, steps, rounds = _NETWORKS[network]
    return Case(
        about=f"Inference of {about}, {where}",
        kind="inference",
        given={"engine": engine, "network": registered, "batch_size": batch_size},
        goal=goal,
        steps=steps,
        rounds=rounds,
        smoke={"steps": 2, "rounds": 6},
    )


def _of_networks() -> Cases:
    for engine, (framework, goal) in _ENGINES.items():
        where = f"on {framework}, against hand-written {framework}"
        for network in ("lenet_1", "lenet_64", "resnet18", "transformer"):
            yield f"{engine}_{network}_step", _step(network, engine, engine, where, goal)
            yield f"{engine}_{network}_inference", _inference(network, engine, where, goal)
        for batch_size, steps in ((1, 150), (64, 23)):
            training = Case(
                about=f"A training of LeNet on the digits under the trainer, {where}, batch {batch_size}",
                kind="training",
                given={"engine": engine, "batch_size": batch_size},
                goal="<= 1.01",
                steps=steps,
                smoke={"steps": 4, "rounds": 6},
            )
            yield f"{engine}_training_{batch_size}", training
    where = "on PyTorch, against hand-written PyTorch with `scaled_dot_product_attention`"
    yield "pytorch_gpt_step", _step("gpt", "pytorch", "pytorch", where, "<= 1.01")
    where = "on ONNX Runtime, against hand-written PyTorch"
    for network, goal in (("mlp", "<= 1.0"), ("lenet_64", "<= 1.0"), ("resnet18", "<= 1.2")):
        yield f"onnxruntime_{network}_step", _step(network, "onnxruntime", "pytorch", where, goal)
    where = "on ONNX Runtime, against its own session"
    for network in ("lenet_1", "lenet_64", "resnet18", "transformer"):
        goal = "<= 1.1" if network == "lenet_1" else "<= 1.02"
        yield f"onnxruntime_{network}_inference", _inference(network, "onnxruntime", where, goal)


# Training steps of the workloads of other recipes, at their sizes, compared with hand-written code for the framework

_STEPS = {
    "generation_autoencoder": 40,
    "graph_block_model": 15,
    "graph_karate_club": 40,
    "recommendation_dlrm": 15,
    "reinforcement_reinforce": 20,
}
"""Steps per call of recipes whose steps are short; one of the others."""


def _of_workloads() -> Cases:
    for engine, recipes in WRITTEN.items():
        framework = _ENGINES[engine][0]
        for recipe in recipes:
            case = Case(
                about=f"A training step of the recipe {recipe}, on {framework}, against hand-written {framework}",
                kind="workload",
                given={"engine": engine, "recipe": recipe},
                goal="<= 1.02",
                steps=_STEPS.get(recipe, 1),
                smoke={"steps": 1, "rounds": 6},
                smoke_given={"size": "smoke"},
            )
            yield f"{engine}_{recipe}_step", case


# Update rules: the update only, a LeNet step under the trainer, and variants of a step

_RULES = {
    "adam": ("Adam", "adam", "fused Adam", "<= 1.0", "<= 1.0"),
    "momentum": ("Momentum", "momentum", "fused SGD with momentum", "<= 1.05", "<= 1.01"),
    "sgd": ("SGD", "sgd", "fused SGD", "<= 1.05", "<= 1.01"),
    "yogi": ("Yogi (not shipped)", "adam", "fused Adam", "<= 1.0", "<= 1.0"),
}
"""By deep5's rule: its name, PyTorch's optimizer and its name, and the goals for update and step."""


def _lenet(about: str, rule: str, optimizer: str, batch_size: int, goal: str) -> Case:
    return Case(
        about=f"{about}, batch {batch_size}",
        kind="lenet",
        given={"rule": rule, "optimizer": optimizer, "batch_size": batch_size},
        goal=goal,
        steps=200 if batch_size == 1 else 22,
        rounds=100,
        smoke={"steps": 5, "rounds": 8},
    )


def _step_under(about: str, *, mutable: bool = False, **given: str) -> Case:
    smoke = {"steps": 4, "rounds": 6}
    return Case(about=about, kind="step_under", given=given, goal="<= 1.05", steps=60, smoke=smoke, mutable=mutable)


def _of_rules() -> Cases:
    for rule, (called, optimizer, theirs, goal, step_goal) in _RULES.items():
        for shapes, count, steps in (("small", "431 thousand", 40), ("large", "11 million", 4)):
            update = Case(
                about=f"The update of {called} by deep5's kernel, against PyTorch's {theirs}, {count} parameters",
                kind="update",
                given={"rule": rule, "optimizer": optimizer, "shapes": shapes},
                goal=goal,
                steps=steps,
                rounds=100,
                smoke={"steps": 2, "rounds": 8},
                smoke_given={"shapes": "small"} if shapes == "large" else {},
            )
            yield f"{rule}_{shapes}", update
        about = f"LeNet under the trainer with deep5's {called}, against a loop with PyTorch's {theirs}"
        for batch_size in (1, 64):
            yield f"{rule}_lenet_{batch_size}", _lenet(about, rule, optimizer, batch_size, step_goal)
    about = "A LeNet epoch under the trainer with PyTorch's fused Adam, against a hand-written loop"
    for batch_size in (1, 64):
        yield f"lenet_native_{batch_size}", _lenet(about, "native", "adam", batch_size, "<= 1.01")
    # For other rules and parameters, use `--set candidate_kwargs.rule=lion --set baseline_kwargs.rule=lion`, and the
    # same for `shapes`. `rule_table` runs them all.
    yield (
        "pytorch_rule",
        Case(
            about="The update of a rule by deep5's kernel, against the fastest of PyTorch's implementations",
            kind="native_update",
            goal="<= 1.05",
            steps=10,
            smoke={"steps": 2, "rounds": 8},
            mutable=True,
        ),
    )
    for engine, theirs in (("tensorflow", "Keras"), ("jax", "Optax")):
        about = f"A training step on {_ENGINES[engine][0]} under an update rule, against {theirs}'s optimizer, batch 1"
        yield f"{engine}_rule", _step_under(about, engine=engine, mutable=True)
    for engine, theirs in (("pytorch", "two param_groups"), ("tensorflow", "Keras's AdamW"), ("jax", "Optax's mask")):
        about = f"A training step on {_ENGINES[engine][0]} under AdamW with"
        groups = f"{about} biases in a separate group, against {theirs}, batch 1"
        yield f"{engine}_groups", _step_under(groups, engine=engine, variant="groups")
        modifier = f"{about} a `gradient_modifier`, against the same hand-written, batch 1"
        yield f"{engine}_modifier", _step_under(modifier, engine=engine, variant="modifier")


# Operators on one element, compared with nothing or with the same without deep5

_OPERATORS = {
    "python_numpy": ("What a Python operator on NumPy costs beyond its arithmetic", "<= 10 us", 2000),
    "cpp_numpy": ("What a C++ operator costs from NumPy", "<= 2 us", 5000),
    "cpp_pytorch": ("What a C++ operator costs from PyTorch, forward", "<= 8 us", 2000),
    "cpp_pytorch_gradient": ("What a C++ operator costs from PyTorch, recorded for a gradient", "<= 8 us", 2000),
    "cpp_onnxruntime": ("What a C++ operator costs in a session of ONNX Runtime", "<= 5 us", 2000),
    "cpp_jax": ("What a C++ operator costs in a compiled function of JAX, its call included", "<= 8 us", 2000),
    "cpp_tensorflow": ("A C++ operator inside tf.function, against TensorFlow's own", "<= 1.3", 1000),
}
"""By route: a sentence, the goal and the steps per call, of which the smoke size uses a tenth."""


def _of_operators() -> Cases:
    for route, (about, goal, steps) in _OPERATORS.items():
        smoke = {"steps": steps // 10, "rounds": 8}
        case = Case(
            about=f"{about}: one element",
            kind="operator",
            given={"route": route},
            goal=goal,
            steps=steps,
            smoke=smoke,
            threads=None,
        )
        yield f"operator_{route}", case


# All-reduce over two ranks through the communicator, compared with the bare library

_LIBRARIES = {
    "gloo": (
        "torch.distributed on gloo",
        "torchrun",
        {"4_bytes": (8, 1500, 8), "1_mib": (8, 1500, 2), "4_mib": (8, 300, 1), "16_mib": (8, 100, 1)},
    ),
    "mpi": (
        "mpi4py",
        "mpiexec",
        {"4_bytes": (1000, 60, 100), "1_mib": (20, 500, 2), "4_mib": (8, 250, 1), "16_mib": (2, 120, 1)},
    ),
}
"""By library: its name and launcher; by size, steps per call, rounds, and steps of the smoke size."""

_SIZES = {
    "4_bytes": (4, "four bytes"),
    "1_mib": (5 << 18, "1.25 MiB"),
    "4_mib": (4 << 20, "4 MiB"),
    "16_mib": (16 << 20, "16 MiB"),
}


def _of_all_reduces() -> Cases:
    for library, (called, launcher, sizes) in _LIBRARIES.items():
        for size, (steps, rounds, smoke_steps) in sizes.items():
            size_bytes, about = _SIZES[size]
            case = Case(
                about=f"All-reduce of {about} by two ranks, through the communicator, against bare {called}",
                kind="all_reduce",
                given={"library": library, "size_bytes": size_bytes},
                goal="<= 5 us" if size == "4_bytes" else "<= 1.0204",
                steps=steps,
                rounds=rounds,
                smoke={"steps": smoke_steps, "rounds": 8},
                launcher=launcher,
            )
            yield f"all_reduce_{library}_{size}", case


# The trainer, samplers, checkpoints, ranks, and the matrix product that training steps on ONNX Runtime depend on


def _of_samplers() -> Cases:
    for name, images, like, batch_size, steps, smoke_steps in (
        ("cifar10", "CIFAR-10", "cifar10", 64, 157, 10),
        ("mnist", "MNIST", "mnist", 64, 469, 10),
        ("mnist_1", "MNIST", "mnist", 1, 30_000, 100),
    ):
        case = Case(
            about=f"An epoch of batches of {batch_size} from a shuffling sampler, images like those of {images}, "
            "against a plain gather by NumPy",
            kind="sampling",
            given={"like": like, "batch_size": batch_size},
            goal="<= 1.11",  # at least 90 % of the speed
            steps=steps,
            smoke={"steps": smoke_steps, "rounds": 8},
            threads=None,
        )
        yield f"sampling_{name}", case


_OTHERS = {
    "trainer": Case(
        about="What trainer, events and metrics add to a step, on an executor that does nothing",
        kind="trainer",
        goal="<= 5 us",
        steps=2000,
        smoke={"steps": 200, "rounds": 8},
        threads=None,
    ),
    "trainer_logging": Case(
        about="What trainer, metrics, progress bar, CSV log and MLPerf log add to a step",
        kind="logging",
        given={"busy_us": 100.0},
        goal="<= 20 us",
        steps=3000,
        rounds=30,
        smoke={"steps": 100, "rounds": 8},
        threads=None,
    ),
    "checkpoint": Case(
        about="A checkpoint of a training with 100 million parameters, against writing as many bytes to one file",
        kind="checkpoint",
        given={"size": 10_000},
        goal="<= 1.2",
        steps=1,
        rounds=20,
        smoke={"rounds": 6},
        smoke_given={"size": 1000},
        threads=None,
    ),
    "ranks_resnet": Case(
        about="A small residual network by two ranks under the trainer, against DistributedDataParallel on gloo",
        kind="ranks",
        given={"depth": 20, "batch_size": 64},
        goal="<= 1.0",
        steps=3,
        rounds=30,
        smoke={"steps": 1, "rounds": 6},
        launcher="torchrun",
    ),
    "ranks_single": Case(
        about="LeNet under the trainer as the only rank of a scheme, against the same without ranks, batch 1",
        kind="single_rank",
        given={"batch_size": 1},  # a step of one sample is short, so the overhead of a rank is visible
        goal="<= 1.01",
        steps=100,
        rounds=120,
        smoke={"steps": 4, "rounds": 6},
    ),
    "onnxruntime_matmul": Case(
        about="The bare matrix product of ONNX Runtime, on which its training steps depend, against PyTorch's",
        kind="product",
        given={"size": 512},
        goal=None,
        steps=20,
        smoke={"steps": 2, "rounds": 6},
    ),
}

_GROUPS = (
    _of_networks(),
    _of_workloads(),
    _of_rules(),
    _of_operators(),
    _of_all_reduces(),
    _of_samplers(),
    _OTHERS.items(),
)

CASES: Mapping[str, Case] = {name: case for group in _GROUPS for name, case in group}
"""Every case, by its name: the recipe `overhead_<name>`."""

FAMILY = RecipeFamily(
    cases={name: case.about for name, case in CASES.items()}, parts=lambda name: CASES[name].parts(), internal=True
)
