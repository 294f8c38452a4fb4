"""Kernel bandits: KernelUCB and KernelTS, with the RBF, the linear and the neural tangent kernel.

KernelUCB   Valko et al. 2013; Chowdhury and Gopalan 2017 (IGP-UCB)
KernelTS    Chowdhury and Gopalan 2017 (GP-TS)
NTKUCB, NTKTS: the same two with kernel={"kind": "ntk"}, what NeuralUCB and NeuralTS are at infinite width.

paper      here            meaning
k          self.k          kernel
K_t        self.design     kernel matrix of what was played, as the inverse Cholesky factor of lam I + K_t
mu_t       mean            k_t(x)^T (lam I + K_t)^-1 y
sigma_t    width           sqrt((k(x, x) - k_t(x)^T (lam I + K_t)^-1 k_t(x)) / lam); Valko et al.'s, with the 1/lam
nu, v_t    self.nu         exploration, a constant

A round costs O(t^2), so the NeuralTS paper stops training at t = 1000 and goes on acting (its section 5): `keep`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nbl import explore, ntk
from nbl.design import Dual, exact
from nbl.gradient import Gradient
from nbl.history import take
from nbl.module import BanditModule, Score, Weight
from nbl.types import NblError
from nbl.values import simple, whole

Kernel = Callable[[Tensor, Tensor], Tensor]  # (..., n, d), (..., n', d) -> (..., n, n')


def rbf(x: Tensor, y: Tensor, bandwidth: float = 1.0) -> Tensor:
    """exp(-|x - y|^2 / (2 bandwidth^2))"""
    squared = x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2) - 2.0 * x @ y.mT
    return (squared.clamp_min(0.0) / (-2.0 * bandwidth**2)).exp()


def linear(x: Tensor, y: Tensor) -> Tensor:
    """x.y"""
    return x @ y.mT


def build(options: dict[str, Any] | None) -> Kernel:
    """`kernel={"kind": "rbf", "bandwidth": 1.0}`, linear, or ntk and zhou with `depth` and `power`."""
    given = simple({"kind": "rbf", **(options or {})})
    kind = given.pop("kind")
    known = {"rbf": ("bandwidth",), "linear": (), "ntk": ("depth", "power"), "zhou": ("depth",)}
    if kind not in known:
        raise NblError(f"kernel.kind={kind!r}: choose one of {', '.join(known)}.")
    if unknown := sorted(set(given) - set(known[kind])):
        raise NblError(f"kernel {kind} has no option {', '.join(unknown)}; it has {', '.join(known[kind]) or 'none'}.")
    if kind == "rbf":
        bandwidth = given.get("bandwidth", 1.0)
        if not (isinstance(bandwidth, int | float) and bandwidth > 0):
            raise NblError(f"kernel.bandwidth={bandwidth!r}: need a positive number, for example 1.0.")
        return partial(rbf, bandwidth=float(bandwidth))
    if kind == "linear":
        return linear
    ntk.check(kind, given.get("depth", 2), given.get("power", 1))
    return partial(ntk.kernel, kind=kind, **given)


class Points(Gradient):
    """Points as features in the kernel's space: never written out, their inner products are the kernel."""

    def __init__(self, x: Tensor, k: Kernel) -> None:
        super().__init__([(x, None)])
        self.k = k

    def gram(self, other: Gradient) -> Tensor:
        return self.k(self.layers[0][0], other.layers[0][0])

    def square(self) -> Tensor:
        x = self.layers[0][0].unsqueeze(-2)
        return self.k(x, x)[..., 0, 0]

    def map(self, f: Callable[[Tensor], Tensor]) -> Points:
        return Points(f(self.layers[0][0]), self.k)


