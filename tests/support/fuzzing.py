"""Fuzzing: mutated models, loaded and executed: `python tests/support/fuzzing.py FRAMEWORK [--count 1000]`.

A case is a function of its number: a starting model, mutations of its bytes or of their meaning, inputs. It runs in a
child process, which a parent watches: an error other than `Deep5Error` is a finding, and so is a crash, a timeout,
memory beyond the bound, and a file opened outside of the model's folder.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import queue
import random
import resource
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

__all__ = ["Report", "Run", "fuzz"]

SECONDS = {"jax": 60}
"""The time limit of a case, 20 by default: XLA compiles seven of the costliest nodes in a second, and a case may have
128 of them."""
MEMORY_BYTES = 3 << 30
"""The limit on the memory that a case may add to its process."""
_ADDRESSES = 4 << 30  # as much address space as it may reserve: beyond that, allocation fails
_START_SECONDS = 120
_SAMPLE_ELEMENTS = 1 << 18


class Run(NamedTuple):
    """How a case ended.

    Attributes:
        number: The case's number.
        stage: The stage it reached: `read`, `build`, `run`, `train`, or `done`.
        outcome: `ran`, `refused` (by a `Deep5Error`), `long` (in a loop of the case's own length), `undrawn`, or a
            finding: `leaked`, `crashed`, `hung`, `memory`, `opened`.
        told: The error.
        what: Starting model and mutations.
    """

    number: int
    stage: str
    outcome: str
    told: str
    what: str

    @property
    def found(self) -> bool:
        return self.outcome not in ("ran", "refused", "long", "undrawn")


class Report(NamedTuple):
    """The outcomes of some cases on a framework."""

    runs: list[Run]

    @property
    def findings(self) -> list[Run]:
        return [run for run in self.runs if run.found]

    def reached(self, *, structured: bool = True) -> float:
        """The share of the cases whose model reached an executor."""
        chosen = [run for run in self.runs if structured != (" bytes" in run.what)]
        return sum(run.stage != "read" for run in chosen) / max(len(chosen), 1)

    def __str__(self) -> str:
        counts = Counter((run.stage, run.outcome) for run in self.runs)
        told = ", ".join(f"{stage} {outcome} {count}" for (stage, outcome), count in sorted(counts.items()))
        return f"{len(self.runs)} cases: {told}; {self.reached():.0%} of the structured ones reached an executor"


def fuzz(framework: str, models: Path, numbers: range, tell: Callable[[Run], None] = lambda run: None) -> Report:
    """Run cases in a child process, and start another after each case that ends it.

    Args:
        framework: Its name.
        models: The folder of starting models.
        numbers: Numbers of the cases.
        tell: Called with each case after its end.
    """
    runs: list[Run] = []

    def ended(run: Run) -> None:
        runs.append(run)
        tell(run)

    left = list(numbers)
    while left:
        with (
            tempfile.TemporaryDirectory(prefix="deep5-fuzz-") as folder,
            _child(framework, models, folder, left) as lines,
        ):
            what, stage, waited = "", "start", _START_SECONDS
            for _ in iter(int, 1):
                try:
                    line = lines.get(timeout=waited)
                except queue.Empty:
                    # A loop's number of iterations may be fed or computed and take any time. So may reading all of a
                    # repeated array, of which some frameworks store only one repetition.
                    slow = stage == "run" and any(part in what for part in (" loop", "_loop", "scan", " huge"))
                    ended(Run(left.pop(0), stage, "long" if slow else "hung", f"more than {waited} s", what))
                    break
                if line is None:
                    if left:
                        said = (Path(folder) / "errors").read_text(errors="replace").strip().splitlines()[-3:]
                        # ONNX's own checks, which select the cases, are not under test.
                        outcome = "undrawn" if stage == "draw" else "crashed"
                        ended(Run(left.pop(0), stage, outcome, " ".join(said)[-300:], what))
                    break
                told = json.loads(line)
                waited = SECONDS.get(framework, 20)
                if "ready" in told:
                    stage = "draw"
                elif "begin" in told:
                    what, stage = told["what"], "read"
                elif "reached" in told:
                    stage = told["reached"]
                else:
                    stage = "draw"
                    ended(Run(**told))
                    left.remove(told["number"])
    return Report(runs)


@contextlib.contextmanager
def _child(framework: str, models: Path, folder: str, numbers: list[int]) -> Iterator[queue.Queue[str | None]]:
    """A process that runs cases, and its output line by line; None when it has ended."""
    command = [sys.executable, __file__, framework, "--models", str(models), "--child", folder]
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
        # TensorFlow reserves twice as many addresses each time, up to all that exist, and ends the process when none
        # are left for its records.
        "TF_MKL_ALLOC_MAX_BYTES": str(_ADDRESSES // 2),
    }
    with (Path(folder) / "errors").open("w") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{json.dumps(numbers)}\n")
    child.stdin.close()
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in child.stdout or ():
            if line.startswith("{"):
                lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        child.kill()
        child.wait()
        reader.join()
        child.stdout.close()


class _Watch:
    """Files opened outside of the model's folder: Python reports its own, the system those of libraries."""

    def __init__(self, root: Path) -> None:
        self.opened: list[str] = []
        self.active = False
        self._root = root
        sys.addaudithook(self._hook)
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK)
        # IN_OPEN of the files in the folder next to the model's.
        assert libc.inotify_add_watch(self._descriptor, str(root / "outside").encode(), 0x20) >= 0

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self.active or not isinstance(arguments[0], (str, bytes)):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]).replace("\0", ""))
        own = (str(self._root / "model"), str(Path(__file__).parents[2]), os.environ.get("DEEP5_CACHE", "/nowhere"))
        system = ("/proc/meminfo", "/proc/self/status", "/proc/cpu", "/usr/", "/sys/")
        allowed = (*own, *system, sys.prefix, sys.base_prefix)
        if not path.startswith(allowed):
            self.opened.append(path)

    def taken(self) -> list[str]:
        found, self.opened = self.opened, []
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._descriptor, 1 << 16)
            while data:
                length = struct.unpack_from("iIII", data)[3]
                name = data[16 : 16 + length].rstrip(b"\0").decode()
                if name:
                    found.append(f"outside/{name}")
                data = data[16 + length :]
        return found


