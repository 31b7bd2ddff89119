"""The keys of FIXED and MUTABLE: their meanings, values and defaults, by kind of recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deep5.core.plugins import KINDS
from deep5.recipe import faults

__all__ = [
    "CODE",
    "COLLECTIVES",
    "OPERATORS",
    "RECIPES",
    "SERVED",
    "SERVING",
    "STUDIED",
    "TRAINING",
    "WORKLOAD",
    "Key",
    "Kind",
    "allowed_keys",
    "base",
    "component_kinds",
    "kind_of",
]

_REQUIRED = object()

WORKLOAD = frozenset((
    "operator", "problems", "uses", "shapes", "attributes", "dtype", "bounds", "backward", "limit_gflop", "take",
))  # fmt: skip
"""Keys that determine the timed operators of a level-0 recipe: times of two workloads are not comparable."""

STUDIED = frozenset(("collective", "sizes", "algorithms", "op", "dtype", "segment"))
"""Keys that determine the measurement of a recipe of collectives, like `WORKLOAD`."""

SERVED = frozenset(("scenario", "queries", "rate", "samples_per_query", "bound_s", "percentile", "transport"))
"""Keys that determine the load of a serving recipe, like `WORKLOAD`."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """Definition of a key.

    Attributes:
        meaning: One sentence on what the key determines, for `deep5 list keys` and the reference.
        kind: Kind of the component it names (a key of `KINDS`, or "candidates"), or None for a plain value.
        default: Value if the recipe omits the key.
        least: Smallest allowed integer, or None if it is not a number.
        most: Largest allowed integer, or None.
        flag: Whether it is True or False.
        optional: Whether None means that there is no value.
        fault: Returns the error in a value, or None; for values that the fields above do not describe.
    """

    meaning: str
    kind: str | None = None
    default: Any = _REQUIRED
    least: int | None = None
    most: int | None = None
    flag: bool = False
    optional: bool = False
    fault: Callable[[Any], str | None] | None = None

    @property
    def required(self) -> bool:
        """Whether a recipe must set it."""
        return self.default is _REQUIRED


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The keys of one kind of recipe.

    Attributes:
        name: What a recipe of this kind times or trains.
        keys: All keys, except those for arguments.
        measured: Keys that determine the measurement: two results are comparable only if these are in FIXED.
        fault: From all parts, the key that conflicts with others and the error; None if there is none.
    """

    name: str
    keys: Mapping[str, Key]
    measured: frozenset[str] = frozenset()
    fault: Callable[[Mapping[str, Any]], tuple[str, str] | None] = field(default=lambda parts: None)


def _two_executors(parts: Mapping[str, Any]) -> tuple[str, str] | None:
    given = [key for key in ("framework", "executor") if parts.get(key) is not None]
    if len(given) == 1:
        return None
    got = "both" if given else "none of them"
    return "executor" if given else "", f"the recipe names {got}; allowed: one of 'framework' and 'executor'"


def _no_operator(parts: Mapping[str, Any]) -> tuple[str, str] | None:
    if parts.get("operator") is not None or parts.get("problems") is not None:
        return None
    return "operator", "the recipe names neither 'operator' nor 'problems'; allowed: one or both"


