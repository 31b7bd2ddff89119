"""`JAXModel`: a user's network in JAX with a loss, a module of Flax or a pair of functions, as it is or exported."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deep5.core.executors import GraphExecutor
from deep5.core.network_spec import NetworkSpec
from deep5.core.own_model import Exported, OwnModel
from deep5.core.tensors import Device, TensorSpec
from deep5.frameworks.jax.executor import JAXExecutor
from deep5.frameworks.jax.native import draw_as_graph, from_jax, in_place_of, named_leaves
from deep5.frameworks.jax.own_export import OwnNetwork, check_float64, exported
from deep5.networks.arguments import as_network
from deep5.networks.flax_state import is_flax, is_nnx
from deep5.networks.probing import one_tensor, said_of, tried

__all__ = ["JAXModel"]

_SAMPLES, _MATRIX = 2, 2
# Names by which modules of Flax take whether they train, and the value in training.
_MODES = {"train": True, "training": True, "is_training": True, "deterministic": False}


def cross_entropy(output: Any, label: Any) -> Any:
    """See `deep5.networks.edit.loss.LOSSES`; the classes are on the last axis."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(output), label[..., None], axis=-1)
    return -chosen.mean()


def mse(output: Any, label: Any) -> Any:
    """See `deep5.networks.edit.loss.LOSSES`."""
    return jnp.square(output - _like(output, label)).mean()


def binary_cross_entropy(output: Any, label: Any) -> Any:
    """See `deep5.networks.edit.loss.LOSSES`."""
    return (jax.nn.softplus(output) - output * _like(output, label)).mean()


_LOSSES: Mapping[str, Callable[[Any, Any], Any]] = {
    "cross_entropy": cross_entropy,
    "mse": mse,
    "binary_cross_entropy": binary_cross_entropy,
}


def _like(output: Any, label: Any) -> Any:
    """The label as numbers of the output's type and shape, which must be the same except for a last dimension of 1."""
    if label.shape not in (output.shape, output.shape[:-1]) or (label.shape != output.shape and output.shape[-1] != 1):
        raise ValueError(f"an output of shape {output.shape} for labels of shape {label.shape}")
    return label.astype(output.dtype).reshape(output.shape)


