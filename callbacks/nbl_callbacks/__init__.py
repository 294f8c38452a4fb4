"""Lightning callbacks for bandits and other online learners."""

from nbl_callbacks.delay import DelayedFeedback
from nbl_callbacks.doubling import DoublingTrick, doubling_constant
from nbl_callbacks.gdesign import GOptimal, g_optimal, minimum_pulls, round_design
from nbl_callbacks.plot import RegretPlot
from nbl_callbacks.progress import BanditProgressBar
from nbl_callbacks.protocols import (
    Actor,
    Deliverable,
    Heteroscedastic,
    Informed,
    Learner,
    Observer,
    Restartable,
    Unsuitable,
    require,
    restarted,
)
from nbl_callbacks.schedule import RetrainSchedule
from nbl_callbacks.settle import StopWhenSettled
from nbl_callbacks.variance import VarianceWeighting, Weighting
from nbl_callbacks.warmup import GOptimalWarmup, RandomWarmup, RoundRobinWarmup, Warmup

__all__ = [
    "Actor",
    "BanditProgressBar",
    "DelayedFeedback",
    "Deliverable",
    "DoublingTrick",
    "GOptimal",
    "GOptimalWarmup",
    "Heteroscedastic",
    "Informed",
    "Learner",
    "Observer",
    "RandomWarmup",
    "RegretPlot",
    "Restartable",
    "RetrainSchedule",
    "RoundRobinWarmup",
    "StopWhenSettled",
    "Unsuitable",
    "VarianceWeighting",
    "Warmup",
    "Weighting",
    "doubling_constant",
    "g_optimal",
    "minimum_pulls",
    "require",
    "restarted",
    "round_design",
]