_RANKS = {
    "ranks": Key(
        meaning="Number of ranks that run the recipe together; None: those of the job that starts it, or one process.",
        default=None,
        least=1,
        optional=True,
    ),
    "launcher": Key(
        meaning="What starts the ranks: MPI, PyTorch's launcher, or threads of one process.",
        default="mpiexec",
        fault=faults.launcher_fault,
    ),
}
_TRAINING = {
    "model": Key(
        meaning="Network to train: a name of the zoo, an ONNX file, a d5.Network, or a model of another library.",
        kind="networks",
    ),
    "loss": Key(
        meaning="Loss to add to a model that computes none; None: the model has an output 'loss'.",
        default=None,
        optional=True,
        fault=faults.loss_fault,
    ),
    "dataset": Key(meaning="Data set with the samples for training and for evaluation.", kind="datasets"),
    "train_sampler": Key(meaning="Order and batches of the training samples.", kind="samplers", default="shuffle"),
    "validation_sampler": Key(
        meaning="Order and batches of the samples for evaluation; None: metrics evaluate by themselves.",
        kind="samplers",
        default="ordered",
        optional=True,
    ),
    "validation": Key(
        meaning="Fraction of the training samples to hold out and to evaluate in place of test samples; None: none.",
        default=None,
        optional=True,
        fault=faults.share_fault,
    ),
    "train_transforms": Key(meaning="Transforms of training batches, in this order.", kind="transforms", default=()),
    "test_transforms": Key(
        meaning="Transforms of the batches for evaluation, in this order.", kind="transforms", default=()
    ),
    "prefetch": Key(meaning="Number of batches to prepare in the background; 0: none.", default=0, least=0),
    # The order of all samples in all epochs is hashed before the first one.
    "epochs": Key(meaning="Number of passes over the training samples.", least=1, most=1_000_000),
    "batch_size": Key(
        meaning="Samples per batch, over all ranks; a function of the epoch makes batches grow.",
        fault=faults.batch_size_fault,
    ),
    "accumulate": Key(meaning="Number of batches from whose mean gradient one step learns.", default=1, least=1),
    "framework": Key(
        meaning="Back-end that runs the network, a mode after a colon; a recipe sets it or 'executor'.",
        kind="frameworks",
        default=None,
    ),
    "executor": Key(
        meaning="Function or class that makes the executor of the network; a recipe sets it or 'framework'.",
        kind="frameworks",
        default=None,
    ),
    "device": Key(meaning="Device that computes; with 'cuda', each rank of a machine uses another GPU.", default="cpu"),
    "threads": Key(
        meaning="Threads within an operator; None: the environment's number, or one per physical core.",
        default=None,
        least=1,
    ),
    "deterministic": Key(
        meaning="Whether the framework is requested to repeat results bit-identically on a GPU.",
        default=True,
        flag=True,
    ),
    "tf32": Key(
        meaning="Whether the framework may round operands of float32 products to TF32 on a GPU.",
        default=False,
        flag=True,
    ),
    "precision": Key(
        meaning="Element type to which the network is converted; None: the network's own types.",
        default=None,
        optional=True,
        fault=faults.precision_fault,
    ),
    "optimizer": Key(
        meaning="Update rule or step optimizer; 'native:NAME' selects the framework's own.", kind="optimizers"
    ),
    "scheme": Key(
        meaning="How ranks exchange what they learn; None: all-reduce of gradients.",
        kind="schemes",
        default=None,
        optional=True,
    ),
    "compression": Key(
        meaning="How messages of the ranks are compressed; None: not.", kind="compressors", default=None, optional=True
    ),
    "schedules": Key(
        meaning="Schedule, or a constant number, by name of the hyperparameter.",
        default={},
        fault=faults.schedules_fault,
    ),
    "parameter_groups": Key(
        meaning="Parameters with hyperparameters that differ from those of the others.",
        default=(),
        fault=faults.groups_fault,
    ),
    "gradient_modifier": Key(
        meaning="Function (name, parameter, gradient) that returns the gradient to use.",
        kind="gradient_modifiers",
        default=None,
        optional=True,
    ),
    "clip_norm": Key(
        meaning="Limit of the norm of all gradients together; None: no limit.",
        default=None,
        optional=True,
        fault=faults.positive_fault,
    ),
    "clip_value": Key(
        meaning="Limit of the absolute value of each element of a gradient; None: no limit.",
        default=None,
        optional=True,
        fault=faults.positive_fault,
    ),
    "weight_decay": Key(
        meaning="Decoupled weight decay λ, outside the rule: w ← rule(g, w) − lr · λ · w; None: none.",
        default=None,
        optional=True,
        fault=faults.decay_fault,
    ),
    "coupled_weight_decay": Key(
        meaning="L2 penalty λ, which adds λ · w to the gradient before the rule; None: none.",
        default=None,
        optional=True,
        fault=faults.decay_fault,
    ),
    "loss_scale": Key(
        meaning="Factor of the loss while gradients are computed, for float16; None: none.",
        default=None,
        optional=True,
        fault=faults.loss_scale_fault,
    ),
    "master_weights": Key(
        meaning="Whether parameters of float16 and bfloat16 have float32 master weights; None: they have.",
        default=None,
        optional=True,
        fault=faults.master_weights_fault,
    ),
    "events": Key(meaning="Events that observe the training, and may stop it.", kind="events", default=()),
    "init": Key(meaning="File with the initial weights; None: drawn from the seed.", default=None),
    "seed": Key(meaning="Seed of the initial weights, of the order of samples, and of all noise.", default=0, least=0),
    **_RANKS,
}
_TIMING = {
    "candidate": Key(
        meaning="Function that returns the code to time, a function without arguments.", kind="candidates"
    ),
    "baseline": Key(meaning="Function that returns the code to which the candidate is compared.", kind="candidates"),
    "rounds": Key(
        meaning="Number of rounds; each times the candidate, the baseline and a second baseline in random order.",
        default=60,
        least=1,
    ),
    "steps": Key(meaning="Number of steps in each timed call, passed to both functions.", default=20, least=1),
    "threads": Key(meaning="Threads within an operator, passed to both functions.", default=1, least=1),
    "seed": Key(meaning="Seed of the order, passed to both functions.", default=0, least=0),
    **_RANKS,
}
_OPERATORS = {
    "operator": Key(
        meaning="Operator to time: a name of ONNX, DOMAIN.NAME, or FILE.py:NAME; None: that of the problems.",
        default=None,
        optional=True,
        fault=faults.text_fault,
    ),
    "problems": Key(
        meaning="Problem set, such as 'deepbench.conv'; None: the one problem that 'shapes' and 'attributes' state.",
        default=None,
        optional=True,
        fault=faults.text_fault,
    ),
    "uses": Key(meaning="Uses of the problems to run; empty: all.", default=(), fault=faults.uses_fault),
    "shapes": Key(meaning="Shapes of the inputs, if there is no problem set.", default=(), fault=faults.shapes_fault),
    "attributes": Key(
        meaning="Attributes of the operator, in addition to those of a problem.",
        default={},
        fault=faults.attributes_fault,
    ),
    "dtype": Key(meaning="Element type of all inputs, or one per input.", default="float32", fault=faults.dtype_fault),
    "bounds": Key(
        meaning="Range from which inputs are drawn; None: chosen by the operator's inputs.",
        default=None,
        optional=True,
        fault=faults.bounds_fault,
    ),
    "backward": Key(meaning="Whether gradients are timed, too.", default=False, flag=True),
    "bare": Key(
        meaning="Function that returns the same operator hand-written in a framework; None: none is timed.",
        kind="candidates",
        default=None,
        optional=True,
    ),
    "frameworks": Key(
        meaning="Back-ends to time, modes after a colon.", default=("reference",), fault=faults.frameworks_fault
    ),
    "limit_gflop": Key(
        meaning="Largest work of a problem; problems with more are listed as left out; None: no limit.",
        default=None,
        optional=True,
        fault=faults.limit_fault,
    ),
    "take": Key(
        meaning="Number of problems within the limit to run, spread evenly over the set; None: all.",
        default=None,
        least=1,
        optional=True,
    ),
    "cold": Key(meaning="Whether calls with cold caches are timed, too.", default=False, flag=True),
    "rigorous": Key(meaning="Whether fresh processes are timed, not this one.", default=False, flag=True),
    "processes": Key(meaning="Number of fresh processes with 'rigorous'.", default=8, least=1),
    "rounds": Key(meaning="Largest number of samples of each operator per process.", default=30, least=1),
    "threads": Key(meaning="Threads within an operator.", default=1, least=1),
    "device": Key(meaning="Device that computes.", default="cpu"),
    "pictures": Key(meaning="Whether charts are drawn into the result folder.", default=False, flag=True),
    "box": Key(
        meaning="Problem with a box plot of its own samples; 'take' always includes it; None: no such plot.",
        default=None,
        optional=True,
        fault=faults.text_fault,
    ),
    "seed": Key(meaning="Seed of the inputs and of the order.", default=0, least=0),
}
_COLLECTIVES = {
    "collective": Key(meaning="Collective to time.", fault=faults.collective_fault),
    "sizes": Key(
        meaning="Sizes of the buffers: '4:64M' (factors of 4), '1K,1M' or 'deepbench'; None: one element to 64M.",
        default=None,
        optional=True,
        fault=faults.text_fault,
    ),
    "algorithms": Key(
        meaning="Algorithms to time; 'library' is the communicator's own; None: all.",
        default=None,
        optional=True,
        fault=faults.names_fault,
    ),
    "op": Key(meaning="Reduction: 'sum', 'max', 'min' or 'prod'.", default="sum", fault=faults.text_fault),
    "dtype": Key(
        meaning="Element type: float16, float32, float64, int32 or int64.", default="float32", fault=faults.text_fault
    ),
    "segment": Key(
        meaning="Size of a segment in pipelined algorithms; None: 128K.",
        default=None,
        optional=True,
        fault=faults.text_fault,
    ),
    "rounds": Key(meaning="Number of timed calls of each algorithm at each size.", default=20, least=1),
    "seed": Key(meaning="Seed of the data and of the order.", default=0, least=0),
    "ranks": Key(meaning="Number of ranks that call the collective.", default=2, least=2),
    "launcher": Key(
        meaning="What starts the ranks: MPI, PyTorch's launcher, or threads of one process.",
        default="mpiexec",
        fault=faults.launcher_fault,
    ),
}

