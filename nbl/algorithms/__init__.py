"""The algorithms, one file a family."""

from nbl.algorithms.baselines import EpsilonGreedy, Uniform
from nbl.algorithms.ensemble import NeuralES
from nbl.algorithms.linear import LinES, LinTS, LinUCB
from nbl.algorithms.neural_linear import NeuralLinear
from nbl.algorithms.neural_ts import NeuralTS
from nbl.algorithms.neural_ucb import NeuralUCB

__all__ = ["EpsilonGreedy", "LinES", "LinTS", "LinUCB", "NeuralES", "NeuralLinear", "NeuralTS", "NeuralUCB", "Uniform"]
