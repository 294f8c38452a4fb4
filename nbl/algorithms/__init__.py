"""The algorithms, one file a family."""

from nbl.algorithms.baselines import EpsilonGreedy, Uniform
from nbl.algorithms.bootstrap import BootstrapNN
from nbl.algorithms.ensemble import NeuralES, NeuralPHE
from nbl.algorithms.glm import GLMES, GLMFPL, GLMTSL, GLMUCB
from nbl.algorithms.kernel import KernelTS, KernelUCB
from nbl.algorithms.linear import LinES, LinPHE, LinTS, LinUCB
from nbl.algorithms.neural_linear import NeuralLinear
from nbl.algorithms.neural_ts import NeuralTS
from nbl.algorithms.neural_ucb import NeuralUCB

__all__ = [
    "GLMES",
    "GLMFPL",
    "GLMTSL",
    "GLMUCB",
    "BootstrapNN",
    "EpsilonGreedy",
    "KernelTS",
    "KernelUCB",
    "LinES",
    "LinPHE",
    "LinTS",
    "LinUCB",
    "NeuralES",
    "NeuralLinear",
    "NeuralPHE",
    "NeuralTS",
    "NeuralUCB",
    "Uniform",
]
