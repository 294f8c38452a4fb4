"""The algorithms, one file a family."""

from nbl.algorithms.baselines import EpsilonGreedy, Uniform
from nbl.algorithms.ensemble import NeuralES, NeuralPHE
from nbl.algorithms.glm import GLMES, GLMFPL, GLMTSL, GLMUCB
from nbl.algorithms.linear import LinES, LinPHE, LinTS, LinUCB
from nbl.algorithms.logistic import AdaOFUECOLog, LogisticUCB1
from nbl.algorithms.neural_linear import NeuralLinear
from nbl.algorithms.neural_logistic import NCBFUCB, NeuralLogTS1, NeuralLogTS2, NeuralLogUCB1, NeuralLogUCB2
from nbl.algorithms.neural_ts import NeuralTS
from nbl.algorithms.neural_ucb import NeuralUCB

__all__ = [
    "GLMES",
    "GLMFPL",
    "GLMTSL",
    "GLMUCB",
    "NCBFUCB",
    "AdaOFUECOLog",
    "EpsilonGreedy",
    "LinES",
    "LinPHE",
    "LinTS",
    "LinUCB",
    "LogisticUCB1",
    "NeuralES",
    "NeuralLinear",
    "NeuralLogTS1",
    "NeuralLogTS2",
    "NeuralLogUCB1",
    "NeuralLogUCB2",
    "NeuralPHE",
    "NeuralTS",
    "NeuralUCB",
    "Uniform",
]
