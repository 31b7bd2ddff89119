"""Names to components: the only loader. Everything is registered by entry point, including deep5's own components, or
at run time (`deep5.register`)."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from deep5.core.deep500 import PAGE as PORTING
from deep5.core.deep500 import replaced_module
from deep5.core.errors import Deep5Error, MissingDependency, UnknownName, UsageError, brief
from deep5.core.former_paths import present_name
from deep5.core.run_time import RunTimePoint, run_time_points

if TYPE_CHECKING:
    from deep5.core.framework import Framework

__all__ = [
    "KINDS",
    "REGISTERED",
    "check_one_package",
    "forget_names",
    "framework",
    "install_command",
    "load",
    "missing_dependency",
    "mode_fault",
    "name_of",
    "owner_of",
    "registered",
    "uninterrupted",
]

KINDS = {
    "recipes": "recipe",
    "frameworks": "framework",
    "operators": "operator",
    "metrics": "metric",
    "networks": "network",
    "datasets": "data set",
    "samplers": "sampler",
    "transforms": "transform",
    "optimizers": "optimizer",
    "events": "event",
    "schedules": "schedule",
    "schemes": "scheme",
    "compressors": "compression",
    "engines": "engine",
}
"""The kinds of components: `kind` of the entry point group `deep5.<kind>` to its word in messages."""

REGISTERED = {
    "recipes": "A module with FIXED, MUTABLE and METRICS, or `module:NAME` of a RecipeFamily, whose cases are recipes.",
    "frameworks": "A subclass of d5.Framework, registered under its attribute `name`.",
    "operators": "A class decorated with d5.register_operator, registered as DOMAIN.NAME.",
    "metrics": "A subclass of d5.Metric.",
    "networks": "A function that returns a d5.Network, or a model of PyTorch, Keras, Flax or JAX.",
    "datasets": "A function that returns d5.Splits: the training and the test samples.",
    "samplers": "A subclass of d5.Sampler, or another class with the methods of d5.BatchSource.",
    "transforms": "A subclass of d5.Transform or of d5.RandomTransform.",
    "optimizers": "A subclass of d5.UpdateRule, or a class with the methods of d5.StepOptimizer.",
    "events": "A subclass of d5.Event.",
    "schedules": "A subclass of d5.Schedule.",
    "schemes": "A subclass of d5.DistributedOptimizer.",
    "compressors": "A subclass of d5.Compression.",
    "engines": "A subclass of concurrent.futures.Executor, made with workers, processors_each and options.",
}
"""What an entry point of each kind names."""

# Module to its distribution and to the extra of deep5 that installs it.
_EXTRAS = {
    "torch": "pytorch",
    "onnxscript": "pytorch",
    "tensorflow": "tensorflow",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "jax": "jax",
    "optax": "jax",
    "altair": "report",
    "vl_convert": "report",
    "PIL": "data",
    "pooch": "data",
    "pyarrow": "data",
    "cv2": "decoders",
    "turbojpeg": "decoders",
    "datasets": "huggingface",
    "rapidfuzz": "text",
    "sacrebleu": "text",
    "gymnasium": "reinforcement",
    "pycocotools": "detection",
    "tokenizers": "text",
    "tensorboard": "tensorboard",
    "mpi4py": "mpi",
    "optuna": "search",
    "cmaes": "search",
    "dask": "dask",
    "distributed": "dask",
    "httpx": "serving",
    "starlette": "serving",
    "uvicorn": "serving",
}


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer SIGINT, SIGTERM and SIGHUP until the block ends.

    For imports of compiled libraries: an exception during one (NumPy's, for example) can crash the interpreter.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def _installed() -> Any:
    # Reading a single group would also read every file of every distribution: some 10 ms.
    return entry_points()


@functools.cache
def registered(kind: str) -> Mapping[str, EntryPoint]:
    """All registered components of a kind (a key of `KINDS`) by name; loads none."""
    points = {point.name: point for point in _installed().select(group=f"deep5.{kind}")}
    return dict(sorted({**points, **run_time_points(kind)}.items()))


def check_one_package(kind: str, name: str) -> None:
    """Reject a name that installed packages give to different components: which one runs would depend on their order.

    Args:
        kind: A key of `KINDS`.
        name: The name.

    Raises:
        UsageError: Several packages register it; the message names them.
    """
    found = {point.value: point for point in _installed().select(group=f"deep5.{kind}", name=name)}
    if len(found) > 1:
        packages = sorted((point.dist.name if point.dist else "?", value) for value, point in found.items())
        others = [package for package, _ in packages if package != "deep5"]
        raise UsageError(
            f"the {KINDS[kind]} {name!r} is registered by several packages: "
            f"{', '.join(f'{package} ({value})' for package, value in packages)}; allowed: one package for a name; "
            f"remedy: pip uninstall {others[-1]}, or another name in its entry points"
        )


def forget_names() -> None:
    """Look names up again, after a registration at run time."""
    for kept in (registered, load, _made):
        kept.cache_clear()


@functools.cache
def load(kind: str, name: str) -> Any:
    """The component registered under a name.

    Args:
        kind: A key of `KINDS`.
        name: The registered name, or a former one.

    Raises:
        UnknownName: No component has that name.
        UsageError: Several packages give the name to different components, or the component cannot be loaded.
        MissingDependency: A package that the component needs is not installed.
    """
    points, name = registered(kind), present_name(kind, name)
    if name not in points:
        raise UnknownName(KINDS[kind], name, points, remedy=f"'deep5 list {kind}' shows them")
    check_one_package(kind, name)
    try:
        with uninterrupted():
            return points[name].load()
    except Exception as error:
        what = f"{KINDS[kind]} {name!r}"
        if isinstance(error, ModuleNotFoundError) and error.name and not _is_part(error.name, points[name].module):
            raise missing_dependency(what, error) from error
        raise UsageError(
            f"{what} is registered as {points[name].value!r}, which cannot be loaded "
            f"({type(error).__name__}: {error}); remedy: reinstall its package"
        ) from error


def _is_part(module: str, of: str) -> bool:
    """Whether a missing module belongs to the package that imports it."""
    return module.partition(".")[0] == of.partition(".")[0]


def install_command(package: str) -> str:
    """The command that installs a distribution, by deep5's extra if there is one.

    >>> install_command("torch"), install_command("yaml")
    ("pip install 'deep5[pytorch]'", 'pip install yaml')
    """
    extra = _EXTRAS.get(package)
    return f"pip install 'deep5[{extra}]'" if extra else f"pip install {package}"


def missing_dependency(what: str, error: ModuleNotFoundError) -> MissingDependency:
    """The error for a package that is not installed, with the command that installs it."""
    package = (error.name or "the missing package").partition(".")[0]
    if new := replaced_module(package):
        missing = f"the module {error.name!r}, which Deep500 has and deep5 does not; remedy: {new} ({PORTING})"
    elif package in _EXTRAS:
        missing = f"the package {package!r}, which is not installed; remedy: {install_command(package)}"
    else:
        # It may also be a typo: do not suggest installing a package that only has a similar name.
        missing = (
            f"the module {package!r}, which is not found; remedy: check the spelling, put {package}.py beside the file "
            "that imports it, or install its package"
        )
    return MissingDependency(f"{what} needs {missing}")


def name_of(kind: str, component: Any) -> str | None:
    """The name of a component given as an object in its entry point, or None; loads only the object's package."""
    module, qualified = getattr(component, "__module__", None), getattr(component, "__qualname__", None)
    points = {name: point for name, point in registered(kind).items() if not isinstance(point, RunTimePoint)}
    for name, point in points.items():
        if f"{module}:{qualified}" == point.value:
            return name
    # A registered path may re-export: compare by identity, but only within the same package.
    for name, point in points.items():
        same = module and point.attr == qualified and _is_part(module, point.module)
        if same and load(kind, name) is component:
            return name
    return None


