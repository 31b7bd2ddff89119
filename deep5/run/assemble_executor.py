"""The executor of a recipe's network: the framework or the recipe's own function, with its threads and numerics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deep5.core.errors import Deep5Error, MissingDependency, RecipeError, UsageError
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.plugins import framework, missing_dependency, registered
from deep5.core.progress import Ongoing
from deep5.core.tensors import device
from deep5.distributed.launch.device import rank_device
from deep5.measuring.environment import default_threads
from deep5.recipe.part import Part, Parts, where_of
from deep5.run.weights import as_key

__all__ = [
    "ExecutorMaker",
    "device_of",
    "executor_factory",
    "framework_of",
    "named_executor",
    "named_framework",
    "written_numerics",
]


class ExecutorMaker:
    """Makes the executor of a recipe, with the recipe's threads and numerics.

    Args:
        parts: The recipe's parts, by key.
        ranks: Processes on this machine that train together.

    Attributes:
        name: Name of the framework.
        framework: The framework; None: the recipe's own function makes the executor.
        place: The device.
        threads: The requested number of threads; None if the framework keeps its own setting.
        warnings: What differs from the recipe's settings so far.
    """

    def __init__(self, parts: Parts, *, ranks: int = 1) -> None:
        self._parts, self._ranks = parts, ranks
        self.name, self._known, self._build = executor_factory(parts)
        self.framework = framework_of(parts)
        self.place = device_of(parts)
        self.threads: int | None = None
        self.warnings: list[str] = []
        # Before the executor is created: some frameworks fix their threads at the first computation, and creating it
        # starts JAX.
        if self._known is not None:
            self.warnings += _set_numerics(parts, self._known)
            self._set_threads(self._known)

    def make(self, network: Any, seed: int) -> GraphExecutor:
        """Create the executor of a network.

        Raises:
            RecipeError: The recipe's component raised an error, or does not return an executor.
        """
        part = self._parts["framework" if self._parts["executor"].value is None else "executor"]
        try:
            # The import of a framework's library, and for some engines the compilation.
            with Ongoing(f"building the network on {self.name}"):
                executor = self._build(network, seed)
        except RecipeError as error:
            message = str(error).removeprefix(part.where)
            if (of_precision := as_key(message)) == message:
                raise
            # With the same cause: a comparison leaves a back-end out for what it does not support, and does not end.
            raise RecipeError(f"{where_of(part, self._parts['precision'])}{of_precision}") from error.__cause__
        if not isinstance(executor, GraphExecutor):
            raise part.not_a(executor, "a callable that returns a d5.GraphExecutor")
        return executor

    def settle(self, executor: GraphExecutor) -> Mapping[str, Any]:
        """Apply what the recipe sets if only the executor reports its framework, and compare the settings.

        Returns:
            The settings that the executor reports.

        Raises:
            RecipeError: The recipe sets threads or numerics, and the executor's framework does not support that.
        """
        parts = self._parts
        if self._known is None:
            if parts["threads"].value is not None:
                self._set_threads(_framework_of(parts, executor, "threads"))
            for key in written_numerics(parts):
                self.warnings += _set_numerics(parts, _framework_of(parts, executor, key))
        found = executor.settings()
        count = found.get("threads")
        if self.threads is not None and count is not None and count != self.threads and not self.warnings:
            self.warnings.append(
                f"the run requested {self.threads} threads and {self.name} has {count}; remedy: set threads={count}"
            )
        self.warnings += _numerics_warnings(parts, self.name, found)
        return found

    def _set_threads(self, known: Framework) -> None:
        """Set the threads to the recipe's number, or to the common default if the recipe does not set it."""
        requested = self._parts["threads"].value
        threads = default_threads(known.thread_variable, ranks=self._ranks) if requested is None else requested
        if threads is None:
            return
        try:
            known.set_threads(threads)
        except Deep5Error as error:
            if requested is not None:
                raise RecipeError(f"{self._parts['threads'].where}'threads': {error}") from error
            # An earlier run in this process, or the user's code, set the threads first, and the recipe requests no
            # number.
            self.warnings.append(f"the number of threads is not the default: {error}")
        self.threads = threads


