"""Timing two things in turn, and what is said of the outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from nbl.envs import Environment
from nbl.module import BanditModule


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        section: what is measured.
        case: at which size.
        seconds: of one round (or one call).
        against: what it is compared with; empty where it stands alone.
        ratio: `against`'s time over this one's, above 1 where this is the faster; nan where it stands alone.
        target: what the ratio should reach.
        floor: what `--check` asks of it, generous because machines are noisy.
    """

    section: str
    case: str
    seconds: float
    against: str = ""
    ratio: float = math.nan
    target: float = math.nan
    floor: float = math.nan

    @property
    def failed(self) -> bool:
        return self.ratio < self.floor  # never with nan


def in_turn(jobs: Mapping[str, Callable[[], object]], repeats: int = 7, seconds: float = 0.1) -> dict[str, float]:
    """The least process time of one call of each job; all jobs take their turn in every repeat.

    The least, because what others do on the machine can only add to it.
    """
    calls, taken = {}, {name: [] for name in jobs}  # type: dict[str, int], dict[str, list[float]]
    for name, job in jobs.items():
        job()
        begun = time.process_time()
        job()
        calls[name] = max(1, int(seconds / max(time.process_time() - begun, 1e-7)))
    for _ in range(repeats):
        for name, job in jobs.items():
            begun = time.process_time()
            for _ in range(calls[name]):
                job()
            taken[name].append((time.process_time() - begun) / calls[name])
    return {name: min(values) for name, values in taken.items()}


class Player:
    """A policy and its environment, without a Trainer: `play()` is one round."""

    def __init__(self, policy: BanditModule, environment: Environment) -> None:
        self.policy, self.environment = policy, environment
        self.t = 0

    @torch.no_grad()
    def play(self, learn: bool = True) -> None:
        self.t += 1
        contexts = self.environment.contexts(self.t)
        decision = self.policy.act(contexts)
        self.policy.observe(contexts, decision, self.environment.pull(decision.arms))
        if learn:
            self.policy.learn()
        else:
            self.policy.rest()

    def until(self, t: int) -> Player:
        """Play up to round t, retraining now and then: it is what comes after that is timed."""
        while self.t < t:
            self.play(learn=self.t % 20 == 0)
        return self
