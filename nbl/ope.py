"""Off-policy estimates: what a policy would have earned, from a log of another one.

    IPS     mean of w r                                   Horvitz and Thompson; unbiased
    SNIPS   sum w r / sum w                               self-normalised (Swaminathan and Joachims 2015)
    DR      mean of q(x, pi) + w (r - q(x, a))            doubly robust (Dudik, Langford, Li 2011)

with w = pi(a | x) / propensity, the new policy's probability of the logged arm over the logging policy's, and q a
model of the reward. Intervals are normal approximations (SNIPS by the delta method): right for many events, too narrow
where a handful of large weights or of clicks decides. `effective` says how many events the weights are worth. Where all
events that count earned the same, a log without clicks say, they have no spread to show, and the interval is at least
that of a coin (Clopper and Pearson) over the range of the rewards, 0 and 1 included, thrown `effective` times.

    log = OpenBandit(alternatives=None)
    estimates = evaluate(log, policy)                     # {"ips": Estimate, "snips": ..., "dr": ...}
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from scipy.special import ndtri
from torch import Tensor

from nbl.envs.log_columns import check_propensity
from nbl.envs.logged import Logged
from nbl.types import NblError
from nbl.values import as_numbers


class Estimate(NamedTuple):
    """A mean reward with its interval; `effective` is (sum w)^2 / sum w^2."""

    value: float
    low: float
    high: float
    effective: float


def ips(reward: Any, propensity: Any, target: Any, level: float = 0.95) -> Estimate:
    """Inverse propensity scoring.    (N,) each; `target` is pi(a | x) of the logged arm"""
    r, w = _inputs(reward, propensity, target)
    return _widened(_mean(w * r, w, level), r, w, level)


def snips(reward: Any, propensity: Any, target: Any, level: float = 0.95) -> Estimate:
    """Self-normalised: small bias, less variance, and never outside the range of the rewards.    (N,) each"""
    r, w = _inputs(reward, propensity, target)
    if not float(w.sum()) > 0:
        raise NblError("snips: the policy never plays what was logged: there is nothing to estimate from.")
    value = float((w * r).sum() / w.sum())
    found = _mean((w * (r - value)) / w.mean(), w, level)
    low, high = _blind(r, w, level) or (value + found.low, value + found.high)
    return Estimate(value, low, high, found.effective)


def dr(reward: Any, propensity: Any, target: Any, model: Any, logged: Any, level: float = 0.95) -> Estimate:
    """Doubly robust: right where the propensities are, and where the model is.

    Args:
        reward, propensity: (N,).
        target: pi(k | x) of every arm, (N, K).
        model: q(x, k), the modelled reward of every arm, (N, K); from other data than these, or it flatters itself.
        logged: the arm that was played, (N,).
        level: of the interval.
    """
    chance, q, arms = (as_numbers(part, "dr") for part in (target, model, logged))
    if chance.ndim != 2 or chance.shape != q.shape or arms.shape != chance.shape[:1]:
        raise NblError(
            f"dr: target is {tuple(chance.shape)}, model {tuple(q.shape)}, logged {tuple(arms.shape)}; need "
            "(N, K), (N, K) and (N,)."
        )
    index = arms.long()[:, None]
    if not bool(((index >= 0) & (index < chance.shape[1])).all()) or not bool((arms == arms.long()).all()):
        raise NblError(f"dr: logged arms must be whole numbers, 0 to {chance.shape[1] - 1}.")
    if not bool(q.isfinite().all()):
        raise NblError(f"dr: {int((~q.isfinite()).sum())} of the model's rewards are not finite.")
    chance, q = chance.double(), q.double()
    sums = chance.sum(1)
    if not bool(((chance >= 0).all(1) & ((sums - 1).abs() < 1e-3)).all()):
        raise NblError(
            f"dr: the policy's probabilities must be at least 0 and add up to 1 in each event; they add up "
            f"to {float(sums.min()):.4g} in one event and to {float(sums.max()):.4g} in another."
        )
    r, w = _inputs(reward, propensity, chance.gather(1, index).squeeze(1))
    found = _mean((chance * q).sum(1) + w * (r - q.gather(1, index).squeeze(1)), w, level)
    return _widened(found, r, w, level)


@torch.no_grad()
def evaluate(log: Logged, policy: Any, model: Tensor | None = None, level: float = 0.95) -> dict[str, Estimate]:
    """The greedy policy of a trained module (one replica) on every event of a log.

    Args:
        log: with propensities.
        policy: a BanditModule with replicas=1; asked with `exploit=True`, it changes nothing.
        model: q, (N, K); None: the policy's own estimates of the means, where it has them.
        level: of the intervals.
    """
    if not isinstance(log, Logged):
        raise NblError(f"evaluate: need a log, for example LoggedReplay or OpenBandit, not {type(log).__name__}.")
    if not log.known:
        raise NblError(f"{log.source} has no propensities: off-policy estimates need them.")
    if not log.complete:
        raise NblError(
            f"{log.source} offers the logged arm and a few others, but its propensities are among all arms: estimates "
            "would be wrong by a factor. Offer all of them, alternatives=None."
        )
    if isinstance(policy, type) or not callable(getattr(policy, "act", None)):
        raise NblError(f"evaluate: the policy is {policy!r}; need a module of nbl.algorithms, or what acts like one.")
    if getattr(policy, "replicas", 1) != 1:
        raise NblError(f"evaluate: the policy has {policy.replicas} replicas; give it one, replicas=1.")
    if getattr(policy, "duel", False):
        raise NblError("evaluate: the policy plays pairs; a log tells what one arm earned.")
    arms, means = [], []
    for rows in torch.split(torch.arange(log.rows), 1000):
        decision = policy.act(log.event(rows), exploit=True)
        arms.append(decision.arms.cpu())
        means.append(None if decision.means is None else decision.means.double().cpu())
    target = torch.nn.functional.one_hot(torch.cat(arms), log.arms).double()
    logged, p = log.chosen, log.propensity
    hit = target.gather(1, logged[:, None]).squeeze(1)
    found = {"ips": ips(log.reward, p, hit, level)}
    if float(hit.sum()) > 0:
        found["snips"] = snips(log.reward, p, hit, level)
    if model is None and means[0] is not None:
        model = torch.cat([part for part in means if part is not None])
    if model is not None:
        found["dr"] = dr(log.reward, p, target, model, logged, level)
    return found


def _inputs(reward: Any, propensity: Any, target: Any) -> tuple[Tensor, Tensor]:
    """Rewards and weights, checked.    (N,) each"""
    r, p, chance = (as_numbers(part, "ope").double() for part in (reward, propensity, target))
    if r.ndim != 1 or not len(r) or not r.shape == p.shape == chance.shape:
        raise NblError(
            f"ope: reward {tuple(r.shape)}, propensity {tuple(p.shape)} and target {tuple(chance.shape)} must be (N,), "
            "one number an event."
        )
    if not bool(r.isfinite().all()):
        raise NblError(f"ope: {int((~r.isfinite()).sum())} rewards are not finite; drop or repair them first.")
    if not bool(((chance >= 0) & (chance <= 1)).all()):
        raise NblError("ope: the policy's probabilities must lie in [0, 1].")
    return r, chance / check_propensity(p, "ope")


def _blind(r: Tensor, w: Tensor, level: float) -> tuple[float, float] | None:
    """An interval for the mean reward where the events with a weight all earned the same; None where they differ."""
    seen, least, most = r[w > 0], min(0.0, float(r.min())), max(1.0, float(r.max()))
    if not len(seen):
        return least, most
    if bool((seen != seen[0]).any()):
        return None
    value = float(seen[0])
    n = float(w.sum()) ** 2 / float(w.square().sum())
    miss = 1 - ((1 - level) / 2) ** (1 / n)  # a coin that never fell otherwise in n throws
    return value - miss * (value - least), value + miss * (most - value)


def _widened(found: Estimate, r: Tensor, w: Tensor, level: float) -> Estimate:
    """The interval, at least as far to both sides as `_blind` reaches from the reward that all events earned."""
    blind = _blind(r, w, level)
    if blind is None:
        return found
    scale = float(w.mean())
    if not scale > 0:  # the policy never plays what was logged: it may earn anything
        return found._replace(low=min(found.low, blind[0]), high=max(found.high, blind[1]))
    value = float(r[w > 0][0])
    low, high = found.value - scale * (value - blind[0]), found.value + scale * (blind[1] - value)
    return found._replace(low=min(found.low, low), high=max(found.high, high))


def _mean(terms: Tensor, weights: Tensor, level: float) -> Estimate:
    if not isinstance(level, int | float) or not 0 < level < 1:
        raise NblError(f"level={level!r}: need a probability in (0, 1), for example 0.95.")
    n, mean = len(terms), float(terms.mean())
    half = float(ndtri(0.5 + level / 2)) * float(terms.std()) / math.sqrt(n) if n > 1 else math.inf
    squares = float(weights.square().sum())
    return Estimate(mean, mean - half, mean + half, float(weights.sum()) ** 2 / squares if squares else 0.0)