class JAXModel(OwnModel):
    """A module of Flax, or a pair `(init, apply)`; made by `Framework.own_model`.

    `init(key, *inputs)` returns the parameters, and `apply(parameters, *inputs)` the output. A module of `flax.linen`
    has both; one of `flax.nnx` holds its parameters. Random numbers of a module (dropout) come from a key among its
    buffers, so that a resumed run repeats them.

    Args:
        model: The module or the pair.
        loss: A key of `LOSSES`, or a function `loss(output, label)`.
        inputs: Specifications of the inputs, the label last.
        device: Where it runs.
        seed: Seed of the initial weights of a model that holds none, and of its random numbers.
    """

    def __init__(
        self,
        model: Any,
        loss: str | Callable[..., Any],
        inputs: Mapping[str, TensorSpec],
        device: str | Device,
        seed: int,
    ) -> None:
        self._model, self._inputs, self._device, self._seed = model, dict(inputs), device, seed
        self._loss = _LOSSES[loss] if isinstance(loss, str) else loss
        # The losses of graphs have the classes on axis 1, which is the last axis only of a matrix.
        self.class_axis = -1 if loss == "cross_entropy" else None
        self._own_loss = not isinstance(loss, str)
        self.name = type(model).__name__ if is_flax(model) else said_of(model[1])
        self.kind = "flax.nnx.Module" if is_nnx(model) else "flax.linen.Module" if is_flax(model) else "JAX functions"

    def executor(self, seed: int) -> GraphExecutor:
        """The model as it is; see `OwnModel.executor`."""
        parameters, buffers, run, _ = self._parts()
        *given, label = self._inputs
        loss = self._loss

        def outputs(output: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
            return {"logits": output, "loss": loss(output, inputs[label])}

        apply: Callable[..., Any]
        if buffers is None:

            def apply(parameters: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
                return outputs(run(parameters, None, [inputs[name] for name in given], True)[0], inputs)
        else:

            def apply(
                parameters: Any, buffers: Any, inputs: Mapping[str, Any], *, training: bool
            ) -> tuple[dict[str, Any], Any]:
                output, new = run(parameters, buffers, [inputs[name] for name in given], training)
                return outputs(output, inputs), new

        apply.__qualname__ = self.name
        return from_jax(apply, parameters, inputs=self._inputs, buffers=buffers, device=self._device, seed=seed)

    def exported(self) -> Exported:
        """Export by jax2onnx, as a function of the parameters for batches of any size; see `OwnModel.exported`.

        Raises:
            MissingDependency: jax2onnx is not installed.
            Unsupported: The model cannot be exported, or trains otherwise than it evaluates.
        """
        return exported(self._network())

    def executor_of(self, network: NetworkSpec, seed: int) -> GraphExecutor:
        """The model with the export's weights; see `OwnModel.executor_of`."""
        graph, own = as_network(network), self._network()
        double = any(spec.dtype == "float64" for spec in graph.parameter_specs.values())
        with jax.enable_x64(double or bool(jax.config.jax_enable_x64)):
            if double:
                check_float64(own)

            def apply(
                parameters: Mapping[str, Any],
                buffers: OrderedDict[str, Any],
                inputs: Mapping[str, Any],
                *,
                training: bool,
                noise: Any,
            ) -> tuple[dict[str, Any], OrderedDict[str, Any]]:
                values = [parameters.get(name, value) for name, value in own.parameters.items()]
                held = {name: buffers.get(name, value) for name, value in own.buffers.items()}
                if noise is not None:
                    key = jax.random.wrap_key_data(noise)
                    for place, name in enumerate(own.noise):
                        held[name] = jax.random.key_data(jax.random.fold_in(key, place))
                given = [inputs[name] for name in self._inputs]
                outputs, new = own.run(values, list(held.values()), given, training)
                changed = dict(zip(held, new, strict=True))
                results = dict(zip(("logits", "loss"), outputs, strict=True))
                return results, OrderedDict((name, changed[name]) for name in buffers)

            return in_place_of(graph, apply, device=self._device, seed=seed)

    def draw_as_export(self, executor: GraphExecutor) -> None:
        """See `OwnModel.draw_as_export`; each call of a dropout layer of Flax has a mask."""
        assert isinstance(executor, JAXExecutor)  # noqa: S101 - made by executor_of
        draw_as_graph(executor)

    def _network(self) -> OwnNetwork:
        """The model as a function of values by name; it also returns the loss if it gets the label."""
        parameters, buffers, run, noise = self._parts()
        values, tree = named_leaves(parameters)
        held, held_tree = named_leaves({} if buffers is None else buffers)
        count = len(self._inputs) - 1

        def outputs(
            own: Sequence[Any], state: Sequence[Any], given: Sequence[Any], training: bool
        ) -> tuple[Sequence[Any], Sequence[Any]]:
            old = None if buffers is None else jax.tree.unflatten(held_tree, state)
            found, new = run(jax.tree.unflatten(tree, own), old, list(given[:count]), training)
            found = one_tensor(f"the model {self.name}", found, jax.Array)
            return (found, *(self._loss(found, label) for label in given[count:])), jax.tree.leaves(new)

        output = jax.eval_shape(lambda own, old: run(own, old, self._examples(), True)[0], parameters, buffers)
        return OwnNetwork(
            name=self.name,
            parameters=values,
            buffers=held,
            inputs=self._inputs,
            run=outputs,
            noise=noise,
            with_loss=self._own_loss or (self.class_axis is not None and len(getattr(output, "shape", ())) != _MATRIX),
        )

    def _parts(self) -> tuple[Any, Any, Callable[..., Any], tuple[str, ...]]:
        """Parameters, buffers, the function of both, the inputs and the mode that returns output and buffers, and the
        names of the buffers that hold keys.
        """
        return self._nnx() if is_nnx(self._model) else self._linen_or_pair()

    def _examples(self) -> list[Any]:
        *given, _ = self._inputs.values()
        shapes = [[_SAMPLES if isinstance(extent, str) else extent for extent in spec.shape] for spec in given]
        return [
            jnp.zeros(shape, jax.dtypes.canonicalize_dtype(spec.dtype))
            for shape, spec in zip(shapes, given, strict=True)
        ]

    def _linen_or_pair(self) -> tuple[Any, Any, Callable[..., Any], tuple[str, ...]]:
        """As `_parts`."""
        key, examples = jax.random.key(self._seed), self._examples()
        names = list(self._inputs)[:-1]
        if not is_flax(self._model):
            init, apply = self._model
            with tried(f"the function {said_of(init)}", {"key": key, **dict(zip(names, examples, strict=True))}):
                parameters = init(key, *examples)
            return parameters, None, lambda own, buffers, given, training: (apply(own, *given), buffers), ()
        module = self._model
        modes = {name: value for name, value in _MODES.items() if name in inspect.signature(module.__call__).parameters}
        evaluating = {name: not value for name, value in modes.items()}
        with tried(f"the module {self.name}", dict(zip(names, examples, strict=True))):
            found = dict(module.init(key, *examples, **evaluating))
        parameters = found.pop("params", {})
        if not modes and not found:
            return (
                parameters,
                None,
                lambda own, buffers, given, training: (module.apply({"params": own}, *given), buffers),
                (),
            )
        buffers = {"state": found, "noise": np.asarray(jax.random.key_data(jax.random.fold_in(key, 1)))}

        def run(own: Any, held: Any, given: list[Any], training: bool) -> tuple[Any, Any]:
            variables = {"params": own, **held["state"]}
            if not training:
                return module.apply(variables, *given, **evaluating), held
            noise, next_noise = jax.random.split(jax.random.wrap_key_data(held["noise"]))
            output, new = module.apply(variables, *given, **modes, rngs={"dropout": noise}, mutable=list(held["state"]))
            return output, {"state": dict(new), "noise": jax.random.key_data(next_noise)}

        return parameters, buffers, run, ("noise",)

    def _nnx(self) -> tuple[Any, Any, Callable[..., Any], tuple[str, ...]]:
        """As `_parts`."""
        import flax.nnx

        nnx: Any = flax.nnx

        forms: dict[bool, Any] = {}
        state: Any = None
        for training in (False, True):
            (self._model.train if training else self._model.eval)()
            forms[training], parameters, state = nnx.split(self._model, nnx.Param, ...)
        paths, tree = jax.tree_util.tree_flatten_with_path(state)
        leaves = [leaf for _, leaf in paths]
        names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
        keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
        if not leaves:
            form = forms[True]
            return (
                nnx.to_pure_dict(parameters),
                None,
                lambda own, buffers, given, training: (nnx.merge(form, _state(parameters, own))(*given), buffers),
                (),
            )

        def plain(values: list[Any]) -> dict[str, Any]:
            found = [jax.random.key_data(leaf) if key else leaf for leaf, key in zip(values, keys, strict=True)]
            return dict(zip(names, found, strict=True))

        def run(own: Any, held: Any, given: list[Any], training: bool) -> tuple[Any, Any]:
            pairs = zip((held[name] for name in names), keys, strict=True)
            values = [jax.random.wrap_key_data(leaf) if key else leaf for leaf, key in pairs]
            module = nnx.merge(forms[training], _state(parameters, own), jax.tree.unflatten(tree, values))
            output = module(*given)
            if not training:
                return output, held
            return output, plain(jax.tree.leaves(nnx.split(module, nnx.Param, ...)[2]))

        noise = tuple(name for name, key in zip(names, keys, strict=True) if key)
        return nnx.to_pure_dict(parameters), plain(leaves), run, noise


def _state(like: Any, values: Any) -> Any:
    """A copy of a state of Flax with other values, by name."""
    import flax.nnx

    nnx: Any = flax.nnx

    state = jax.tree.map(lambda leaf: leaf, like)
    nnx.replace_by_pure_dict(state, values)
    return state
