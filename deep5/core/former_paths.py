"""Former paths of modules and names of components: they still resolve, and recipe hashes use them.

`fixed_hash` writes a class as `module:name`. A module that moves keeps the name under which results were first hashed,
so results from before and after the move stay comparable. The same holds for a registered component with a new name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder

    class _Finder(MetaPathFinder, Loader): ...

else:
    # Importing the base classes would take as long as the rest of `import deep5`.
    _Finder = object

__all__ = ["HASH_MODULES", "IMPORTABLE", "PRESENT_NAMES", "hash_module", "hash_name", "keep_importable", "present_name"]

IMPORTABLE = {
    "deep5.communicator": "deep5.core.communicator",
    "deep5.distributed.check": "deep5.distributed.communicators.check",
    "deep5.distributed.mpi": "deep5.distributed.communicators.mpi",
    "deep5.distributed.process_group": "deep5.distributed.communicators.process_group",
    "deep5.distributed.threads": "deep5.distributed.communicators.threads",
    "deep5.errors": "deep5.core.errors",
    "deep5.metric": "deep5.core.metric",
    "deep5.networks.mixed_precision": "deep5.networks.transforms.mixed_precision",
    "deep5.plugins": "deep5.core.plugins",
    "deep5.samples": "deep5.measuring.samples",
    "deep5.statistics": "deep5.measuring.statistics",
}
"""Former paths to present paths: both names give the same module object."""

HASH_MODULES = {
    "deep5.cli.audit": "deep5.audit.command",
    "deep5.cli.bench_collective": "deep5.bench.collective.command",
    "deep5.cli.bench_operator": "deep5.bench.command",
    "deep5.cli.check_operator": "deep5.check_operator",
    "deep5.cli.check_optimizer": "deep5.optimizer_check_command",
    "deep5.cli.clean": "deep5.cleaning",
    "deep5.cli.compare": "deep5.compare.command",
    "deep5.cli.errors": "deep5.cli_errors",
    "deep5.cli.export": "deep5.results.export_command",
    "deep5.cli.list": "deep5.listing",
    "deep5.cli.main": "deep5.cli",
    "deep5.cli.profile": "deep5.profile_command",
    "deep5.cli.report": "deep5.results.report_command",
    "deep5.cli.results": "deep5.results.store_command",
    "deep5.cli.show": "deep5.show_command",
    "deep5.cli.study": "deep5.study_command",
    "deep5.compare.availability": "deep5.compare.able",
    "deep5.compare.studied": "deep5.study_candidates",
    "deep5.core.arguments": "deep5.arguments",
    "deep5.core.canonical": "deep5.canonical",
    "deep5.core.charts": "deep5.results.chart_parts",
    "deep5.core.communicator": "deep5.communicator",
    "deep5.core.compiler": "deep5.compiler",
    "deep5.core.errors": "deep5.errors",
    "deep5.core.events": "deep5.events",
    "deep5.core.executors": "deep5.executors",
    "deep5.core.files": "deep5.files",
    "deep5.core.framework": "deep5.backend",
    "deep5.core.memo": "deep5.memo",
    "deep5.core.metric": "deep5.metric",
    "deep5.core.parent_watch": "deep5.lifeline",
    "deep5.core.plugins": "deep5.plugins",
    "deep5.core.processor": "deep5.processor",
    "deep5.core.python_source": "deep5.python_source",
    "deep5.core.seeds": "deep5.seeds",
    "deep5.core.tensors": "deep5.tensors",
    "deep5.core.terminal": "deep5.terminal",
    "deep5.core.operator": "deep5.operators.operator",
    "deep5.distributed.communicators.base_communicator": "deep5.distributed.counted",
    "deep5.distributed.communicators.check": "deep5.distributed.check",
    "deep5.distributed.communicators.mpi": "deep5.distributed.mpi",
    "deep5.distributed.communicators.mpi_agreement": "deep5.distributed.mpi_agreement",
    "deep5.distributed.communicators.mpi_requests": "deep5.distributed.mpi_requests",
    "deep5.distributed.communicators.mpi_waiting": "deep5.distributed.mpi_waiting",
    "deep5.distributed.communicators.process_collectives": "deep5.distributed.process_collectives",
    "deep5.distributed.communicators.process_group": "deep5.distributed.process_group",
    "deep5.distributed.communicators.threads": "deep5.distributed.threads",
    "deep5.distributed.launch.device": "deep5.distributed.rank_device",
    "deep5.distributed.launch.job": "deep5.rank_job",
    "deep5.distributed.launch.join": "deep5.distributed.joining",
    "deep5.distributed.launch.output": "deep5.rank_output",
    "deep5.distributed.launch.start": "deep5.launching",
    "deep5.distributed.launch.supervisor": "deep5.distributed.holding",
    "deep5.distributed.schemes.asynchronous_base": "deep5.distributed.asynchronous_scheme",
    "deep5.distributed.schemes.averaging": "deep5.distributed.averaging",
    "deep5.distributed.schemes.base": "deep5.distributed.scheme",
    "deep5.distributed.schemes.batch_statistics": "deep5.distributed.synchronised",
    "deep5.distributed.schemes.check": "deep5.distributed.own_classes",
    "deep5.distributed.schemes.graphs": "deep5.distributed.graphs",
    "deep5.distributed.schemes.server": "deep5.distributed.server",
    "deep5.distributed.schemes.server_memory": "deep5.distributed.server_memory",
    "deep5.distributed.schemes.server_scheme": "deep5.distributed.served",
    "deep5.distributed.schemes.shared_executor": "deep5.distributed.shared_executor",
    "deep5.frameworks.jax.operators_index": "deep5.frameworks.jax.operators_indices",
    "deep5.frameworks.tensorflow.operators_quantized": "deep5.frameworks.tensorflow.operators_quantised",
    "deep5.frameworks.tensorflow.straight_line": "deep5.frameworks.tensorflow.straight",
    "deep5.measuring.calibration": "deep5.calibration",
    "deep5.measuring.environment": "deep5.environment",
    "deep5.measuring.loops": "deep5.operators.timing",
    "deep5.measuring.machine_load": "deep5.machine_load",
    "deep5.measuring.pinning": "deep5.pinning",
    "deep5.measuring.profiles": "deep5.profiles",
    "deep5.measuring.samples": "deep5.samples",
    "deep5.measuring.statistics": "deep5.statistics",
    "deep5.measuring.timing": "deep5.timing",
    "deep5.networks.analysis.analysis": "deep5.networks.analysis",
    "deep5.networks.analysis.arithmetic": "deep5.networks.arithmetic",
    "deep5.networks.analysis.layer_clock": "deep5.networks.layer_clock",
    "deep5.networks.analysis.layer_summary": "deep5.networks.layer_summary",
    "deep5.networks.analysis.layer_timing": "deep5.networks.layer_timing",
    "deep5.networks.analysis.layout": "deep5.networks.layout",
    "deep5.networks.analysis.picture": "deep5.networks.picture",
    "deep5.networks.arguments": "deep5.networks.given",
    "deep5.networks.diagnostics.failures": "deep5.networks.failed",
    "deep5.networks.diagnostics.refusals": "deep5.networks.faults",
    "deep5.networks.edit.builder": "deep5.networks.builder",
    "deep5.networks.edit.edited": "deep5.networks.edited",
    "deep5.networks.edit.editing": "deep5.networks.editing",
    "deep5.networks.edit.freezing": "deep5.networks.freezing",
    "deep5.networks.edit.subnetwork": "deep5.networks.subnetwork",
    "deep5.networks.microbatching.apply": "deep5.networks.microbatch_planned",
    "deep5.networks.microbatching.costs": "deep5.networks.microbatch_costs",
    "deep5.networks.microbatching.memory": "deep5.networks.microbatch_memory",
    "deep5.networks.microbatching.plan": "deep5.networks.microbatch_plan",
    "deep5.networks.microbatching.planner": "deep5.networks.microbatch_planner",
    "deep5.networks.microbatching.transform": "deep5.networks.microbatching",
    "deep5.networks.onnx.attributes": "deep5.networks.attributes",
    "deep5.networks.onnx.axes": "deep5.networks.axes",
    "deep5.networks.onnx.bounds": "deep5.networks.bounds",
    "deep5.networks.onnx.element_types": "deep5.networks.element_types",
    "deep5.networks.onnx.exported": "deep5.networks.exported",
    "deep5.networks.onnx.fitting": "deep5.networks.fitting",
    "deep5.networks.onnx.folding": "deep5.networks.folding",
    "deep5.networks.onnx.importing": "deep5.networks.importing",
    "deep5.networks.onnx.initial_values": "deep5.networks.initial_values",
    "deep5.networks.onnx.reading": "deep5.networks.reading",
    "deep5.networks.onnx.settings": "deep5.networks.settings",
    "deep5.networks.onnx.shapes": "deep5.networks.shapes",
    "deep5.networks.onnx.signature": "deep5.networks.signature",
    "deep5.networks.onnx.weights": "deep5.networks.weights",
    "deep5.networks.onnx.writing": "deep5.networks.writing",
    "deep5.networks.run_modes": "deep5.networks.forms",
    "deep5.networks.transforms.control_flow": "deep5.networks.control_flow",
    "deep5.networks.transforms.convolution_algorithms": "deep5.networks.convolution_algorithms",
    "deep5.networks.transforms.equivalence": "deep5.networks.equivalence",
    "deep5.networks.transforms.lowering": "deep5.networks.lowering",
    "deep5.networks.transforms.mixed_precision": "deep5.networks.mixed_precision",
    "deep5.networks.transforms.precision": "deep5.networks.precision",
    "deep5.networks.transforms.unrolling": "deep5.networks.unrolling",
    "deep5.operators.problem": "deep5.operators.problems",
    "deep5.recipe.file": "deep5.recipe_file",
    "deep5.recipe.keys": "deep5.recipe_keys",
    "deep5.recipe.lines": "deep5.recipe_lines",
    "deep5.recipe.metrics": "deep5.recipe_metrics",
    "deep5.recipe.operator_names": "deep5.operator_names",
    "deep5.recipe.part": "deep5.components",
    "deep5.recipe.recipe": "deep5.recipe",
    "deep5.recipe.settings": "deep5.recipe_settings",
    "deep5.results.charts.network": "deep5.results.network_charts",
    "deep5.results.charts.operator_study": "deep5.results.study_charts",
    "deep5.results.charts.operators": "deep5.results.charts",
    "deep5.results.charts.profile": "deep5.results.profile_chart",
    "deep5.results.charts.training": "deep5.results.training_charts",
    "deep5.results.standing": "deep5.results.report.standing",
    "deep5.results.study.folder": "deep5.results.study_folder",
    "deep5.results.study.pictures": "deep5.results.study_pictures",
    "deep5.results.study.record": "deep5.results.study_record",
    "deep5.results.study.resumption": "deep5.results.study_resumption",
    "deep5.results.study.scaling": "deep5.results.study_scaling",
    "deep5.results.study.scaling_chart": "deep5.results.study_scaling_chart",
    "deep5.results.study.tradeoffs": "deep5.results.study_tradeoffs",
    "deep5.run.assemble": "deep5.assemble",
    "deep5.run.assemble_executor": "deep5.assemble_executor",
    "deep5.run.check_optimizer": "deep5.optimizer_check",
    "deep5.run.check_training": "deep5.check",
    "deep5.run.code": "deep5.run_timing",
    "deep5.run.collectives": "deep5.run_collectives",
    "deep5.run.rank_files": "deep5.run_ranks",
    "deep5.run.rank_record": "deep5.rank_record",
    "deep5.run.ranks": "deep5.ranks",
    "deep5.run.record": "deep5.record",
    "deep5.run.program": "deep5.run",
    "deep5.run.sample_saver": "deep5.sample_saver",
    "deep5.run.train": "deep5.run_training",
    "deep5.study.processors": "deep5.study_ranks",
    "deep5.study.study": "deep5.study",
    "deep5.trained.evaluate": "deep5.evaluate",
    "deep5.trained.images": "deep5.preparation",
    "deep5.trained.load": "deep5.trained",
    "deep5.trained.predict": "deep5.predict",
    "deep5.training.buffer_pool": "deep5.training.lending",
}
"""Module to its name in hashes; a module without an entry keeps its own name."""


def hash_module(module: str) -> str:
    """The module name that `canonical` writes for a class or function of `module`.

    >>> hash_module("deep5.core.metric"), hash_module("deep5.training.trainer")
    ('deep5.metric', 'deep5.training.trainer')
    """
    return HASH_MODULES.get(module, module)


PRESENT_NAMES = {("datasets", "made_up"): "synthetic_files"}
"""Kind and former name of a registered component to its present name."""

_HASH_NAMES = {(kind, present): former for (kind, former), present in PRESENT_NAMES.items()}


def present_name(kind: str, name: str) -> str:
    """The name under which a component is registered.

    >>> present_name("datasets", "made_up"), present_name("datasets", "mnist")
    ('synthetic_files', 'mnist')
    """
    return PRESENT_NAMES.get((kind, name), name)


def hash_name(kind: str, name: str) -> str:
    """The name that `canonical` writes for a registered component.

    >>> hash_name("datasets", "synthetic_files"), hash_name("datasets", "mnist")
    ('made_up', 'mnist')
    """
    return _HASH_NAMES.get((kind, name), name)


class _FormerPaths(_Finder):
    """A finder and loader of `IMPORTABLE`: importing a former path returns the module at its present path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in IMPORTABLE else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system uses the entry of sys.modules after this call.
        sys.modules[module.__name__] = import_module(IMPORTABLE[module.__name__])


def keep_importable() -> None:
    """Make the paths of `IMPORTABLE` importable; called once by `deep5/__init__.py`."""
    if not any(isinstance(finder, _FormerPaths) for finder in sys.meta_path):
        sys.meta_path.append(_FormerPaths())