def executor_factory(parts: Parts) -> tuple[str, Framework | None, Callable[[Any, int], Any]]:
    """Name, framework (None for the recipe's own function), and the function that makes an executor of a network and a
    seed."""
    place = rank_device(parts["device"].value)
    if parts["framework"].value is not None:
        found = named_framework(parts)
        return (
            found.name,
            found,
            lambda network, seed: parts["framework"].make(found.executor, network, device=place, seed=seed),
        )
    known, made = named_executor(parts["executor"])
    module = str(getattr(made, "__module__", "")).split(".")
    if known is not None:
        name = known.name
    elif module[:2] == ["deep5", "frameworks"] and len(module) > 2:
        name = module[2]
        known = _registered(parts["executor"].where, name)
    else:
        name = str(getattr(made, "__qualname__", type(made).__name__))
    return name, known, lambda network, seed: parts["executor"].make(made, network, device=place, seed=seed)


def framework_of(parts: Parts) -> Framework | None:
    """The framework that makes the executor, named as such or by the name of the tutorial's recipes; None: the recipe's
    own function makes it."""
    if parts["framework"].value is not None:
        return named_framework(parts)
    _, known, _ = executor_factory(parts)
    given = parts["executor"].component()
    named = known is not None and (named_executor(parts["executor"])[0] is not None or given.__name__ == "from_model")
    return known if named else None


def named_executor(part: Part) -> tuple[Framework | None, Any]:
    """What `executor` names: the framework, if it is one or its class, and what makes an executor of a network."""
    given = part.component()
    if isinstance(given, type) and issubclass(given, Framework):
        given = given()
    return (given, given.executor) if isinstance(given, Framework) else (None, given)


def _framework_of(parts: Parts, executor: GraphExecutor, key: str) -> Framework:
    """The framework of an executor that the recipe's own function created, by the name that the executor reports."""
    name = executor.settings().get("framework")
    if isinstance(name, str) and name.partition(":")[0] in registered("frameworks"):
        return framework(name)
    raise RecipeError(
        f"{parts[key].where}{key!r} cannot be set for the executor of {parts['executor'].value!r}; "
        "remedy: set it in the function under 'executor'"
    )


def named_framework(parts: Parts) -> Framework:
    """The framework that `framework` names, an object or its class."""
    value = parts["framework"].value
    if isinstance(value, str) and ".py:" not in value:
        return _registered(parts["framework"].where, value)
    made = parts["framework"].component()
    try:
        made = made() if isinstance(made, type) else made
    except ModuleNotFoundError as error:
        raise missing_dependency(f"{parts['framework'].where}framework {value!r}", error) from error
    if not isinstance(made, Framework):
        raise parts["framework"].not_a(made, "the name of a framework, or a d5.Framework or its class")
    return made


def _registered(where: str, name: str) -> Framework:
    try:
        return framework(name)
    except MissingDependency as error:
        raise MissingDependency(f"{where}{error}") from error
    except UsageError as error:
        raise RecipeError(f"{where}{error}") from error


def _set_numerics(parts: Parts, known: Framework) -> list[str]:
    """Set the recipe's numerics on an accelerator's framework; on the host there is nothing to set.

    Returns:
        Warnings.
    """
    if _on_host(parts):
        return []
    try:
        known.set_numerics(deterministic=parts["deterministic"].value, tf32=parts["tf32"].value)
    except Deep5Error as error:
        for key in written_numerics(parts):
            raise RecipeError(f"{parts[key].where}{key!r}: {error}") from error
        # As with threads: an earlier run in this process was first, and the recipe requests no numerics.
        return [f"the numerics are not the default: {error}"]
    return []


def written_numerics(parts: Parts) -> list[str]:
    """The first key of the numerics that the recipe itself sets; empty if it sets none."""
    keys = () if _on_host(parts) else ("deterministic", "tf32")
    return [key for key in keys if parts[key].stated][:1]


def _on_host(parts: Parts) -> bool:
    return device(device_of(parts)).kind == "cpu"


def device_of(parts: Parts) -> Any:
    """The device, which the tutorial's recipes pass with the executor."""
    own = [parts[key].kwargs.get("device") for key in ("framework", "executor")]
    return next((found for found in own if found is not None), rank_device(parts["device"].value))


def _numerics_warnings(parts: Parts, name: str, found: Mapping[str, Any]) -> list[str]:
    """Warnings on settings that the framework has but the recipe does not allow; allowed settings need not be used."""
    warnings = []
    if parts["deterministic"].value and found.get("deterministic") is False:
        warnings.append(
            f"the run requested bit-identical repetition and {name} does not promise it; remedy: set "
            "deterministic=False, and compare several seeds"
        )
    if found.get("tf32") is True and not parts["tf32"].value:
        warnings.append(f"the run requested float32 and {name} rounds products to TF32; remedy: set tf32=True")
    return warnings