_SERVING = {
    "scenario": Key(
        meaning="MLPerf's scenario: 'single_stream', 'multi_stream', 'server' or 'offline'.",
        fault=faults.scenario_fault,
    ),
    "queries": Key(
        meaning="Number of queries at each rate; in 'offline', of samples in the one query.", least=1, most=10_000_000
    ),
    "rate": Key(
        meaning="Queries per second that arrive in 'server'; several are measured one after another; None: for others.",
        default=None,
        optional=True,
        fault=faults.rate_fault,
    ),
    "samples_per_query": Key(
        meaning="Samples of a query in 'multi_stream'; None: 8, and 1 in other scenarios.",
        default=None,
        least=1,
        optional=True,
    ),
    "bound_s": Key(
        meaning="Latency bound of the goodput in seconds; None: there is none.",
        default=None,
        optional=True,
        fault=faults.positive_fault,
    ),
    "percentile": Key(
        meaning="Latency percentile that is compared with the bound; None: MLPerf's, 90 in 'single_stream', else 99.",
        default=None,
        optional=True,
        fault=faults.percentile_fault,
    ),
    "max_batch": Key(meaning="Most requests that the server runs as one batch.", default=1, least=1, most=65536),
    "deadline_s": Key(
        meaning="Longest time in seconds that the oldest request waits for a fuller batch while the server is idle.",
        default=0.0,
        fault=faults.deadline_fault,
    ),
    "timeout_s": Key(
        meaning="Seconds to wait for an answer after the last query; a request without one is a failure.",
        default=30.0,
        fault=faults.timeout_fault,
    ),
    "transport": Key(
        meaning="How requests reach the server: 'in_process', or 'http' to a separate process on 127.0.0.1.",
        default="in_process",
        fault=faults.transport_fault,
    ),
    "samples": Key(meaning="Number of test samples, from the first on, that requests draw from.", default=256, least=1),
    "model": Key(
        meaning="Network to serve: a name of the zoo, an ONNX file, or a d5.Network; its loss is left out.",
        kind="networks",
    ),
    "dataset": Key(meaning="Data set whose test samples are requested.", kind="datasets"),
    **{
        key: _TRAINING[key]
        for key in ("framework", "executor", "device", "threads", "deterministic", "tf32", "precision", "init")
    },
    "seed": Key(
        meaning="Seed of the arrival times, of the samples, and of the weights without 'init'.", default=0, least=0
    ),
}