class Ridge(Dual):
    """Kernel ridge regression: the Dual confidence matrix, and beside it L^-1 D^1/2 y, which grows with it."""

    def __init__(self, replicas: int, lam: float, k: Kernel) -> None:
        super().__init__(replicas, 0, lam)
        self.k = k
        self.register_buffer("targets", torch.zeros(replicas, 0, dtype=torch.float64))  # D^1/2 y
        self.register_buffer("whitened", torch.zeros(replicas, 0, dtype=torch.float64))  # L^-1 D^1/2 y
        self.growing.update(targets=(1,), whitened=(1,))

    targets: Tensor
    whitened: Tensor

    def played(self) -> Points:
        return Points(super().played().layers[0][0], self.k)

    @torch.no_grad()
    def tell(self, g: Gradient, y: Tensor, weight: Tensor) -> None:
        """Take in n targets.    (R, n, p), (R, n), (R, n)"""
        for i in range(g.points):
            self.update(g.point(i), weight[:, i : i + 1])
            at = self.n - 1
            self.targets[:, at] = self.roots[:, at] * y[:, i].double()
            self.whitened[:, at] = (self.factor[:, at, : self.n] * self.targets[:, : self.n]).sum(-1)

    @torch.no_grad()
    def estimate(self, g: Gradient) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, width, and L^-1 D^1/2 k (in columns), from which covariances are made.    (R, m, p)"""
        with exact(self.gain):
            g = g.double()
            z = self.project(g) if self.n else self.factor.new_zeros(self.replicas, 0, g.points)  # (R, n, m)
            mean = torch.bmm(self.whitened[:, None, : self.n], z).squeeze(1)
            return mean, ((g.square() - z.square().sum(1)).clamp_min(0.0) / self.lam).sqrt(), z


class KernelBandit(BanditModule):
    """Kernel ridge regression on everything played.

    Args:
        kernel: rbf (with `bandwidth`), linear, ntk (with `depth` and `power`) or zhou (with `depth`): {"kind": "rbf"}.
        nu: how much to explore.
        lam: lambda, the ridge.
        keep: learn from the first so many observations only; None is all.
        **problem: dim, arms, replicas, seed, horizon, fixed_arms: see `BanditModule`.
    """

    def __init__(
        self,
        dim: int,
        *,
        kernel: dict[str, Any] | None = None,
        nu: float = 1.0,
        lam: float = 1.0,
        keep: int | None = None,
        **problem: Any,
    ) -> None:
        super().__init__(dim, **problem)
        if not nu >= 0:
            raise NblError(f"{type(self).__name__}(nu={nu!r}): need a number, 0 (greedy) or more.")
        if keep is not None and not whole(keep, 1):
            raise NblError(f"{type(self).__name__}(keep={keep!r}): need a whole number, or None for all.")
        self.k, self.nu, self.lam, self.keep = build(kernel), float(nu), float(lam), keep
        self.design = Ridge(self.replicas, lam, self.k)
        self.design.most = min((n for n in (keep, self.horizon) if n is not None), default=None)

    def points(self, x: Tensor) -> Points:
        """(R, n, d) -> features of (R, n, infinity)"""
        return Points(x, self.k)

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        room = arms.shape[1] if self.keep is None else min(arms.shape[1], self.keep - self.design.n)
        played = self.points(take(contexts, arms)[:, :room])
        self.design.tell(played, reward, weight.loss)  # K_t is the loss's own matrix

    def forget(self) -> None:
        self.design.reset()

    def logdet(self) -> Tensor:
        """log det(I + K_t / lam), the information gain.    -> (R,)"""
        return self.design.logdet()

    def diagnostics(self) -> dict[str, Tensor]:
        return {"design/logdet": self.logdet()}


class KernelUCB(KernelBandit):
    """Plays argmax mu(x) + nu sigma(x)."""

    def score(self, contexts: Tensor) -> Score:
        shape = contexts.shape[:3]
        mean, width, _ = self.design.estimate(self.points(contexts.flatten(1, 2)))
        mean, width = mean.view(shape), width.view(shape)
        return Score(explore.ucb(mean, width, self.nu), mean, width)


class KernelTS(KernelBandit):
    """Plays argmax of one draw from the posterior, N(mu, nu^2 lam sigma(x, x')), joint over the arms."""

    randomised = True

    def score(self, contexts: Tensor) -> Score:
        R, q, K, _ = contexts.shape
        mean, width, z = self.design.estimate(self.points(contexts.flatten(1, 2)))
        x, z = contexts.double(), z.mT.reshape(R, q, K, -1)
        values, vectors = torch.linalg.eigh(self.k(x, x) - z @ z.mT)  # lam sigma(x, x')        (R, q, K, K)
        noise = self.normal("thompson", (q, K)).double()  # one draw a question
        spread = torch.einsum("rqij,rqj->rqi", vectors, values.clamp_min(0.0).sqrt() * noise)
        mean, sigma = mean.view(R, q, K), self.lam**0.5 * width.view(R, q, K)
        return Score(mean + self.nu * spread, mean, sigma)
