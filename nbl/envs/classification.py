"""Classification as a bandit: a row is a round, a class is an arm, and a right guess pays 1.

The benchmark of NeuralTS (Zhang, Zhou, Li, Gu; arXiv:2010.00827, section 5) and of many after it. From a row x, arm k
gets the disjoint context (0, .., x, .., 0), x in block k of K: a model learns each class by its own weights. Regret
counts mistakes.

    Classification("mushroom", path="data/")                      # data/mushroom.parquet
    Classification(path="my.csv", target="label", encode="onehot", scale="standard")
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from nbl import blocks as disjoint
from nbl.envs import features
from nbl.envs.base import Environment
from nbl.envs.tables import Hub, load
from nbl.rng import Streams
from nbl.types import NblError


class Classification(Environment):
    """Rows of a table, in an order of its own for each seed.

    The table is held once, in float32 (float64 where it is scaled online), whatever the number of replicas; contexts
    are made for the open round alone. The default features are NeuralTS's: ordinal codes, rows of norm 1 (a row of
    zeros stays one).

    Args:
        name, path, hub, data, target, drop, missing, origin: which table: see `nbl.envs.tables.load`.
        encode: what letters become: ordinal, onehot, random.
        scale: none, minmax, standard (by columns), rows (each row to [-1, 1]).
        pca: the number of principal components to keep; None keeps the columns.
        unit: divide each row by its norm, last of all.
        pool: images become means over pool x pool squares.
        fit: `all` fits scale and PCA on the whole table; `online` on the rows that this seed has met, the present one
            included. The lists of classes and of a column's letters count as known in both.
        blocks: hand out (x, k) instead of (0, .., x, .., 0): d/K + 1 numbers an arm instead of d. The policy must be
            built with blocks=K (recipes do it by themselves); it plays the same arms.
        repeat: when all rows were played, shuffle anew and go on; else a round beyond the last row is an error.
        noise: standard deviation of Gaussian noise on the reward, 0 in the papers.
        horizon: the rounds that will be played, to complain at once when there are too few rows.
        replicas: R.
        seed: of the first replica.
    """

    table: Tensor
    labels: Tensor
    order: Tensor

    def __init__(
        self,
        name: str | None = None,
        path: str | os.PathLike[str] | None = None,
        hub: Hub | None = None,
        data: Any = None,
        target: str | None = "label",
        drop: Sequence[str] = (),
        missing: str = "error",
        origin: str | None = None,
        encode: str = "ordinal",
        scale: str = "none",
        pca: int | None = None,
        unit: bool = True,
        pool: int = 1,
        fit: str = "all",
        blocks: bool = False,
        repeat: bool = False,
        noise: float = 0.0,
        horizon: int | None = None,
        replicas: int = 1,
        seed: int = 0,
    ) -> None:
        for key, value, known in (
            ("encode", encode, features.ENCODE),
            ("scale", scale, features.SCALE),
            ("fit", fit, ("all", "online")),
        ):
            if value not in known:
                raise NblError(f"{key}={value!r}: choose one of {', '.join(known)}.")
        for key, number in (("pca", 1 if pca is None else pca), ("pool", pool)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise NblError(f"{key}={number!r}: need a whole number, at least 1.")
        found = load(name, path, hub, data, target, drop, missing, origin)
        later = fit == "online" and (scale in ("minmax", "standard") or pca is not None)
        table = features.matrix(found.columns, encode, scale, pool, later)
        rows, wide = table.shape
        if pca is not None and pca > min(rows - 1, wide):
            raise NblError(f"pca={pca}: {found.source} has {rows} rows of {wide} features; take fewer components.")
        if pca is not None and not later:
            table = features.project(table, pca)
        self.rows, self.classes, self.source = rows, found.classes, found.source
        self.features = wide if pca is None else pca  # the length of a row; a context is K of them
        super().__init__(len(found.classes), len(found.classes) * self.features, noise, replicas, seed)
        self.unit, self.repeat, self.blocks = unit, repeat, self.arms if blocks else None
        if horizon is not None and horizon > rows and not repeat:
            raise NblError(self._too_few(f"horizon={horizon}"))
        self._running = features.Running(scale, pca) if later else None
        self._drawn: Tensor | None = None  # the rows drawn last
        self._pass = (0, torch.empty(0))  # the order of a later pass, when rows are played again
        self._print = zlib.crc32(found.labels.tobytes())
        self.register_buffer("table", table, persistent=False)  # functions of the data and the seed: not state
        self.register_buffer("labels", torch.from_numpy(found.labels), persistent=False)
        self.register_buffer("order", self._shuffled(0), persistent=False)

    def draw(self, t: int) -> Tensor:
        contexts = disjoint.join(self.row(t), self.arms)
        return contexts if self.blocks else disjoint.written(contexts, self.arms)

    def row(self, t: int) -> Tensor:
        """The features of round t, without the zeros around them.    -> (R, d / K) float64"""
        again, place = divmod(t - 1, self.rows)
        if again and not self.repeat:
            raise NblError(self._too_few(f"round {t}"))
        if again and self._pass[0] != again:
            self._pass = (again, self._shuffled(again).to(self.device))
        self._drawn = (self._pass[1] if again else self.order)[:, place].long()
        x = self.table[self._drawn].double()
        if self._running is not None:
            x = self._running(self.table, self.order, min(t, self.rows), x)
        if self.unit:
            norm = x.square().sum(-1, keepdim=True).sqrt()
            x = x / norm.where(norm > 0, 1.0)
        return x

    def mean(self, contexts: Tensor) -> Tensor:
        """1 for the class of the row drawn last: a context does not tell it.    (R, K, d) -> (R, K)"""
        assert self._drawn is not None
        return one_hot(self.labels[self._drawn], self.arms).double()

    def _shuffled(self, again: int) -> Tensor:
        """An order of the rows for each seed and pass, drawn seed by seed to spare memory.    -> (R, N) int32"""
        draws = (Streams((seed,), "environment").uniform("order", again, (self.rows,))[0] for seed in self.seeds)
        return torch.stack([draw.argsort(stable=True).int() for draw in draws])

    def _too_few(self, what: str) -> str:
        return (
            f"{what}, but {self.source} has {self.rows} rows, one a round. Play horizon={self.rows} or fewer, or let "
            "the rows come again in a new order: env.repeat=true."
        )

    def get_extra_state(self) -> dict[str, int]:
        return {**super().get_extra_state(), "rows": self.rows, "labels": self._print}

    def set_extra_state(self, state: dict[str, int]) -> None:
        if (state["rows"], state["labels"]) != (self.rows, self._print):
            raise NblError(
                f"{self.source} is not the table that this run began with, which had {state['rows']} rows: this one "
                f"has {self.rows}, or other classes. Give the same file again."
            )
        super().set_extra_state(state)
