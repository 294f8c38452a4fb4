"""The algorithms, one file a family."""

from nbl.algorithms.baselines import EpsilonGreedy, Uniform
from nbl.algorithms.bootstrap import BootstrapNN
from nbl.algorithms.ensemble import NeuralES, NeuralPHE
from nbl.algorithms.glm import GLMES, GLMFPL, GLMTSL, GLMUCB
from nbl.algorithms.kernel import KernelTS, KernelUCB
from nbl.algorithms.linear import LinES, LinPHE, LinTS, LinUCB
from nbl.algorithms.linear_duels import VACDB, CoLSTIM, MaxInP
from nbl.algorithms.logistic import AdaOFUECOLog, LogisticUCB1
from nbl.algorithms.ndb import NDB
from nbl.algorithms.neural_gcb import NeuralGCB
from nbl.algorithms.neural_linear import NeuralLinear
from nbl.algorithms.neural_logistic import NCBFUCB, NeuralLogTS1, NeuralLogTS2, NeuralLogUCB1, NeuralLogUCB2
from nbl.algorithms.neural_ts import NeuralTS
from nbl.algorithms.neural_ucb import BatchedNeuralUCB, NeuralUCB
from nbl.algorithms.nvldb import NVLDB
from nbl.algorithms.sup_neural_ucb import SupNeuralUCB

__all__ = [
    "GLMES",
    "GLMFPL",
    "GLMTSL",
    "GLMUCB",
    "NCBFUCB",
    "NDB",
    "NVLDB",
    "VACDB",
    "AdaOFUECOLog",
    "BatchedNeuralUCB",
    "BootstrapNN",
    "CoLSTIM",
    "EpsilonGreedy",
    "KernelTS",
    "KernelUCB",
    "LinES",
    "LinPHE",
    "LinTS",
    "LinUCB",
    "LogisticUCB1",
    "MaxInP",
    "NeuralES",
    "NeuralGCB",
    "NeuralLinear",
    "NeuralLogTS1",
    "NeuralLogTS2",
    "NeuralLogUCB1",
    "NeuralLogUCB2",
    "NeuralPHE",
    "NeuralTS",
    "NeuralUCB",
    "SupNeuralUCB",
    "Uniform",
]