class _Stages(list[str]):
    """The stages that a case reaches, each reported at once."""

    def append(self, stage: str) -> None:
        super().append(stage)
        _tell({"reached": stage})


class _Child:
    """Runs cases in this process, and reports each on standard output."""

    def __init__(self, framework: str, models: Path, folder: Path) -> None:
        import deep5 as d5

        warnings.simplefilter("ignore")
        self.names = sorted(path.stem for path in models.glob("*.onnx"))
        self.models, self.folder = models, folder.resolve()
        self._prepare_folder()
        self.framework = d5.framework(framework)
        # First-time costs do not belong to the case: imports, kernels, threads.
        self._whole(onnx.load(models / "zoo_lenet.onnx").SerializeToString(), random.Random(0), {}, [])  # noqa: S311
        self.watch = _Watch(self.folder)

    def _prepare_folder(self) -> None:
        outside, model = self.folder / "outside", self.folder / "model"
        for each in (outside, model, model / "sub"):
            each.mkdir()
        for path in (outside / "secret.bin", outside / "hard.bin", model / "weights.bin"):
            path.write_bytes(bytes(4096))
        (model / "link.bin").symlink_to(outside / "secret.bin")
        (model / "linked").symlink_to(outside)
        (model / "hard.bin").hardlink_to(outside / "hard.bin")
        os.mkfifo(model / "fifo")

    def case(self, number: int) -> tuple[str, bytes, dict[str, Any], random.Random]:
        """The definition of a case: in words, its file, a sample to feed, and the generator for the rest."""
        rng = random.Random(number)  # noqa: S311 - nothing secret
        name = rng.choice(self.names)
        data = (self.models / f"{name}.onnx").read_bytes()
        if rng.random() < 0.15:
            from fuzzing_mutations import mutated_bytes

            return f"{name} bytes", mutated_bytes(rng, data), {}, rng
        from fuzzing_mutations import mutated_model

        model = onnx.ModelProto.FromString(data)
        fed = [info.name for info in model.graph.input]
        done = mutated_model(rng, model)
        with np.load(self.models / f"{name}.npz") as held:
            sample = {fed[int(key)]: held[key] for key in held if int(key) < len(fed)}
        text = model.SerializeToString().replace(b"{outside}", str(self.folder / "outside").encode()[:9])
        return f"{name} {' '.join(done)}", text, sample, rng

    def run(self, number: int) -> None:
        what, data, sample, rng = self.case(number)
        _tell({"begin": number, "what": what})
        stages = _Stages()
        told, outcome = "", "ran"
        before = _memory()
        self.watch.active = True
        try:
            self._whole(data, rng, sample, stages)
        except Exception as error:
            from deep5.core.errors import Deep5Error

            self.watch.active = False  # a traceback reads sources
            outcome = "refused" if isinstance(error, Deep5Error) else "leaked"
            told = f"{type(error).__name__}: {error}"[:300]
            if outcome == "leaked":
                frames = [
                    frame for frame in traceback.extract_tb(error.__traceback__) if "/tests/" not in frame.filename
                ]
                places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames][-7:]
                told += f" @ {' > '.join(places)}"
        self.watch.active = False
        if opened := self.watch.taken():
            outcome, told = "opened", f"{opened[:3]}; {told}"
        if outcome in ("ran", "refused") and (more := _memory() - before) > MEMORY_BYTES:
            outcome, told = "memory", f"{more >> 20} MiB; {told}"
        _tell(
            {
                "number": number,
                "stage": stages[-1] if stages else "read",
                "outcome": outcome,
                "told": told,
                "what": what,
            }
        )

    def _whole(self, data: bytes, rng: random.Random, sample: dict[str, Any], stages: list[str]) -> None:
        import deep5 as d5

        path = self.folder / "model" / "model.onnx"
        path.write_bytes(data)
        network = d5.Network.from_onnx(path)
        stages.append("build")
        executor = self.framework.executor(network)
        stages.append("run")
        feed = _feed(network.inputs, rng, sample)
        if feed is not None:
            results = executor.inference(feed)
            executor.synchronize()  # some frameworks compute after the call returns, and report errors here
            for value in results.values():
                _look(value)
            loss = next(
                (name for name, spec in network.outputs.items() if not spec.shape and "float" in spec.dtype), None
            )
            if loss is not None and network.trained_specs and not network.outputs[loss].collection:
                stages.append("train")
                executor.inference_and_backprop(feed, loss)
                executor.synchronize()
                for value in executor.gradients().values():
                    _look(value)
        stages.append("done")


