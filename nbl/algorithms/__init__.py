"""The algorithms, one file a family."""

from nbl.algorithms.baselines import EpsilonGreedy, Uniform
from nbl.algorithms.ensemble import NeuralES, NeuralPHE
from nbl.algorithms.glm import GLMES, GLMFPL, GLMTSL, GLMUCB
from nbl.algorithms.linear import LinES, LinPHE, LinTS, LinUCB
from nbl.algorithms.linear_duels import VACDB, CoLSTIM, MaxInP
from nbl.algorithms.ndb import NDB
from nbl.algorithms.neural_linear import NeuralLinear
from nbl.algorithms.neural_ts import NeuralTS
from nbl.algorithms.neural_ucb import NeuralUCB
from nbl.algorithms.nvldb import NVLDB

__all__ = [
    "GLMES",
    "GLMFPL",
    "GLMTSL",
    "GLMUCB",
    "NDB",
    "NVLDB",
    "VACDB",
    "CoLSTIM",
    "EpsilonGreedy",
    "LinES",
    "LinPHE",
    "LinTS",
    "LinUCB",
    "MaxInP",
    "NeuralES",
    "NeuralLinear",
    "NeuralPHE",
    "NeuralTS",
    "NeuralUCB",
    "Uniform",
]
