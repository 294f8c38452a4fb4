"""Logged data as an environment: what another policy played, and what came back for it.

A log tells the reward of one arm an event, the one that was played. The learner is asked about an event; where its
choice is the logged one, it gets that reward and the round is over; otherwise the event is passed over and the next one
is asked about (Li, Chu, Langford, Wang. WSDM 2011). A round is therefore an *accepted* event, and the means of the
arms, and with them regret, are unknown. A policy that draws has one draw a round, whatever the number of events.

    accept=match       every match is accepted: unbiased where the logging policy was uniform
    accept=rejection   a match is accepted with probability (smallest propensity) / (propensity of the event): unbiased
                       for any logging policy with known propensities, at the price of fewer rounds

    LoggedReplay(path="clicks.parquet", action="item", reward="click", propensity="p")

Each replica walks through the events in an order of its own. When the first one has come to the end of the log, the run
ends there, with a warning; `repeat` shuffles anew and goes on, over data that were learnt from before.
"""

from __future__ import annotations

import os
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nbl.envs import features, tables
from nbl.envs.base import Environment
from nbl.envs.columns import readable
from nbl.envs.log_columns import check_propensity, need, numbers, read
from nbl.envs.tables import Hub
from nbl.rng import Streams
from nbl.types import Feedback, NblError

ACCEPT = ("match", "rejection")


class LogEnded(NblError):
    """A replica has read the last event."""


