"""Duels: two arms are played, and feedback says whether the first one won.

    DuelCosine, DuelSquare, DuelQuadratic   the paper of NVLDB, appendix E.1.1: fresh contexts, any d and K
    ClassDuel                               a classification table as a duel (E.1.2): Statlog, Magic, Covertype, yours
    PreferenceLog                           logged comparisons, one a round (human preferences, say)

P(x beats y) = g(u(x) - u(y)) with a link of nbl.links, or the better utility wins for certain (`deterministic`); equal
utilities toss a coin. Regret is the average one, u* - (u_1 + u_2) / 2; `weak_regret` (in `feedback.extra`) is
u* - max(u_1, u_2). `feedback.extra["variance"]` is the true variance of the outcome, for variance-aware learners.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nbl.envs.base import Environment
from nbl.envs.classification import Classification
from nbl.envs.columns import Letters, readable
from nbl.envs.log_columns import read
from nbl.envs.synthetic import dot, length
from nbl.envs.tables import Hub
from nbl.links import LINKS, Link, link
from nbl.rng import Streams
from nbl.types import Feedback, NblError


class Duel(Environment):
    """What duels share: `mean` is the utility of each arm, `preference` makes it a chance of winning."""

    duel = True
    preference: Link | None = None  # None: the better utility wins

    def prefer(self, name: str) -> None:
        """Set the law of preferences, a link or `deterministic`."""
        if name not in (*LINKS, "deterministic"):
            raise NblError(f"preference={name!r}: choose one of {', '.join(LINKS)}, deterministic.")
        self.preference = None if name == "deterministic" else link(name)

    def chance(self, arms: Tensor) -> Tensor:
        """The probability that the first arm wins, in the open round.    (R, 2) -> (R,)"""
        u = self._played(arms)
        ahead = u[:, 0] - u[:, 1]
        return (ahead.sign() + 1.0) / 2.0 if self.preference is None else self.preference.chance(ahead)

    def pull(self, arms: Tensor) -> Feedback:
        """Play this pair in the open round; one draw a round decides, whichever pair it is.    (R, 2) -> Feedback"""
        chance, regret = self.chance(arms), self.regret(arms)
        won = self.streams.uniform("duel", self.t, (), self.device) < chance
        weak = self._best() - self._played(arms).amax(-1)
        extra = {"variance": chance * (1.0 - chance), "weak_regret": weak}
        return Feedback(reward=won.double(), regret=regret, optimal=regret <= 0, extra=extra)

    def regret(self, arms: Tensor) -> Tensor:
        """The average regret of the pair; nothing is played.    (R, 2) -> (R,)"""
        return (self._best().unsqueeze(-1) - self._played(arms)).mean(-1)


class SyntheticDuel(Duel):
    """Theta and contexts uniform in [-1, 1]^d, contexts then normalised (Listing 1)."""

    theta: Tensor

    def __init__(self, arms: int = 5, dim: int = 5, preference: str = "btl", replicas: int = 1, seed: int = 0) -> None:
        super().__init__(arms, dim, 0.0, replicas, seed)
        self.prefer(preference)
        self.register_buffer("theta", 2.0 * self.streams.uniform("theta", 0, (dim,)) - 1.0)

    def draw(self, t: int) -> Tensor:
        x = 2.0 * self.streams.uniform("contexts", t, (self.arms, self.dim), self.device) - 1.0
        return x / length(x)[..., None]


class DuelCosine(SyntheticDuel):
    """cos(3 Theta'x)"""

    def mean(self, contexts: Tensor) -> Tensor:
        return (3.0 * dot(contexts, self.theta)).cos()


class DuelSquare(SyntheticDuel):
    """10 (Theta'x)^2"""

    def mean(self, contexts: Tensor) -> Tensor:
        return 10.0 * dot(contexts, self.theta).square()


class DuelQuadratic(SyntheticDuel):
    """x'Theta Theta'x, which is (Theta'x)^2"""

    def mean(self, contexts: Tensor) -> Tensor:
        return dot(contexts, self.theta).square()


class ClassDuel(Duel, Classification):
    """A row is a round, a class is an arm; contexts are those of `Classification`, each class in its own block.

    The paper says that the utility comes from the index of the class, and that "a baseline of P(i beats j) = 0.7" is
    set; features of arms it does not give. Our reading: u_k = step * k, so that with step = log(0.7 / 0.3) a class
    beats the one before it with chance 0.7 (Magic, Covertype); and the higher index wins for certain (Statlog).
    `utility=label` is the ordinary problem: the right class has utility `step`, the others 0.

    Args:
        preference: a link, or `deterministic`.
        utility: `index` or `label`.
        step: see above.
        **table: as for `Classification`.
    """

    def __init__(
        self,
        name: str | None = None,
        preference: str = "btl",
        utility: str = "index",
        step: float = math.log(7.0 / 3.0),
        **table: Any,
    ) -> None:
        if utility not in ("index", "label"):
            raise NblError(f"utility={utility!r}: choose one of index, label.")
        if not 0 < step < math.inf:
            raise NblError(f"step={step!r}: need a positive difference of utilities, for example 0.85.")
        super().__init__(name, **table)
        self.prefer(preference)
        self.utility, self.step = utility, float(step)

    def mean(self, contexts: Tensor) -> Tensor:
        if self.utility == "label":
            return self.step * super().mean(contexts)
        index = torch.arange(self.arms, dtype=torch.float64, device=self.device)
        return (self.step * index).expand(self.replicas, -1)


class PreferenceLog(Duel):
    """Comparisons that were made before, one a round, in an order of its own for each seed; regret is not known.

        PreferenceLog(path="pairs.parquet", first="chosen", second="rejected")      # columns of embeddings
        PreferenceLog(data=dataset, first="a_", second="b_", winner="label")         # columns a_0, a_1, ..., b_0, ...

    The round's two arms are the two items, in an order drawn from the seed. A learner that plays both is told who won;
    one that plays an item against itself hears a coin. `reward/mean` of a learner that puts its favourite first is how
    often people agree with it.

    Args:
        name, path, hub, data: which table: see `nbl.envs.tables.load`.
        first, second: a column of vectors each, or what the names of numeric columns begin with; the columns of both
            then end alike (a_0 and b_0), in any order.
        winner: a column, 1 where the first item won, 0 where the second, 1/2 for a draw; None: the first always.
        scale: divide all features by the average length of an item, so that lengths are about 1.
        repeat: begin again in a new order after the last row; else a round beyond it is an error.
        horizon: the rounds that will be played, to complain at once when there are too few rows.
        origin: where the data come from, for the message when they are not found.
        replicas: R.
        seed: of the first replica.
    """

    items: Tensor
    won: Tensor

    def __init__(
        self,
        name: str | None = None,
        path: str | os.PathLike[str] | None = None,
        hub: Hub | None = None,
        data: Any = None,
        first: str = "chosen",
        second: str = "rejected",
        winner: str | None = None,
        scale: bool = True,
        repeat: bool = False,
        horizon: int | None = None,
        origin: str | None = None,
        replicas: int = 1,
        seed: int = 0,
    ) -> None:
        source, columns = read(name, path, hub, data, first, origin)
        names = _sides(source, columns, first, second, winner)
        used = [*names[0], *names[1], *([winner] if winner else [])]
        readable(source, {key: columns[key] for key in used if key in columns}, used)
        sides = [_vectors(source, columns, side) for side in names]
        shapes = [side.shape for side in sides]
        if shapes[0] != shapes[1] or not sides[0].size:
            raise NblError(
                f"{source}: {first!r} is {shapes[0]}, {second!r} {shapes[1]}; need one as long as the other."
            )
        items = np.stack(sides, 1)  # (N, 2, d)
        won = np.ones(len(items)) if winner is None else _winners(source, columns, winner)
        if won.shape != (len(items),):
            raise NblError(
                f"{source}: {winner!r} is of shape {won.shape}; need one number for each of {len(items)} rows."
            )
        if not ((won >= 0) & (won <= 1)).all():
            raise NblError(_winner(source, winner))
        if horizon is not None and horizon > len(items) and not repeat:
            raise NblError(self._too_few(source, len(items), f"horizon={horizon}"))
        super().__init__(2, items.shape[2], 0.0, replicas, seed)
        self.source, self.rows, self.repeat = source, len(items), repeat
        with np.errstate(over="ignore"):
            size = float(np.linalg.norm(items, axis=-1).mean()) if scale else 1.0
        scaled = torch.from_numpy(items / (size or 1.0)).float()
        if not (math.isfinite(size) and bool(scaled.isfinite().all())):
            raise NblError(f"{source}: features go up to {np.abs(items).max():.1e}, too large for 32 bits. Scale them.")
        self.register_buffer("items", scaled, persistent=False)
        self.register_buffer("won", torch.tensor(won, dtype=torch.float64), persistent=False)
        self._order = (-1, torch.empty(0))  # of a pass over the rows, (R, N)
        self._row = torch.zeros(replicas, dtype=torch.int64)  # of the open round
        self._swapped = torch.zeros(replicas, dtype=torch.bool)  # whether its first item is arm 1

    def draw(self, t: int) -> Tensor:
        again, place = divmod(t - 1, self.rows)
        if again and not self.repeat:
            raise NblError(self._too_few(self.source, self.rows, f"round {t}"))
        if self._order[0] != again:
            draws = (Streams((seed,), "environment").uniform("order", again, (self.rows,))[0] for seed in self.seeds)
            self._order = (again, torch.stack([draw.argsort(stable=True) for draw in draws]).to(self.device))
        self._row = self._order[1][:, place]
        self._swapped = self.streams.uniform("swap", t, (), self.device) < 0.5
        x = self.items[self._row].double()
        return torch.where(self._swapped[:, None, None], x.flip(1), x)

    def mean(self, contexts: Tensor) -> Tensor:
        """Whether the item won: all that is known of its utility.    (R, 2, d) -> (R, 2)"""
        won = torch.stack([self.won[self._row], 1.0 - self.won[self._row]], -1)
        return torch.where(self._swapped[:, None], won.flip(1), won)

    def pull(self, arms: Tensor) -> Feedback:
        """What the log says; a coin where the two arms are one.    (R, 2) -> Feedback without regret"""
        coin = (self.streams.uniform("duel", self.t, (), self.device) < 0.5).double()
        won = self._played(arms)[:, 0]
        return Feedback(reward=torch.where(arms[:, 0] == arms[:, 1], coin, won))

    @staticmethod
    def _too_few(source: str, rows: int, what: str) -> str:
        return f"{what}, but {source} has {rows} comparisons, one a round. Play fewer, or say env.repeat=true."


def _sides(
    source: str, columns: Mapping[str, Any], first: str, second: str, winner: str | None
) -> tuple[list[str], list[str]]:
    """The columns of the two items: one of vectors, or numeric ones whose names begin so, the same feature at the same
    place.
    """
    found = []
    for side in (first, second):
        names = [side] if side in columns else [name for name in columns if name.startswith(side) and name != winner]
        if not names:
            known = ", ".join(list(columns)[:40])
            raise NblError(f"{source}: no column is or begins with {side!r}; there are {known}.")
        found.append(names)
    one, other = found
    if both := sorted(set(one) & set(other)):
        raise NblError(
            f"{source}: {first!r} and {second!r} share the columns {', '.join(both[:5])}: say which is whose."
        )
    if first in columns or second in columns:
        return one, other
    ends, theirs = ([name[len(side) :] for name in names] for side, names in zip((first, second), found, strict=True))
    if apart := sorted(set(ends) ^ set(theirs)):
        raise NblError(
            f"{source}: only one of {first!r} and {second!r} has columns that end in "
            f"{', '.join(map(repr, apart[:5]))}; both items need the same features."
        )
    return one, [second + end for end in ends]


def _vectors(source: str, columns: Mapping[str, Any], names: list[str]) -> np.ndarray[Any, Any]:
    """-> (N, d)"""
    return np.concatenate([_column(source, columns, name).reshape(len(columns[name]), -1) for name in names], 1)


def _winners(source: str, columns: Mapping[str, Any], winner: str) -> np.ndarray[Any, Any]:
    """-> (N,)"""
    if isinstance(columns.get(winner), Letters):
        raise NblError(_winner(source, winner) + " It is text: turn it into such numbers first.")
    won = _column(source, columns, winner)
    return won[:, 0] if won.ndim == 2 and won.shape[1] == 1 else won


def _winner(source: str, winner: str | None) -> str:
    return f"{source}: {winner!r} is 1 where the first item won, 0 where the second, 1/2 for a draw."


def _column(source: str, columns: Mapping[str, Any], name: str) -> np.ndarray[Any, Any]:
    if name not in columns:
        raise NblError(f"{source}: there is no column {name!r}; there are {', '.join(list(columns)[:40])}.")
    column = columns[name]
    if isinstance(column, Letters):
        raise NblError(f"{source}: {name!r} is text. Embed it first: a column of vectors, or one column a number.")
    values = np.asarray(column, dtype=np.float64)
    if not np.isfinite(values).all():
        raise NblError(f"{source}: {name!r} has {int((~np.isfinite(values)).sum())} values that are not numbers.")
    return values