TRAINING = Kind(name="training", keys=_TRAINING, fault=_two_executors)
"""A recipe that trains a network."""

CODE = Kind(name="code", keys=_TIMING)
"""A recipe that times a candidate against a baseline."""

OPERATORS = Kind(name="operators", keys=_OPERATORS, measured=WORKLOAD, fault=_no_operator)
"""A recipe that times operators (level 0)."""

COLLECTIVES = Kind(name="collectives", keys=_COLLECTIVES, measured=STUDIED)
"""A recipe that times a collective among ranks."""

SERVING = Kind(name="serving", keys=_SERVING, measured=SERVED, fault=_two_executors)
"""A recipe that serves a network under a load."""

RECIPES = (TRAINING, CODE, OPERATORS, COLLECTIVES, SERVING)
"""All kinds of recipes."""


def kind_of(*parts: Mapping[str, Any]) -> Kind:
    """The kind of the recipe that has these parts."""
    keys = {key for part in parts for key in part}
    if "candidate" in keys:
        return CODE
    if "operator" in keys or "problems" in keys:
        return OPERATORS
    if "scenario" in keys:
        return SERVING
    return COLLECTIVES if "collective" in keys else TRAINING


def base(key: str) -> str:
    """`"optimizer_kwargs"` -> `"optimizer"`."""
    return key.removesuffix("_args").removesuffix("_kwargs")


def allowed_keys(keys: Mapping[str, Key]) -> list[str]:
    """All keys, including those for arguments."""
    return [
        name for key, about in keys.items() for name in ([key, f"{key}_args", f"{key}_kwargs"] if about.kind else [key])
    ]


def component_kinds(keys: Mapping[str, Key]) -> dict[str, str]:
    """The kind of component by key, for the keys that name one."""
    return {key: about.kind for key, about in keys.items() if about.kind in KINDS}
