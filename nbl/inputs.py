"""What a user may give to `act` and `observe`: any clear shape in, (R, q, ...) out, or an error that says what to do.

Values are checked on the host, before a transfer; what is on another device already is not waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nbl.types import NblError
from nbl.values import as_numbers, finite


def contexts(
    given: Any, verb: str, replicas: int, dim: int, dtype: torch.dtype, fixed: int | None, blocks: int | None
) -> Tensor:
    """`fixed` is K where it may not change.    (R, K, d), (K, d) for all, or (n, K, d) for one -> (R, q, K, d)"""
    x = as_numbers(given, f"{verb}: contexts")
    length = dim if blocks is None else dim // blocks + 1
    if x.ndim not in (2, 3) or x.shape[-1] != length:
        raise NblError(
            f"{verb}: contexts have shape {tuple(x.shape)}; need ({replicas}, arms, {length}), "
            f"or (arms, {length}) for the same arms in every replica"
            + ("." if blocks is None else f": x and the number of its block, 0 to {blocks - 1}.")
        )
    if x.shape[-2] == 0 or x.shape[0] == 0:
        raise NblError(f"{verb}: contexts have shape {tuple(x.shape)}: there must be at least one arm to choose from.")
    if fixed is not None and x.shape[-2] != fixed:
        raise NblError(f"{verb}: {x.shape[-2]} arms, but this policy was built for {fixed} fixed ones.")
    if x.ndim == 2:
        x = x.expand(replicas, 1, *x.shape)
    elif replicas == 1:
        x = x.unsqueeze(0)
    elif x.shape[0] == replicas:
        x = x.unsqueeze(1)
    else:
        raise NblError(f"{verb}: {x.shape[0]} sets of arms for {replicas} replicas; give one each, or one for all.")
    raw, x = x, x if x.dtype == dtype else x.to(dtype)
    if x.device.type == "cpu" and not finite(x):
        r, q, k, d = (~x.isfinite()).nonzero()[0].tolist()
        raise NblError(
            f"{verb}: contexts hold {float(raw[r, q, k, d])} at replica {r}, arm {k}, feature {d}"
            + (f" of question {q}" if x.shape[1] > 1 else "")
            + ". Clean or impute the features first."
        )
    if blocks is not None and x.device.type == "cpu":
        k = x[..., -1]
        if not torch.equal(k, k.round().clamp(0, blocks - 1)):
            raise NblError(
                f"{verb}: the last number of a context is its block, 0 to {blocks - 1}; here they go from "
                f"{float(k.min()):g} to {float(k.max()):g}."
            )
    return x


def mask(given: Any, shape: Sequence[int]) -> Tensor:
    """(K,) or (R q, K), True where an arm may be played.    -> (R, q, K)"""
    allowed = torch.as_tensor(given)
    R, q, K = shape
    shapes = {(K,), (R * q, K)}
    if allowed.dtype != torch.bool or tuple(allowed.shape) not in shapes:
        raise NblError(
            f"act: mask is {allowed.dtype} of shape {tuple(allowed.shape)}; "
            f"need bool, {' or '.join(map(str, sorted(shapes)))}."
        )
    allowed = allowed.expand(R * q, -1).view(R, q, K)
    if allowed.device.type == "cpu" and not bool(allowed.any(-1).all()):
        raise NblError("act: the mask leaves no arm to play in at least one replica.")
    return allowed


def row(given: Any, shape: tuple[int, ...], name: str, fill: bool = False) -> Tensor:
    """One number (two arms in a duel) for each decision; `fill`: one may do for all.    -> (R, q) or (R, q, 2)"""
    found, need = as_numbers(given, f"observe: {name}"), (shape[0] * shape[1], *shape[2:])
    if found.numel() == 1 and len(shape) == 2 and (fill or need == (1,)):
        return found.reshape(1, 1).expand(shape)
    if tuple(found.shape) not in (need, need[1:] if need[0] == 1 and len(need) == 2 else need):
        each = "two for each decision in a duel" if len(shape) == 3 else "one for each decision"
        raise NblError(f"observe: {name} has shape {tuple(found.shape)}; need {need}, {each}.")
    return found.reshape(shape)


def arms(given: Any, shape: tuple[int, ...], K: int) -> Tensor:
    """What was played, of K arms.    -> (R, q) or (R, q, 2)"""
    found = as_numbers(given, "observe: arms")
    if found.is_floating_point() or found.dtype == torch.bool:
        raise NblError(f"observe: arms are whole numbers from 0 to {K - 1}, not {found.dtype}.")
    played = row(found, shape, "arms").long()
    if played.device.type == "cpu":
        least, most = (end.item() for end in played.aminmax())
        if least < 0 or most >= K:
            raise NblError(f"observe: arm {least if least < 0 else most} is not one of 0 to {K - 1}.")
    return played


def check(reward: Tensor, weights: Sequence[Tensor], duel: bool, coin: str | None) -> None:
    """Finite rewards, from 0 to 1 in a duel and for a `coin`, the algorithm whose likelihood is one's; weights >= 0."""
    if reward.device.type == "cpu" and not finite(reward):
        r = int((~reward.isfinite()).nonzero()[0, 0])
        raise NblError(
            f"observe: reward of replica {r} is {float(reward[~reward.isfinite()][0])}. Drop or repair it first."
        )
    if (duel or coin) and reward.device.type == "cpu" and bool((outside := (reward < 0) | (reward > 1)).any()):
        value, r = float(reward[outside][0]), int(outside.nonzero()[0, 0])
        if duel:
            raise NblError(f"observe: in a duel the feedback is 1 where the first arm won and 0 else, not {value:g}.")
        raise NblError(
            f"observe: reward of replica {r} is {value:g}, but {coin} is for rewards from 0 to 1 (a coin's "
            "likelihood). Scale them, or take an algorithm for real rewards, such as NeuralUCB."
        )
    for weight in weights:
        if weight.device.type == "cpu" and not bool(((weight >= 0) & weight.isfinite()).all()):
            raise NblError(f"observe: weight is {float(weight.min())}; need finite numbers, 0 or more.")
