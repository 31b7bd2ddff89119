"""Drawn honest results: the audit may not accuse any of them.

`python tests/support/honest_cases.py FIRST LAST` makes and audits the cases with these numbers, and prints findings;
the folder of an accused case stays. A case is a function of its number, except for the times.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deep5.audit import audit
from deep5.compare.driver import run_comparison
from deep5.core.errors import Deep5Error, RunFailed
from deep5.measuring.environment import environment_hash
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute
from deep5.study.study import run_study
from deep5.training.checkpointer import Checkpointer
from honest_machine import Clock, Hooks, Interruption, busy, plugged_in, slow_disk
from honest_results import hashed_anew

__all__ = ["CASES", "Case", "Outcome", "drawn", "made"]

CASES = 200
RUN, QUICK, STUDY, OPERATORS = "run", "quick comparison", "study", "operators"
# Of twenty cases: 65 % runs, 15 % comparisons, 10 % studies, 10 % operators.
_KINDS = (
    RUN, RUN, RUN, QUICK, RUN, RUN, OPERATORS, RUN, RUN, STUDY, RUN, RUN, QUICK, RUN, RUN, OPERATORS, RUN, STUDY, RUN,
    QUICK,
)  # fmt: skip
_DAY_S, _HOUR_S = 86_400.0, 3600.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One honest result to make.

    Attributes:
        number: Its number, which determines all others.
        kind: `RUN`, `QUICK`, `STUDY` or `OPERATORS`.
        what: Description, in one line.
        source: Its recipe.
        options: Arguments of `run_comparison`, or those of `run_study`.
        interruptions: Steps after which a run ends, or lines after which a comparison or study ends.
        error: Whether an exception ends it, instead of the user.
        pauses_s: Seconds by the system clock before each resumption.
        every_steps: Steps from one checkpoint to the next.
        set_at: Step, or line, at which the system clock is set; None: it is not.
        set_by_s: By how much.
        slow_disk: Whether writes wait.
        slow_hooks: Whether events wait.
        others: Number of other busy processes.
        newer: Whether a newer deep5 wrote it, with keys that this one does not know.
    """

    number: int
    kind: str
    what: str
    source: str
    options: dict[str, Any] = field(default_factory=dict)
    interruptions: tuple[int, ...] = ()
    error: bool = False
    pauses_s: tuple[float, ...] = ()
    every_steps: int = 1
    set_at: int | None = None
    set_by_s: float = 0.0
    slow_disk: bool = False
    slow_hooks: bool = False
    others: int = 0
    newer: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an audit said.

    Attributes:
        findings: The findings, one line each.
        checks: Number of checks.
        status: Status of the result.
    """

    findings: tuple[str, ...]
    checks: int
    status: str


# Drawing --------------------------------------------------------------------------------------------------------------


def drawn(number: int) -> Case:
    """The case with this number, from 0."""
    draw = random.Random(f"honest result {number}")  # noqa: S311 - drawn cases
    kind = _KINDS[number % len(_KINDS)]
    if kind == OPERATORS:
        return _operators(number, draw)
    if kind == RUN:
        return _run(number, draw)
    return _study(number, draw) if kind == STUDY else _comparison(number, draw)


_OWN_NETWORK = """
def tiny(*, hidden=9, dtype="float32", seed=0):
    build = d5.NetworkBuilder("tiny", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", *SHAPE)), build.input("label", ("N",), "int64")
    x = build.op("Flatten", x)
    weight, bias = build.parameter("w1", (hidden, FEATURES)), build.parameter("b1", (hidden,), d5.networks.zeros)
    x = build.op("Relu", build.op("Gemm", x, weight, bias, transB=1))
    x = build.op("Gemm", x, build.parameter("w2", (CLASSES, hidden)), transB=1)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")})
"""
_OWN_METRIC = '''
class SlowestStep(d5.Metric):
    """Milliseconds of the slowest training step.

    On the clock: forward, backward, update. Off it: data, events.
    """

    name, unit, direction = "slowest_step", "ms", "lower"

    def observer(self):
        return Steps()


class Steps(d5.Observer):
    synchronous = True

    def __init__(self):
        self._samples = []

    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        self._samples.append(d5.Sample((end_ns - begin_ns) / 1e6, step=info.step, epoch=info.epoch))

    def samples(self):
        return list(self._samples)

    def value(self):
        return max((sample.value for sample in self._samples), default=None)
'''
_OWN_SAMPLER = '''
class Dropping(d5.ShuffleSampler):
    """Leaves out what does not fill a batch."""

    def order(self, epoch):
        order = super().order(epoch)
        return order[: len(order) // self.batch_size * self.batch_size]

    def samples(self, epoch):
        return len(self.dataset) // self.batch_size * self.batch_size
'''


@dataclass
class _Recipe:
    """The parts of a drawn training recipe, and words that describe it."""

    fixed: dict[str, Any]
    mutable: dict[str, Any]
    metrics: list[str]
    code: str = ""
    names: dict[str, str] = field(default_factory=dict)  # what the recipe writes without quotes
    words: list[str] = field(default_factory=list)
    samples: int = 0
    steps: int = 0

    def source(self) -> str:
        parts = {"FIXED": self.fixed, "MUTABLE": self.mutable}
        text = "".join(f"{name} = {values!r}\n" for name, values in parts.items())
        for mark, code in self.names.items():
            text = text.replace(repr(mark), code)
        metrics = ",\n    ".join(self.metrics)
        return f"import deep5 as d5\n{self.code}\n{text}METRICS = [\n    {metrics},\n]\n"


def _training(draw: random.Random, frameworks: list[str], *, plain: bool = False) -> _Recipe:
    """A drawn recipe that trains; `plain`: without what a comparison or a study cannot vary."""
    recipe = _Recipe({}, {}, [])
    _draw_data(draw, recipe)
    epochs = draw.choice((1, 1, 2, 2, 3, 4))
    recipe.fixed["epochs"] = epochs
    samples, sizes = recipe.samples, [1, 3, 7, 16, 32, 33, 40, 64]
    size = draw.choice([size for size in sizes if size * 60 >= samples and size <= samples] + [samples])
    recipe.mutable |= {"batch_size": size, "framework": draw.choice(frameworks), "seed": draw.randrange(1000)}
    if draw.random() < 0.6:
        threads = draw.choice((1, 1, 2))
        # These two fix their threads once per process.
        recipe.mutable["threads"] = 1 if recipe.mutable["framework"] in ("jax", "tensorflow") else threads
    if draw.random() < 0.15 and recipe.mutable["framework"] != "onnxruntime":
        recipe.mutable["precision"] = "float64"
        recipe.words.append("float64")
    recipe.words += [f"batches of {size} of {samples}", f"{epochs} epochs", recipe.mutable["framework"]]
    if not plain:
        _draw_sampler(draw, recipe)
    _draw_optimizer(draw, recipe)
    recipe.steps = max(1, epochs * -(-samples // size) // recipe.mutable.get("accumulate", 1))
    if not plain and draw.random() < 0.25:
        _draw_stop(draw, recipe)
    _draw_metrics(draw, recipe)
    if draw.random() < 0.2:
        recipe.mutable |= {key: recipe.fixed.pop(key) for key in ("dataset_kwargs",) if draw.random() < 0.5}
    return recipe


def _draw_data(draw: random.Random, recipe: _Recipe) -> None:
    model = draw.choice(("mlp", "mlp", "lenet", "tiny"))
    if model == "lenet" or (model == "tiny" and draw.random() < 0.5):
        limit = draw.choice((17, 40, 96, 150))
        recipe.fixed |= {"dataset": "digits", "dataset_kwargs": {"limit": limit}}
        recipe.samples, shape, features, classes = limit, "(1, 28, 28)", 784, 10
        if draw.random() < 0.3:
            recipe.fixed["dataset_kwargs"] |= {"split_seed": draw.randrange(5), "test_share": 0.25}
    else:
        features, classes = draw.choice((4, 9, 30)), draw.choice((2, 3, 10))
        recipe.samples, shape = draw.choice((1, 5, 24, 60, 128)), f"({features},)"
        recipe.fixed |= {
            "dataset": "synthetic",
            "dataset_kwargs": {
                "shape": [features], "classes": classes, "train": recipe.samples, "test": draw.choice((1, 7, 50)),
            },
        }  # fmt: skip
    recipe.fixed["model"] = model
    if model == "tiny":
        code = _OWN_NETWORK.replace("*SHAPE", f"*{shape}").replace("FEATURES", str(features))
        recipe.code += code.replace("CLASSES", str(classes))
        recipe.names["tiny"] = "tiny"
    elif model == "mlp":
        recipe.fixed["model_kwargs"] = {"features": features, "hidden": 8, "classes": classes}
        if draw.random() < 0.3:
            recipe.fixed["model_kwargs"]["dropout"] = 0.25
    recipe.words += [recipe.fixed["model"], recipe.fixed["dataset"]]


def _draw_sampler(draw: random.Random, recipe: _Recipe) -> None:
    chance, size = draw.random(), recipe.mutable["batch_size"]
    if chance < 0.2:
        recipe.mutable["train_sampler"] = "ordered"
    elif chance < 0.3:
        recipe.code += _OWN_SAMPLER
        recipe.mutable["train_sampler"], recipe.names["Dropping"] = "Dropping", "Dropping"
    elif chance < 0.4:
        recipe.code += "\n\ndef weigh(parts):\n    return 1.0 + parts['label']\n"
        recipe.mutable |= {"train_sampler": "weighted", "train_sampler_kwargs": {"weights": "weigh"}}
        recipe.names["weigh"] = "weigh"
    elif chance < 0.45:
        recipe.mutable |= {"train_sampler": "shuffle", "train_sampler_kwargs": {"seed": 7}}
    elif chance < 0.55:
        recipe.mutable["batch_size"] = "growing"
        recipe.names["growing"] = f"d5.GrowingBatches(start={size}, factor=2, every=1)"
    elif chance < 0.7:
        recipe.mutable["accumulate"] = draw.choice((2, 3))
    if draw.random() < 0.2:
        recipe.mutable["prefetch"] = 2
    recipe.words += [f"{key} {recipe.mutable[key]}" for key in ("train_sampler", "accumulate") if key in recipe.mutable]


def _draw_optimizer(draw: random.Random, recipe: _Recipe) -> None:
    name, rate = draw.choice((("sgd", 0.05), ("momentum", 0.05), ("adam", 0.003), ("adamw", 0.003), ("rmsprop", 0.001)))
    if draw.random() < 0.1:
        name, rate = "sgd", 1e30  # diverges: the loss becomes NaN
        recipe.words.append("diverges")
    recipe.mutable |= {"optimizer": name, "optimizer_kwargs": {"lr": rate}}
    chance = draw.random()
    if chance < 0.15:
        recipe.mutable["schedules"], recipe.names["schedule"] = {"lr": "schedule"}, f"d5.Cosine({rate})"
    elif chance < 0.25:
        recipe.mutable["schedules"] = {"lr": "schedule"}
        recipe.names["schedule"] = f"d5.StepDecay({rate}, 0.5, steps=2)"
    elif chance < 0.35:
        recipe.mutable["clip_norm"] = 1.0
    elif chance < 0.45 and recipe.mutable["framework"] in ("pytorch", "jax", "tensorflow"):
        recipe.mutable["optimizer"] = "native:sgd"
        recipe.mutable["optimizer_kwargs"] = {"lr": 0.05}
    recipe.words.append(recipe.mutable["optimizer"])


def _draw_stop(draw: random.Random, recipe: _Recipe) -> None:
    code = draw.choice((
        "d5.EarlyStopping(patience=1, min_delta=10.0)", "d5.StopAtAccuracy(1)", "d5.StopAfter(0.05)",
        "d5.StopOnNaN(every=1)",
    ))  # fmt: skip
    recipe.mutable["events"], recipe.names["stop"] = ["stop"], code
    recipe.words.append(code)


def _draw_metrics(draw: random.Random, recipe: _Recipe) -> None:
    met, missed = draw.choice(((">= 0", "> 100"), (">= 0.5", ">= 99.99"))), draw.random() < 0.3
    accuracy = met[1] if missed else met[0]
    target = draw.choice((1, 30, 99.9))
    always = [f'(d5.TestAccuracy(), "{accuracy}")', "(d5.TestLoss(), None)", "(d5.TrainingLoss(), None)"]
    timed = [
        '(d5.WallClockTime(), "< 600 s")', f"(d5.TimeToAccuracy({target}), None)",
        f"(d5.EpochsToAccuracy({target}), None)", "(d5.Throughput(), None)", "(d5.StepLatency(), None)",
        "(d5.PeakMemory(), None)",
    ]  # fmt: skip
    rare = [
        "(d5.Utilisation(), None)", "(d5.TrainingAccuracy(), None)", "(d5.TopK(2), None)",
        "(d5.ConfusionMatrix(), None)", "(d5.FinalTestAccuracy(), None)", "(d5.GeneralisationGap(), None)",
        "(d5.SamplingBias(), None)", "(d5.Cost(2.5), None)", "(d5.TimeBreakdown(), None)", "(d5.Energy(), None)",
        "(d5.Repeatability(2), None)",
    ]  # fmt: skip
    chosen = [metric for metric in always + timed if draw.random() < 0.8]
    chosen += [metric for metric in rare if draw.random() < 0.2]
    if draw.random() < 0.25:
        recipe.code += _OWN_METRIC
        chosen.append('(SlowestStep(), "< 100000 ms")' if draw.random() < 0.5 else "(SlowestStep(), None)")
        recipe.words.append("a metric of its own")
    if draw.random() < 0.2:
        recipe.code = f"from largest_step_plugin import LargestStep\n{recipe.code}"
        chosen.append("(LargestStep(), None)")
        recipe.words.append("a plug-in metric")
    draw.shuffle(chosen)
    recipe.metrics = chosen or always
    if missed:
        recipe.words.append("a goal that is missed")


def _machine(
    draw: random.Random, steps: int, words: list[str], *, hooks: bool = False, sets: bool = True
) -> dict[str, Any]:
    """What the machine does meanwhile; `hooks`: also to events; `sets`: also to the clock."""
    found: dict[str, Any] = {}
    if draw.random() < 0.2 and sets:
        found |= {"set_at": draw.randrange(steps), "set_by_s": draw.choice((-1.0, 1.0)) * _HOUR_S}
        words.append(f"the clock set by {found['set_by_s']:+g} s")
    for key in ("slow_disk", "slow_hooks", "newer"):
        found[key] = draw.random() < 0.2 and (hooks or key != "slow_hooks")
        words += [key.replace("_", " ")] * found[key]
    if draw.random() < 0.3:
        found["others"] = draw.choice((1, 2, 3))
        words.append(f"{found['others']} busy processes")
    return found


def _interruptions(draw: random.Random, steps: int, words: list[str], *, errors: bool = False) -> dict[str, Any]:
    if draw.random() >= 0.35:
        return {}
    count = draw.choice((1, 1, 2))
    at = sorted(draw.randrange(steps) for _ in range(count))
    pauses = tuple(draw.choice((0.0, _HOUR_S, 3.5 * _DAY_S)) for _ in range(draw.choice((count, count, 0))))
    error = draw.random() < 0.4 and errors
    words.append(f"ends after {at} by {'an error' if error else 'the user'}, resumed after {list(pauses)} s")
    return {"interruptions": tuple(at), "pauses_s": pauses, "error": error, "every_steps": draw.choice((1, 1, 3, 1000))}


def _run(number: int, draw: random.Random) -> Case:
    frameworks = ["reference"] * 8 + ["pytorch"] * 8 + ["onnxruntime"] * 2 + ["jax", "tensorflow"]
    recipe = _training(draw, frameworks)
    more = _interruptions(draw, recipe.steps, recipe.words, errors=True)
    more |= _machine(draw, recipe.steps, recipe.words, hooks=True)
    return Case(number=number, kind=RUN, what=", ".join(recipe.words), source=recipe.source(), **more)


def _comparison(number: int, draw: random.Random) -> Case:
    recipe = _training(draw, ["reference"], plain=True)
    # The proof covers float32, and a network that diverges proves nothing.
    recipe.mutable.pop("precision", None)
    if recipe.mutable["optimizer_kwargs"]["lr"] > 1:
        recipe.mutable["optimizer_kwargs"]["lr"] = 0.01
    recipe.words = [word for word in recipe.words if word not in ("float64", "diverges")]
    kind = draw.choice(("training", "training", "inference"))
    options: dict[str, Any] = {"kind": kind, "steps": draw.choice((3, 5)), "threads": 1}
    frameworks = draw.choice((["reference"], ["reference", "onnxruntime"], ["reference", "pytorch"]))
    if len(frameworks) == 1:
        samples, size = recipe.samples, recipe.mutable["batch_size"]
        options["vary"] = (
            {"batch_size": [size, *draw.sample([s for s in (1, 2, 5, 24, samples) if s != size and s <= samples], 1)]}
            if samples > 1
            else {"seed": [1, 2]}
        )
    recipe.words += [f"{kind} on {frameworks}", f"vary {options.get('vary')}"]
    lines = 7
    more = _interruptions(draw, lines, recipe.words) | _machine(draw, lines, recipe.words)
    options["frameworks"] = frameworks
    return Case(
        number=number, kind=QUICK, what=", ".join(recipe.words), source=recipe.source(), options=options, **more
    )


def _study(number: int, draw: random.Random) -> Case:
    recipe = _training(draw, ["reference", "reference", "pytorch"], plain=True)
    key, values = draw.choice((("lr", (0.01, 0.1)), ("batch_size", (recipe.mutable["batch_size"], 1))))
    if values[0] == values[1]:  # two candidates with the same settings are repetitions with the same seeds
        key, values = "lr", (0.01, 0.1)
    varied = {
        name: {"optimizer_kwargs": {"lr": value}} if key == "lr" else {"batch_size": value}
        for name, value in zip(("one", "other"), values, strict=True)
    }
    seeds = draw.choice(((0, 1), (3,), (5, 2, 8)))
    recipe.words += [f"varied {varied}", f"seeds {seeds}"]
    lines = 2 * len(seeds)
    more = _interruptions(draw, lines, recipe.words) | _machine(draw, lines, recipe.words)
    options = {"varied": varied, "seeds": seeds}
    return Case(
        number=number, kind=STUDY, what=", ".join(recipe.words), source=recipe.source(), options=options, **more
    )


def _operators(number: int, draw: random.Random) -> Case:
    side = draw.choice((3, 17, 64, 100))
    operator, shapes = draw.choice((
        ("MatMul", [[side, side], [side, side]]), ("Add", [[side, 7], [side, 7]]), ("Relu", [[side, side]]),
        ("Softmax", [[side, 10]]),
    ))  # fmt: skip
    frameworks = draw.choice(("reference", ["reference", "pytorch"], ["reference", "onnxruntime"]))
    mutable = {"frameworks": frameworks, "threads": 1, "rounds": draw.choice((6, 8)), "seed": draw.randrange(100)}
    fixed = {"operator": operator, "shapes": shapes}
    if draw.random() < 0.3:
        mutable["cold"] = True
    if draw.random() < 0.3 and frameworks != "reference":
        fixed["backward"] = True
    goal = draw.choice(('"< 1000 ms"', '"< 0.000001 ms"', "None"))
    metrics = [f"(d5.OperatorTime(), {goal})", "(d5.OperatorCoverage(), None)"]
    words = [operator, str(shapes), str(frameworks), *(key for key in ("cold", "backward") if key in mutable | fixed)]
    source = _Recipe(fixed, mutable, metrics).source()
    more = _machine(draw, 1, words, sets=False)
    return Case(number=number, kind=OPERATORS, what=", ".join(words), source=source, **more)


# Making ---------------------------------------------------------------------------------------------------------------


def made(case: Case, folder: Path) -> Outcome:
    """Make the result below a folder, and audit it."""
    draw, clock = random.Random(f"machine of {case.number}"), Clock()  # noqa: S311 - as above
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "drawn.py").write_text(case.source)
    with ExitStack() as stack:
        stack.enter_context(plugged_in(folder / "plugin"))
        stack.enter_context(clock.seen())
        stack.enter_context(busy(case.others))
        if case.slow_disk:
            stack.enter_context(slow_disk(draw))
        result = {RUN: _make_run, OPERATORS: _make_run, QUICK: _make_by_lines, STUDY: _make_by_lines}[case.kind](
            case, folder, clock, draw
        )
        if case.newer:
            _as_newer(result)
        report = audit([result])
    return Outcome(findings=tuple(map(str, report.findings)), checks=report.checks, status=_status(result))


def _status(result: Path) -> str:
    """How the result ended, with the first reason."""
    (name,) = (name for name in ("result.json", "comparison.json", "study.json") if (result / name).exists())
    document = json.loads((result / name).read_text())
    if name == "study.json":
        failures = [reason for own in document["candidates"].values() for reason in own["failures"]]
        return ": ".join(["finished" if document["finished"] else "unfinished", *failures[:1]])
    return ": ".join([document["status"], *document["reasons"][:1]])


def _only(folder: Path) -> Path:
    (found,) = (path for path in folder.iterdir() if not path.name.startswith("."))
    return found


def _make_run(case: Case, folder: Path, clock: Clock, draw: random.Random) -> Path:
    out, recipe = folder / "results", load_recipe(folder / "drawn.py")
    hooks = Hooks(draw, clock, case.set_at, case.set_by_s, slow=case.slow_hooks)
    resume: Path | None = None
    for number in range(len(case.pauses_s) + 1):
        events: list[Any] = [hooks] if case.slow_hooks or case.set_at is not None else []
        if number < len(case.interruptions):
            how = ValueError("a failure that was drawn") if case.error else KeyboardInterrupt()
            events.append(Interruption(case.interruptions[number], how))
        keeper: Any = Checkpointer(every_steps=case.every_steps, every_s=None) if case.interruptions else "default"
        with suppress(RunFailed, KeyboardInterrupt):
            execute(recipe, out=out, quiet=True, events=events, resume=resume, checkpointer=keeper)
            break
        resume = _only(out)
        if number < len(case.pauses_s):
            clock.off_s += case.pauses_s[number]
    return _only(out)


def _make_by_lines(case: Case, folder: Path, clock: Clock, draw: random.Random) -> Path:
    """A comparison or a study, which reports a line before each process."""
    out, resume, lines = folder / "results", None, [0]

    def session(number: int) -> Callable[[str], None]:
        begun = lines[0]

        def tell(line: str) -> None:
            lines[0] += 1
            if lines[0] - 1 == case.set_at:
                clock.off_s += case.set_by_s
            if number < len(case.interruptions) and lines[0] - 1 - begun == case.interruptions[number]:
                raise KeyboardInterrupt

        return tell

    for number in range(len(case.pauses_s) + 1):
        with suppress(RunFailed, KeyboardInterrupt):
            if case.kind == QUICK:
                options = {} if resume is not None else case.options
                run_comparison(str(folder / "drawn.py"), out=out, resume=resume, tell=session(number), **options)
            else:
                run_study(folder / "drawn.py", out=out, resume=resume, tell=session(number), **case.options)
            break
        resume = _only(out)
        if number < len(case.pauses_s):
            clock.off_s += case.pauses_s[number]
    return _only(out)


def _as_newer(result: Path) -> None:
    """Write the result as a newer deep5 might: its version, and keys in the document and within it."""
    name = "comparison.json" if (result / "comparison.json").exists() else "result.json"
    for path in [result / name] if (result / name).exists() else sorted(result.glob("runs/*/result.json")):
        document = json.loads(path.read_text())
        software = document["software"]
        software["deep5"] = software["packages"]["deep5"] = "99.1.0"
        software["compiler"] = "of a newer version"
        document["seal"], document["recipe"]["lineage"] = {"kind": "none"}, ["drawn"]
        document["measurement"]["governor"] = None
        for row in document.get("metrics", document.get("processes", ())):
            row["origin"] = "of a newer version"
        document["provenance"]["environment"] = environment_hash(document["system"]["before"], software)
        for entry in document["resumed"] if name == "result.json" else ():
            entry["environment"], entry["reason"] = document["provenance"]["environment"], "of a newer version"
        path.write_text(json.dumps(document))
        for environment in path.parent.glob("environment*.json"):
            stated = json.loads(environment.read_text())
            environment.write_text(json.dumps({**stated, "software": software}))
    hashed_anew(result)


# The command ----------------------------------------------------------------------------------------------------------


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Make and audit a range of cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--out", type=Path, help="where the folders of accused cases stay; default: a new folder")
    parser.add_argument("--kind", help="only cases of this kind")
    parser.add_argument("--keep", action="store_true", help="keep the other folders too")
    asked = parser.parse_args()
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PJRT_NPROC"):
        os.environ.setdefault(name, "1")  # before a framework starts
    out = asked.out or Path(tempfile.mkdtemp(prefix="honest-"))
    accused = broken = count = 0
    for case in map(drawn, range(asked.first, asked.last + 1)):
        if asked.kind not in (None, case.kind):
            continue
        begin, folder, count = time.monotonic(), out / str(case.number), count + 1
        shutil.rmtree(folder, ignore_errors=True)
        _say(f"{case.number} {case.kind}: {case.what}")
        try:
            found = made(case, folder)
        except (Deep5Error, Exception) as error:
            broken += 1
            _say(f"   NOT MADE: {type(error).__name__}: {error}")
            continue
        _say(f"   {found.status}, {found.checks} checks, {time.monotonic() - begin:.0f} s")
        for finding in found.findings:
            _say(f"   ACCUSED: {finding}")
        accused += bool(found.findings)
        if not found.findings and not asked.keep:
            shutil.rmtree(folder)
    _say(f"{accused} of {count} accused, {broken} not made" + (f"; {out}" if accused + broken else ""))
    return bool(accused or broken)


if __name__ == "__main__":
    sys.exit(main())