def _look(value: Any) -> None:
    from deep5.core.tensors import to_numpy

    for each in value if isinstance(value, (list, tuple)) else [value]:
        if each is not None:
            to_numpy(each)


def _feed(specs: Any, rng: random.Random, sample: dict[str, Any]) -> dict[str, Any] | None:
    """The inputs: the sample where it fits, otherwise random numbers; None if an input is too large."""
    extents: dict[Any, int] = {}
    drawn = np.random.default_rng(rng.randrange(1 << 30))
    feed: dict[str, Any] = {}
    for name, spec in specs.items():
        given = sample.get(name)
        if given is not None and not spec.collection and not spec.mismatch(given.shape, str(given.dtype)):
            feed[name] = given
            for extent, length in zip(spec.shape, given.shape, strict=True):
                extents.setdefault(extent, length)
            continue
        shape = [
            each if isinstance(each, int) else extents.setdefault(each, rng.choice((1, 2, 3))) for each in spec.shape
        ]
        if np.prod(shape, dtype=float) > _SAMPLE_ELEMENTS or len(shape) > 60:
            return None
        array = _drawn(drawn, rng, shape, spec.dtype)
        feed[name] = [array] if "sequence" in spec.collection else array
    return feed


def _drawn(drawn: Any, rng: random.Random, shape: list[int], dtype: str) -> Any:
    if dtype == "string":
        return np.full(shape, "text", dtype=object)
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if kind == np.bool_:
        return drawn.integers(0, 2, shape).astype(np.bool_)
    if kind.kind in "iu":
        most = np.iinfo(kind) if kind.itemsize > 1 or kind.name in ("int8", "uint8") else None
        if most is not None and rng.random() < 0.25:
            # Values between may be minutes of legitimate work.
            return np.full(shape, rng.choice((most.min, most.max))).astype(kind)
        return drawn.integers(0, 3, shape).astype(kind)
    return drawn.standard_normal(shape).astype(kind)


def _memory() -> int:
    """The most memory that this process has held since the last call, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            Path("/proc/self/clear_refs").write_text("5")
            return int(line.split()[1]) << 10
    raise RuntimeError("the system does not tell how much memory a process holds")


def _tell(told: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(told)}\n")
    sys.stdout.flush()


def _run_child(framework: str, models: Path, folder: Path) -> None:
    numbers = json.loads(sys.stdin.read())
    # Output of libraries would mix with our lines.
    child = _Child(framework, models, folder)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + _ADDRESSES, held + _ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _tell({"ready": True})
    for number in numbers:
        child.run(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--models", type=Path, help="a folder of starting models; left out: they are made")
    parser.add_argument("--all", action="store_true", help="tell each case, not only what was found")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        _run_child(chosen.framework, chosen.models, chosen.child)
        return
    with tempfile.TemporaryDirectory(prefix="deep5-fuzz-models-") as folder:
        if chosen.models is None:
            from fuzzing_models import write_models

            warnings.simplefilter("ignore")
            write_models(Path(folder))
        begin = time.perf_counter()
        numbers = range(chosen.first, chosen.first + chosen.count)

        def tell(run: Run) -> None:
            if run.found or chosen.all:
                sys.stdout.write(f"{run.outcome} {run.number} [{run.stage}] {run.what}: {run.told}\n")
                sys.stdout.flush()

        report = fuzz(chosen.framework, chosen.models or Path(folder), numbers, tell)
    sys.stdout.write(f"{chosen.framework}: {report}; {time.perf_counter() - begin:.0f} s\n")


if __name__ == "__main__":
    main()