class Logged(Environment):
    """What logs have in common: the walk. A log of its own kind writes `event`.

    Args:
        chosen: the logged arm of each event, as its place among the arms offered, (N,).
        reward: what came back, (N,).
        propensity: with which probability it was logged, (N,); None where that is not known.
        arms, dim, replicas, seed: see `Environment`.
        accept: match or rejection.
        repeat: shuffle anew at the end of the log and go on.
        source: its name, for messages.
    """

    complete = True  # False where only some arms are offered, the logged one always: propensities are not among them
    chosen: Tensor
    reward: Tensor
    cursor: Tensor

    def __init__(
        self,
        chosen: Tensor,
        reward: Tensor,
        propensity: Tensor | None,
        arms: int,
        dim: int,
        accept: str = "match",
        repeat: bool = False,
        source: str = "the log",
        replicas: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(arms, dim, 0.0, replicas, seed)
        if accept not in ACCEPT:
            raise NblError(f"accept={accept!r}: choose one of {', '.join(ACCEPT)}.")
        if accept == "rejection" and propensity is None:
            raise NblError(f"accept=rejection needs the propensities of {source}; give their column, or accept=match.")
        self.rows, self.accept, self.repeat, self.source = len(chosen), accept, repeat, source
        whole = torch.ones_like(reward) if propensity is None else check_propensity(propensity, source)
        self.known = propensity is not None
        self._print = zlib.crc32(chosen.numpy().tobytes() + reward.numpy().tobytes())
        for name, value in (("chosen", chosen), ("reward", reward), ("propensity", whole)):
            self.register_buffer(name, value, persistent=False)  # the data: not state
        self.register_buffer("cursor", torch.zeros(replicas, dtype=torch.int64))  # events read when a round closed
        self.register_buffer("read", torch.zeros(replicas, dtype=torch.int64), persistent=False)  # and in the open one
        self._pass = [-1] * replicas
        empty = torch.zeros(replicas, self.rows)
        self.register_buffer("order", empty.int(), persistent=False)
        self.register_buffer("coin", empty if accept == "rejection" else empty[:, :0], persistent=False)
        self._row: Tensor | None = None  # the event each replica is asked about
        self._asked: Tensor | None = None
        self._reads = 0  # events passed over in this round

    propensity: Tensor
    order: Tensor
    coin: Tensor
    read: Tensor

    @abstractmethod
    def event(self, rows: Tensor) -> Tensor:
        """The arms offered in these events.    (n,) -> (n, K, d)"""

    def contexts(self, t: int) -> Tensor:
        """Open round t: the next event of each replica. Asked again before `pull`, the same one."""
        if t != self.t or self._asked is None:
            everyone = torch.ones(self.replicas, dtype=torch.bool, device=self.device)
            self._row = self._next(everyone)
            self._reads = 0
            self.t, self._asked, self.allowed = t, self.event(self._row), None
        return self._asked

    def again(self, arms: Tensor) -> Tensor | None:
        missed = ~self._accepted(arms)
        if not bool(missed.any()):
            return None
        assert self._row is not None and self._asked is not None
        self._reads += 1
        if self._reads > 2 * self.rows:
            raise LogEnded(f"round {self.t}: no match in two passes over {self.source}. Does the policy ever play it?")
        self._row = torch.where(missed, self._next(missed), self._row)
        self._asked = torch.where(missed[:, None, None], self.event(self._row), self._asked)
        return self._asked

    def pull(self, arms: Tensor) -> Feedback:
        if self._row is None:
            raise NblError(f"{type(self).__name__}: no round is open; call `contexts(t)` before `pull`.")
        if not bool((arms == self.chosen[self._row]).all()):
            raise NblError(
                f"{type(self).__name__}: the log has no reward for an arm that was not played. Ask `again(arms)` for "
                "other events until it returns None (nbl.fit and the Trainer's loop do)."
            )
        row, self._row, self._asked = self._row, None, None
        self.cursor.copy_(self.read)
        extra = {"events": self.cursor.double()}
        if self.known:
            extra["logged_propensity"] = self.propensity[row]
        return Feedback(reward=self.reward[row], extra=extra)

    def draw(self, t: int) -> Tensor:
        return self.contexts(t)

    def mean(self, contexts: Tensor) -> Tensor:
        raise NblError(f"{type(self).__name__}: a log does not tell the mean reward of an arm.")

    def regret(self, arms: Tensor) -> Tensor:
        raise NblError(f"{type(self).__name__}: a log does not tell what the best arm was, so there is no regret.")

    def _accepted(self, arms: Tensor) -> Tensor:
        if self._row is None:
            raise NblError(f"{type(self).__name__}: no round is open; call `contexts(t)` first.")
        if arms.shape != (self.replicas,) or arms.dtype != torch.int64:
            raise NblError(
                f"{type(self).__name__}: arms have shape {tuple(arms.shape)} and type {arms.dtype}; need "
                f"({self.replicas},) and torch.int64."
            )
        match = arms == self.chosen[self._row]
        if self.accept == "rejection":
            coin = self.coin.gather(1, ((self.read - 1) % self.rows)[:, None]).squeeze(1)
            match &= coin < self.propensity.min() / self.propensity[self._row]
        return match

    def _next(self, who: Tensor) -> Tensor:
        """Read one event more in these replicas.    (R,) bool -> (R,) rows"""
        at = (self.read - (~who).long()).clamp_min(0)  # the others stay where they are
        passes = (at // self.rows).tolist()
        if max(passes) > 0 and not self.repeat:
            raise LogEnded(
                f"replica {passes.index(max(passes))} has read all {self.rows} events of {self.source} in "
                f"{self.t - (self._asked is not None)} rounds. Play fewer, or let events come again: env.repeat=true."
            )
        for r, again in enumerate(passes):
            if again != self._pass[r]:
                self._pass[r] = again
                stream = Streams((self.seeds[r],), "environment")
                self.order[r] = stream.uniform("order", again, (self.rows,))[0].argsort(stable=True)
                if self.accept == "rejection":
                    self.coin[r] = stream.uniform("accept", again, (self.rows,))[0]
        self.read += who.long()
        return self.order.gather(1, (at % self.rows)[:, None]).squeeze(1).long()

    def get_extra_state(self) -> dict[str, int]:
        return {**super().get_extra_state(), "rows": self.rows, "log": self._print}

    def set_extra_state(self, state: dict[str, int]) -> None:
        if (state["rows"], state["log"]) != (self.rows, self._print):
            raise NblError(f"{self.source} is not the log that this run began with. Give the same file again.")
        super().set_extra_state(state)
        self.read.copy_(self.cursor)  # a round that was open is asked about from its first event
        self._row = self._asked = None


class LoggedReplay(Logged):
    """Any log: a table with columns of context, action, reward and (where it is known) propensity.

    Arm k gets the disjoint context (0, .., x, .., 0), x in block k of K: a model learns each action by its own weights.

    Args:
        name, path, hub, data, drop, missing, origin: which table: see `nbl.envs.tables.load`.
        action, reward, propensity: the columns; propensity=None where there is none. All others are the context.
        encode, scale: of the context, see `nbl.envs.features`.
        unit: divide each context by its norm.
        accept, repeat, replicas, seed: see `Logged`.
    """

    table: Tensor

    def __init__(
        self,
        name: str | None = None,
        path: str | os.PathLike[str] | None = None,
        hub: Hub | None = None,
        data: Any = None,
        action: str = "action",
        reward: str = "reward",
        propensity: str | None = "propensity",
        drop: Sequence[str] = (),
        missing: str = "error",
        origin: str | None = None,
        encode: str = "onehot",
        scale: str = "none",
        unit: bool = True,
        accept: str = "match",
        repeat: bool = False,
        replicas: int = 1,
        seed: int = 0,
    ) -> None:
        for key, value, known in (("encode", encode, features.ENCODE), ("scale", scale, features.SCALE)):
            if value not in known:
                raise NblError(f"{key}={value!r}: choose one of {', '.join(known)}.")
        source, columns = read(name, path, hub, data, action, origin)
        special = [action, reward, *([propensity] if propensity else [])]
        for column in special:
            need(columns, column, source)
        if len(set(special)) < len(special):
            raise NblError(f"{source}: action, reward and propensity are columns of their own, not {special}.")
        if unknown := sorted(set(drop) - set(columns)):
            raise NblError(f"{source}: drop={unknown}: no such column. There are {', '.join(columns)}.")
        columns = {key: column for key, column in columns.items() if key in special or key not in drop}
        readable(source, columns, [action])
        columns = tables.complete(source, columns, action, missing)
        chosen, names = tables.classify(source, action, columns.pop(action))
        rewards = numbers(columns.pop(reward), reward, source)
        given = numbers(columns.pop(propensity), propensity, source) if propensity else None
        if not columns:
            raise NblError(f"{source}: there is no context column beside {', '.join(special)}.")
        table = features.matrix(columns, encode, scale, 1).double()
        if unit:
            norm = table.square().sum(-1, keepdim=True).sqrt()
            table = table / norm.where(norm > 0, 1.0)
        self.actions, self.features = names, table.shape[1]
        options: dict[str, Any] = {
            "accept": accept,
            "repeat": repeat,
            "source": source,
            "replicas": replicas,
            "seed": seed,
        }
        arms = len(names)
        super().__init__(torch.from_numpy(chosen), rewards, given, arms, arms * self.features, **options)
        self.register_buffer("table", table, persistent=False)

    def event(self, rows: Tensor) -> Tensor:
        x = self.table[rows]
        contexts = x.new_zeros(len(rows), self.arms, self.arms, self.features)
        contexts.diagonal(dim1=1, dim2=2).copy_(x.unsqueeze(-1).expand(-1, -1, self.arms))
        return contexts.flatten(2)
