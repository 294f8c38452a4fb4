"""Timing two things in turn, and what is said of the outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from nbl.envs import Environment
from nbl.module import BanditModule

Job = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        section: what is measured.
        case: at which size.
        seconds: of one round (or one call); nan where it is not a time.
        against: what it is compared with; empty where it stands alone.
        ratio: `against`'s time over this one's, above 1 where this is the faster; nan where it stands alone.
        target: what the ratio should reach.
        floor: what `--check` asks of it, generous because machines are noisy.
        note: anything else worth reading.
    """

    section: str
    case: str
    seconds: float
    against: str = ""
    ratio: float = math.nan
    target: float = math.nan
    floor: float = math.nan
    note: str = ""

    @property
    def failed(self) -> bool:
        return self.ratio < self.floor  # never with nan

    @property
    def reached(self) -> str:
        """Whether the target was: yes, no, or nothing where there is none."""
        return "" if math.isnan(self.target) or math.isnan(self.ratio) else "yes" if self.ratio >= self.target else "no"


def in_turn(
    jobs: Mapping[str, Job],
    repeats: int = 7,
    seconds: float = 0.1,
    most: int | None = None,
    between: Callable[[], object] | None = None,
) -> dict[str, float]:
    """The least process time of one call of each job; all jobs take their turn in every repeat.

    The least, because what others do on the machine can only add to it.

    Args:
        repeats: turns of each job.
        seconds: about how long a turn takes.
        most: calls in a turn, at most, where each call moves what is measured.
        between: called before each turn, untimed, to move it back.
    """
    calls, taken = {}, {name: [] for name in jobs}  # type: dict[str, int], dict[str, list[float]]
    back = between or (lambda: None)
    for name, job in jobs.items():
        back()
        job()
        begun = time.process_time()
        job()
        calls[name] = max(1, int(seconds / max(time.process_time() - begun, 1e-7)))
        calls[name] = calls[name] if most is None else min(calls[name], most)
    for _ in range(repeats):
        for name, job in jobs.items():
            back()
            begun = time.process_time()
            for _ in range(calls[name]):
                job()
            taken[name].append((time.process_time() - begun) / calls[name])
    return {name: min(values) for name, values in taken.items()}


def integral(at: Mapping[int, float]) -> float:
    """Seconds of a whole run, from those of a round at some t: trapezoids from the first to the last t."""
    times = sorted(at)
    parts = [(at[a] + at[b]) / 2 * (b - a) for a, b in pairwise(times)]
    return sum(parts) + at[times[0]] * times[0]


class Player:
    """A policy and its environment, without a Trainer: `play()` is one round."""

    def __init__(self, policy: BanditModule, environment: Environment) -> None:
        self.policy, self.environment = policy, environment
        self.t = 0
        self._state: tuple[int, int, list[tuple[nn.Module, Any]], list[tuple[Tensor, Tensor]]] | None = None

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

    def until(self, t: int, every: int | None = 20) -> Player:
        """Play up to round t, retraining now and then or never: it is what comes after that is timed."""
        while self.t < t:
            self.play(learn=every is not None and self.t % every == 0)
        return self.mark()

    def verbs(self) -> dict[str, Job]:
        """`act` and `observe` of the coming round, as jobs."""
        contexts = self.environment.contexts(self.t + 1)
        decision = self.policy.act(contexts)
        feedback = self.environment.pull(decision.arms)

        def observe() -> None:
            self.policy.observe(contexts, decision, feedback)
            self.policy.rest()

        def both() -> None:
            self.policy.act(contexts)
            observe()

        return {"act": lambda: self.policy.act(contexts), "observe": observe, "both": both}

    def mark(self) -> Player:
        """Remember where this is: the counters, and the few numbers that decide what a round does."""
        parts = list(self.policy.modules())
        counters = [(part, part.get_extra_state()) for part in parts if hasattr(part, "counters") and part.counters]
        growing = {id(getattr(p, name)) for p in parts for name in getattr(p, "growing", {})}
        small = [b for b in self.policy.buffers() if id(b) not in growing and b.numel() <= 4096]
        self._state = (self.t, self.policy.round, counters, [(b, b.clone()) for b in small])
        return self

    def back(self) -> None:
        """To the last `mark`. Weights stay as they are: what a round costs does not depend on them."""
        assert self._state is not None
        self.t, self.policy.round, counters, small = self._state
        for part, state in counters:
            part.set_extra_state(state)
        for buffer, then in small:
            buffer.copy_(then)


def back_all(players: Sequence[Player]) -> Callable[[], None]:
    """Takes several players back."""

    def back() -> None:
        for player in players:
            player.back()

    return back
