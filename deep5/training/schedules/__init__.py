"""Schedules: hyperparameters as functions of step and epoch, and the event that sets them."""

from deep5.training.schedules.cosine import Cosine
from deep5.training.schedules.decay import Constant, Exponential, Piecewise, Polynomial, StepDecay
from deep5.training.schedules.linear_scaling import LinearScaling
from deep5.training.schedules.one_cycle import OneCycle
from deep5.training.schedules.plan import Plan
from deep5.training.schedules.schedule import Schedule
from deep5.training.schedules.scheduled import Scheduled, plan_of
from deep5.training.schedules.warm_up import WarmUp

__all__ = [
    "Constant",
    "Cosine",
    "Exponential",
    "LinearScaling",
    "OneCycle",
    "Piecewise",
    "Plan",
    "Polynomial",
    "Schedule",
    "Scheduled",
    "StepDecay",
    "WarmUp",
    "plan_of",
]
