"""Fields of honest results whose change by itself `deep5 audit` cannot find, each with the reason.

`tests/audit/test_audit_fields.py` changes every field: a new one that nothing checks fails there.
"""

from __future__ import annotations

from collections.abc import Mapping

from honest_results import LEVEL0, QUICK, RECORDED, RUN

__all__ = ["UNCHECKED"]

_RANGE = "a reading: only its range is checked"
_WORDS = "free text: only its beginning is checked"
_OWN = "a process reports it about itself, and no other field depends on it"
_SOURCE = "the state of deep5's source, which no result contains"
_MEMORY = "a virtual machine may get more memory while it runs"
_LIMIT = "what the user allowed: only that nothing exceeded it is checked"

UNCHECKED: Mapping[tuple[str, str], Mapping[str, str]] = {
    (RUN, "result.json"): {
        "measurement.evaluation_first_call_s": _RANGE,
        "measurement.evaluation_warm_up_s": _RANGE,
        "measurement.scope": _WORDS,
        "metrics.#.scope": _WORDS,
        "resources.cpu_time_s": _RANGE,
        "resources.set_up_s": _RANGE,
        "resources.wall_time_s": "dates are in seconds, so that a short run may have taken some seconds more",
        "system.after.cpu.clock_mhz": _RANGE,
        "system.after.load_average.#": _RANGE,
        "system.after.memory_bytes.total": _MEMORY,
    },
    (RECORDED, "result.json"): {
        "framework.version": "the build that follows the numbers of a version",
        "measurement.scope": _WORDS,
        "metrics.#.scope": _WORDS,
        "recorded.loop": "free text",
        "resources.cpu_time_s": _RANGE,
        "resources.set_up_s": _RANGE,
        "resources.wall_time_s": "dates are in seconds, so that a short run may have taken some seconds more",
        "system.after.cpu.clock_mhz": _RANGE,
        "system.after.load_average.#": _RANGE,
        "system.after.memory_bytes.total": _MEMORY,
        "threads.framework": "the loop sets its own threads",
        "warnings.#": "words of a warning: its numbers are checked",
    },
    (QUICK, "comparison.json"): {
        "candidates.#.left_out.#": "free text, except for the parts that the proof must have",
        "candidates.#.observed.blas": _OWN,
        "candidates.#.observed.waiting.*": _OWN,
        "candidates.#.peaks.copy_byte_s": _RANGE,
        "candidates.#.peaks.product_flop_s": _RANGE,
        "measurement.memory_limit_bytes": _LIMIT,
        "measurement.order": _WORDS,
        "measurement.scope": _WORDS,
        "measurement.time_limit_s": _LIMIT,
        "processes.#.machine.after.clock_mhz": _RANGE,
        "processes.#.machine.after.load_average.#": _RANGE,
        "processes.#.machine.before.clock_mhz": _RANGE,
        "processes.#.machine.before.load_average.#": _RANGE,
        "processes.#.memory_bytes": "of the proof's processes, only the sign is checked",
        "processes.#.set_up_s": _RANGE,
        "recipe.metrics.#.output": "a comparison measures no metric",
        "recipe.metrics.#.target": "a comparison measures no metric",
        "software.commit.dirty": _SOURCE,
        "software.commit.id": _SOURCE,
        "software.environment_variables.*": "the place of the cache, which the environment's hash leaves out",
        "system.after.cpu.clock_mhz": _RANGE,
        "system.after.load_average.#": _RANGE,
        "system.after.memory_bytes.total": _MEMORY,
        "system.before.cpu.clock_mhz": _RANGE,
        "system.before.load_average.#": _RANGE,
        "warnings.#": "words of a warning: its numbers are checked",
    },
    (LEVEL0, "operators.json"): {
        "processes.#.settings.*.blas": _OWN,
        "rows.#.calls": _RANGE,
        "rows.#.first_call_s": _RANGE,
        "rows.#.memory_bytes": _RANGE,
        "rows.#.processors": _RANGE,
        "rows.#.spent_s": _RANGE,
        "rows.#.use": "free text",
        "rows.#.warnings.#": "words of a warning: its numbers are checked",
    },
    (LEVEL0, "result.json"): {
        "measurement.order": _WORDS,
        "measurement.scope": _WORDS,
        "metrics.#.scope": _WORDS,
        "recipe.mutable.pictures": "it changes nothing that is measured",
        "resources.cpu_time_s": _RANGE,
        "resources.set_up_s": _RANGE,
        "resources.wall_time_s": "dates are in seconds, so that a short run may have taken some seconds more",
        "system.after.cpu.clock_mhz": _RANGE,
        "system.after.load_average.#": _RANGE,
        "system.after.memory_bytes.total": _MEMORY,
        "warnings.#": "words of a warning: its numbers are checked",
    },
}
"""By kind of result and document: the fields, as `fields.not_found` names them."""
