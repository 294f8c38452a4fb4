"""Environments: where rounds come from. `ENVIRONMENTS` has those with Gaussian noise, by their recipes' names."""

from nbl.envs.base import Environment
from nbl.envs.classification import Classification
from nbl.envs.duels import ClassDuel, Duel, DuelCosine, DuelQuadratic, DuelSquare, PreferenceLog
from nbl.envs.logged import Logged, LoggedReplay
from nbl.envs.logistic import LogH1, LogH2, LogH3, LogH4, LogH5, LogH6, LogisticPool
from nbl.envs.open_bandit import OpenBandit
from nbl.envs.synthetic import (
    Distance,
    FixedArms,
    GcbH1,
    GcbH2,
    GcbH3,
    Linear,
    Logistic,
    Quadratic,
    SphereContexts,
    ZhouH1,
    ZhouH2,
    ZhouH3,
)

ENVIRONMENTS: dict[str, type[Environment]] = {
    "linear": Linear,
    "logistic": Logistic,
    "distance": Distance,
    "quadratic": Quadratic,
    "gcb_h1": GcbH1,
    "gcb_h2": GcbH2,
    "gcb_h3": GcbH3,
    "zhou_h1": ZhouH1,
    "zhou_h2": ZhouH2,
    "zhou_h3": ZhouH3,
}

DUELS: dict[str, type[Duel]] = {
    "duel_cosine": DuelCosine,
    "duel_square": DuelSquare,
    "duel_quadratic": DuelQuadratic,
}

__all__ = [
    "DUELS",
    "ENVIRONMENTS",
    "ClassDuel",
    "Classification",
    "Distance",
    "Duel",
    "DuelCosine",
    "DuelQuadratic",
    "DuelSquare",
    "Environment",
    "FixedArms",
    "GcbH1",
    "GcbH2",
    "GcbH3",
    "Linear",
    "LogH1",
    "LogH2",
    "LogH3",
    "LogH4",
    "LogH5",
    "LogH6",
    "Logged",
    "LoggedReplay",
    "Logistic",
    "LogisticPool",
    "OpenBandit",
    "PreferenceLog",
    "Quadratic",
    "SphereContexts",
    "ZhouH1",
    "ZhouH2",
    "ZhouH3",
]
