"""Choice of the `Workload` by the kind of a recipe; the only place that distinguishes kinds."""

from __future__ import annotations

from deep5.recipe.experiment import Experiment
from deep5.recipe.keys import CODE, COLLECTIVES, OPERATORS, SERVING
from deep5.run.workload import Workload

__all__ = ["workload_of"]


def workload_of(experiment: Experiment) -> Workload:
    """The workload of an experiment; loads only the modules of its kind."""
    kind = experiment.kind
    if kind is OPERATORS:
        from deep5.run.operators import Operators

        return Operators(experiment)
    if kind is CODE:
        from deep5.run.code import Code

        return Code(experiment)
    if kind is COLLECTIVES:
        from deep5.run.collectives import Collectives

        return Collectives(experiment)
    if kind is SERVING:
        from deep5.run.serving import Serving

        return Serving(experiment)
    from deep5.run.training import Training

    return Training(experiment)
