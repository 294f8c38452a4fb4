"""Where rounds come from. An environment is a mean reward and a way to draw contexts; the rest is written here."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from nbl.rng import Streams
from nbl.types import Feedback, NblError


class Environment(nn.Module, ABC):
    """R simulated problems, one a seed, advanced together. State is the problem (buffers) and the current round.

    A new environment writes `draw` and `mean`:

        class Parabola(Environment):
            def draw(self, t):
                return self.streams.uniform("contexts", t, (self.arms, self.dim), self.device)

            def mean(self, contexts):
                return -contexts.square().sum(-1)

        environment = Parabola(arms=4, dim=3, noise=0.1, replicas=5, seed=0)

    Contexts, noise and rewards are float64 and functions of (seed, round): every algorithm with the same seed meets the
    same ones. Noise is drawn for all arms each round, so that a choice does not shift the stream.

    Args:
        arms: K, the number of arms.
        dim: d, the length of an arm's context.
        noise: standard deviation of the Gaussian noise on a reward.
        replicas: R, the number of problems.
        seed: of the first problem; replica r has seed + r.
    """

    _where: Tensor
    duel = False  # True where two arms are played and feedback says which one won (nbl.envs.duels)
    blocks: int | None = None  # K where contexts are disjoint and handed out as (x, k): see nbl/blocks.py
    fixed_arms = False  # True where `draw` does not depend on t: histories can then be kept per arm

    def __init__(self, arms: int, dim: int, noise: float = 0.0, replicas: int = 1, seed: int = 0) -> None:
        super().__init__()
        for name, value in {"arms": arms, "dim": dim, "replicas": replicas}.items():
            if not isinstance(value, int) or value < 1:
                raise NblError(f"{type(self).__name__}({name}={value!r}): need a whole number, at least 1.")
        if not 0 <= noise < math.inf:
            raise NblError(f"{type(self).__name__}(noise={noise!r}): need a finite standard deviation, 0 or more.")
        self.arms, self.dim, self.noise, self.replicas = arms, dim, float(noise), replicas
        self.seeds = tuple(range(seed, seed + replicas))
        self.streams = Streams(self.seeds, "environment")
        self.register_buffer("_where", torch.zeros(()), persistent=False)
        self.t = 0
        self._means: Tensor | None = None
        self.allowed: Tensor | None = None  # arms of the open round; regret is measured against the best of them

    @abstractmethod
    def draw(self, t: int) -> Tensor:
        """The contexts of round t (1, 2, ...), a function of the seed and t alone.    -> (R, K, d)"""

    @abstractmethod
    def mean(self, contexts: Tensor) -> Tensor:
        """The mean reward of each arm.    (R, K, d) -> (R, K)"""

    @property
    def device(self) -> torch.device:
        return self._where.device

    def contexts(self, t: int) -> Tensor:
        """Open round t.    -> (R, K, d)"""
        contexts = self.draw(t)
        self.t, self._means, self.allowed = t, self.mean(contexts), self.mask(t)
        return contexts

    def mask(self, t: int) -> Tensor | None:
        """Which arms may be played in round t, where not all of them.    -> (R, K) bool"""
        return None

    def again(self, arms: Tensor) -> Tensor | None:
        """Other contexts to ask about, where it cannot tell what these arms would have brought (a log can tell that of
        one arm only). None: it can, so `pull`.    (R,) -> (R, K, d)
        """
        return None

    def pull(self, arms: Tensor) -> Feedback:
        """Play these arms in the open round.    (R,) -> Feedback"""
        played, regret = self._played(arms), self.regret(arms)
        noise = self.streams.normal("noise", self.t, (self.arms,), self.device)
        reward = played + self.noise * noise.gather(-1, arms[:, None]).squeeze(-1)
        return Feedback(reward=reward, regret=regret, optimal=regret <= 0)

    def regret(self, arms: Tensor) -> Tensor:
        """The best mean minus the mean of these arms, in the open round; nothing is played.    (R,) -> (R,)"""
        return self._best() - self._played(arms)

    def _best(self) -> Tensor:
        """The best mean of the arms that may be played.    -> (R,)"""
        means = self._open()
        best = means if self.allowed is None else means.masked_fill(~self.allowed, -torch.inf)
        return best.amax(-1)

    def _played(self, arms: Tensor) -> Tensor:
        means, name = self._open(), type(self).__name__
        need, each = ((self.replicas, 2), "two") if self.duel else ((self.replicas,), "one")
        if arms.shape != need or arms.dtype != torch.int64:
            raise NblError(
                f"{name}: arms have shape {tuple(arms.shape)} and type {arms.dtype}; "
                f"need {each} a replica, shape {need} and type torch.int64."
            )
        if arms.device.type == "cpu" and ((arms < 0) | (arms >= self.arms)).any():
            raise NblError(
                f"{name}: arms played go from {int(arms.min())} to {int(arms.max())}; "
                f"there are {self.arms}, numbered 0 to {self.arms - 1}."
            )
        return means.gather(-1, arms.view(self.replicas, -1)).view(need)

    def _open(self) -> Tensor:
        if self._means is None:
            raise NblError(f"{type(self).__name__}: no round is open; call `contexts(t)` before `pull`.")
        return self._means

    def get_extra_state(self) -> dict[str, int]:
        return {"t": self.t}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.t, self._means = int(state["t"]), None