def mode_fault(name: str) -> str | None:
    """What is wrong with the mode in the name of a registered framework, or None; its library is not loaded.

    >>> mode_fault("pytorch:compiled"), mode_fault("pytorch:fast")[:28]
    (None, "unknown pytorch mode 'fast';")
    """
    plain, _, mode = name.partition(":")
    try:
        _check_mode(plain, mode, getattr(load("frameworks", plain), "modes", {}))
    except UsageError as error:
        return str(error)
    return None


def _check_mode(plain: str, mode: str, modes: Mapping[str, str]) -> None:
    if mode not in modes:
        names = [repr(plain), *(repr(f"{plain}:{known}") for known in modes)]
        if not mode:
            raise UsageError(
                f"got the framework {plain + ':'!r}, a colon without a mode; allowed: {' or '.join(names)}"
            )
        raise UnknownName(f"{plain} mode", mode, modes, remedy=f"remedy: {' or '.join(names)}")


def owner_of(model: object) -> str | None:
    """Name of the framework of whose library an object is a model, or None; loads no library."""
    from deep5.core.framework import Framework

    for name in registered("frameworks"):
        found = load("frameworks", name)
        kind = found if isinstance(found, type) else type(found)
        if issubclass(kind, Framework) and kind.owns(model):
            return name
    return None


def framework(name: str) -> Framework:
    """A back-end by name.

    Args:
        name: `"pytorch"`, `"reference"`, …; a mode follows a colon: `"pytorch:compiled"`.

    Raises:
        UsageError: `name` is not a string, or has a colon without a mode.
        UnknownName: No back-end has that name, or the back-end has no such mode.
        MissingDependency: Its library is not installed.

    >>> framework("reference").name
    'reference'
    """
    if not isinstance(name, str):
        raise UsageError(
            f"got {brief(name)} as a framework; allowed: a name, "
            f"{', '.join(registered('frameworks'))}; remedy: deep5.framework('pytorch'), say"
        )
    return _made(name)


@functools.cache
def _made(name: str) -> Framework:
    """One shared object per name."""
    from deep5.core.framework import Framework

    plain, colon, mode = name.partition(":")
    found = load("frameworks", plain)
    if colon:
        _check_mode(plain, mode, getattr(found, "modes", {}))
    if isinstance(found, type):
        try:
            with uninterrupted():
                found = found(mode) if mode else found()
        except ModuleNotFoundError as error:
            raise missing_dependency(f"framework {name!r}", error) from error
    if not isinstance(found, Framework):
        raise Deep5Error(f"framework {name!r} is a {type(found).__name__}; allowed: a Framework or a class of it")
    return found
