"""The Open Bandit Dataset as logged replay (Saito, Aihara, Matsutani, Narita; arXiv:2008.07146).

Prepared as in appendix J.1 of arXiv:2505.02069: in each event the learner chooses among the logged item and the four
others of highest user-item affinity, and gets feedback where it chooses the logged one. From the paper: user categories
one-hot and compressed to 16 numbers, item categories to 8, both by truncated SVD; the display position; the affinity,
log-transformed and scaled to [-1, 1]; and user features times affinity. So d = 16 + 8 + 1 + 1 + 16 = 42.

Our choices: ties in affinity (most are 0) are broken at random, once for the log; the arms of an event are in
random order; the item's one number is standardised and goes into its SVD; the SVDs are fitted on the whole log,
without rewards.

The reduced set is made from the logged item, so that a learner who recognises the item that is *not* among the most
affine can match more often than one time in five: replay on it ranks policies by clicks on what they match, and is no
unbiased estimate for the site. `alternatives=null` offers all 80 items: for `nbl.ope`, and fewer matches.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nbl.envs import tables
from nbl.envs.columns import Array, Letters, readable
from nbl.envs.log_columns import log_scaled, need, numbers, read
from nbl.envs.logged import Logged
from nbl.rng import Streams
from nbl.types import NblError
from nbl.values import whole

AFFINITY = "user-item_affinity_"


class OpenBandit(Logged):
    """Open Bandit, from `NAME.parquet` and `NAME_item_context.parquet` in one folder.

    Args:
        name: obd_random_all or obd_bts_all.
        path: the folder; None: $NBL_DATA_DIR.
        alternatives: items offered beside the logged one; None: all of them.
        user_dim, item_dim: of the compressed features.
        accept, repeat, replicas, seed: see `Logged`.
    """

    users: Tensor
    items: Tensor
    affinity: Tensor
    position: Tensor
    offered: Tensor

    def __init__(
        self,
        name: str = "obd_random_all",
        path: str | os.PathLike[str] | None = None,
        alternatives: int | None = 4,
        user_dim: int = 16,
        item_dim: int = 8,
        accept: str = "match",
        repeat: bool = False,
        replicas: int = 1,
        seed: int = 0,
    ) -> None:
        for key, value in {"user_dim": user_dim, "item_dim": item_dim, "alternatives": alternatives or 1}.items():
            if not whole(value, 1):
                raise NblError(f"OpenBandit({key}={value!r}): need a whole number, at least 1.")
        where = path or os.environ.get(tables.FOLDER)
        if where is not None and not Path(where).expanduser().is_dir():
            raise NblError(f"env.path={where}: need the folder that holds {name}.parquet and its item context.")
        source, log = read(name, path, None, None, "item_id", _ORIGIN)
        _, context = read(f"{name}_item_context", path, None, None, "item_id", _ORIGIN)
        readable(source, {**log, **context})
        for column in ("item_id", "position", "click", "propensity_score"):
            need(log, column, source)
        ids = numbers(context.pop("item_id"), "item_id", f"{source}, item context").long()
        affinity = np.stack([_column(log, f"{AFFINITY}{i}", source) for i in ids.tolist()], 1)
        place = {int(item): at for at, item in enumerate(ids.tolist())}
        logged = numbers(log["item_id"], "item_id", source).long().tolist()
        if strange := sorted(set(logged) - set(place)):
            raise NblError(f"{source}: items {strange[:5]} are not in its item context. Are both of the same policy?")
        item = np.array([place[i] for i in logged])
        offered, chosen = _offer(affinity, item, alternatives)
        users = compress({key: column for key, column in log.items() if key.startswith("user_feature")}, user_dim)
        items = compress(context, item_dim)
        options: dict[str, Any] = {
            "accept": accept,
            "repeat": repeat,
            "source": source,
            "replicas": replicas,
            "seed": seed,
        }
        dim = 2 * users.shape[1] + items.shape[1] + 2
        super().__init__(
            torch.from_numpy(chosen),
            numbers(log["click"], "click", source),
            numbers(log["propensity_score"], "propensity_score", source),
            offered.shape[1],
            dim,
            **options,
        )
        self.complete = alternatives is None
        position = numbers(log["position"], "position", source)
        spread = float(position.max() - position.min()) or 1.0
        parts = {
            "users": users,
            "items": items,
            "affinity": torch.from_numpy(log_scaled(affinity)),
            "position": 2 * (position - position.min()) / spread - 1,
            "offered": torch.from_numpy(offered),
        }
        for key, part in parts.items():
            self.register_buffer(key, part, persistent=False)

    def event(self, rows: Tensor) -> Tensor:
        offered = self.offered[rows]
        user = self.users[rows][:, None].expand(-1, offered.shape[1], -1)
        affinity = self.affinity[rows].gather(1, offered)[..., None]
        position = self.position[rows][:, None, None].expand_as(affinity)
        return torch.cat([user, self.items[offered], position, affinity, user * affinity], -1)


_ORIGIN = "Open Bandit Dataset, small version, https://research.zozo.com/data.html or the package obp"


def _column(log: dict[str, Array | Letters], name: str, source: str) -> Array:
    need(log, name, source)
    found: Array = numbers(log[name], name, source).numpy()
    return found


def _offer(affinity: Array, item: Array, alternatives: int | None) -> tuple[Array, Array]:
    """The items offered in each event, in random order, and where among them the logged one is.    (N, K), (N,)"""
    n, K = affinity.shape
    if alternatives is not None and alternatives >= K:
        raise NblError(f"alternatives={alternatives}: there are {K - 1} other items.")
    draws = Streams((0,), "open bandit")
    if alternatives is None:
        offered = np.broadcast_to(np.arange(K), (n, K)).copy()
    else:
        ties = draws.uniform("ties", 0, (n, K))[0].numpy()
        ranked = np.lexsort((ties, -affinity), axis=1)  # by affinity, then at random
        others = ranked[ranked != item[:, None]].reshape(n, K - 1)[:, :alternatives]
        offered = np.concatenate([item[:, None], others], 1)
        shuffle = draws.uniform("order", 0, offered.shape)[0].numpy().argsort(1)
        offered = np.take_along_axis(offered, shuffle, 1)
    return offered, (offered == item[:, None]).argmax(1)


def compress(columns: dict[str, Any], size: int) -> Tensor:
    """Letters one-hot, numbers standardised, then the leading singular directions (not centred).    -> (N, size)"""
    blocks = []
    for column in columns.values():
        if isinstance(column, Letters):
            blocks.append(np.eye(len(column.values))[column.codes])
        else:
            sd = float(column.std()) or 1.0
            blocks.append(((column - column.mean()) / sd)[:, None])
    if not blocks:
        raise NblError("there are no user or item features in the log.")
    matrix = torch.from_numpy(np.concatenate(blocks, 1).astype(np.float64))
    if size > min(matrix.shape):
        raise NblError(f"{size} dimensions of a table of {tuple(matrix.shape)}; take fewer (user_dim, item_dim).")
    values, vectors = torch.linalg.eigh(matrix.T @ matrix)
    leading = vectors[:, values.argsort(descending=True)[:size]]
    sign = leading.gather(0, leading.abs().argmax(0, keepdim=True)).sign()  # so that every machine agrees
    compressed: Tensor = matrix @ (leading * sign)
    return compressed
