"""Synthetic problems with numeric contexts, as three papers define them.

    Linear, Logistic, Distance, Quadratic   arXiv:2510.10730 (ensemble sampling): arms fixed, K=50, d=20, noise 0.5
    GcbH1, GcbH2, GcbH3                     the paper of NeuralGCB: fresh contexts, K=4, d=10, noise 0.1
    ZhouH1, ZhouH2, ZhouH3                  arXiv:1911.04462 (NeuralUCB): fresh contexts, K=4, d=20, noise 1

A problem's parameters (theta*, a, A and the fixed arms) are drawn once a seed, as float64 buffers: every algorithm with
that seed meets the same problem. Noise is Gaussian, `noise` its standard deviation.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from nbl.envs.base import Environment
from nbl.rng import Streams


def length(x: Tensor) -> Tensor:
    """Euclidean norm along the last axis.    (..., d) -> (...)"""
    return x.square().sum(-1).sqrt()


def sphere(streams: Streams, purpose: str, t: int, *shape: int, device: torch.device | str = "cpu") -> Tensor:
    """Uniform on the unit sphere: a standard normal, normalised.    -> (R, *shape), norm 1 along the last axis"""
    x = streams.normal(purpose, t, shape, device)
    return x / length(x)[..., None]


def ball(streams: Streams, purpose: str, t: int, dim: int) -> Tensor:
    """Uniform in the unit ball: a uniform direction, and a radius with P(radius < r) = r^d.    -> (R, d)"""
    return sphere(streams, purpose, t, dim) * streams.uniform(f"{purpose}/radius", t, (1,)) ** (1 / dim)


def dot(x: Tensor, a: Tensor) -> Tensor:
    """x'a for each arm.    (R, K, d), (R, d) -> (R, K)"""
    return (x * a[:, None]).sum(-1)


class Problem(Environment):
    """An environment with parameters, drawn once: what `problem` returns becomes buffers of those names."""

    def __init__(self, arms: int, dim: int, noise: float, replicas: int = 1, seed: int = 0) -> None:
        super().__init__(arms, dim, noise, replicas, seed)
        for name, value in self.problem().items():
            self.register_buffer(name, value)

    @abstractmethod
    def problem(self) -> dict[str, Tensor]:
        """The parameters by name, functions of the seed alone (t = 0).    -> (R, ...) each"""


class FixedArms(Problem):
    """K arms, uniform on the unit sphere, the same every round. The paper names no law for them: this is our choice."""

    fixed_arms = True
    table: Tensor

    def __init__(self, arms: int = 50, dim: int = 20, noise: float = 0.5, replicas: int = 1, seed: int = 0) -> None:
        super().__init__(arms, dim, noise, replicas, seed)
        self.register_buffer("table", sphere(self.streams, "arms", 0, arms, dim))

    def draw(self, t: int) -> Tensor:
        return self.table


class Linear(FixedArms):
    """x'theta*, theta* uniform on the unit sphere (the paper names no law for theta*: our choice)."""

    theta: Tensor

    def problem(self) -> dict[str, Tensor]:
        return {"theta": sphere(self.streams, "theta", 0, self.dim)}

    def mean(self, contexts: Tensor) -> Tensor:
        return dot(contexts, self.theta)


class Logistic(FixedArms):
    """1 / (1 + exp(-x'theta*)), theta* uniform on the sphere of radius 4 (our choice, so that the link bends).

    The noise is Gaussian, as in the paper: a reward is a real number, not a coin.
    """

    theta: Tensor

    def problem(self) -> dict[str, Tensor]:
        return {"theta": 4 * sphere(self.streams, "theta", 0, self.dim)}

    def mean(self, contexts: Tensor) -> Tensor:
        return dot(contexts, self.theta).sigmoid()


class Distance(FixedArms):
    """-||x - theta*||, theta* uniform on the unit sphere (our choice)."""

    theta: Tensor

    def problem(self) -> dict[str, Tensor]:
        return {"theta": sphere(self.streams, "theta", 0, self.dim)}

    def mean(self, contexts: Tensor) -> Tensor:
        return -length(contexts - self.theta[:, None])


class Quadratic(FixedArms):
    """0.01 x'A A'x with A of shape (d, d) and entries N(0, 1)."""

    A: Tensor

    def problem(self) -> dict[str, Tensor]:
        return {"A": self.streams.normal("A", 0, (self.dim, self.dim))}

    def mean(self, contexts: Tensor) -> Tensor:
        return 0.01 * (contexts @ self.A).square().sum(-1)  # x'A A'x = ||A'x||^2


class SphereContexts(Problem):
    """Contexts uniform on the unit sphere, fresh each round and for each arm."""

    def draw(self, t: int) -> Tensor:
        return sphere(self.streams, "contexts", t, self.arms, self.dim, device=self.device)


class Gcb(SphereContexts):
    """What GcbH1, GcbH2 and GcbH3 share: sizes and noise."""

    def __init__(self, arms: int = 4, dim: int = 10, noise: float = 0.1, replicas: int = 1, seed: int = 0) -> None:
        super().__init__(arms, dim, noise, replicas, seed)


class GcbH1(Gcb):
    """4 (a'x)^2, a uniform on the unit sphere."""

    a: Tensor

    def problem(self) -> dict[str, Tensor]:
        return {"a": sphere(self.streams, "a", 0, self.dim)}

    def mean(self, contexts: Tensor) -> Tensor:
        return 4 * dot(contexts, self.a).square()


class GcbH2(GcbH1):
    """4 sin^2(a'x), a uniform on the unit sphere."""

    def mean(self, contexts: Tensor) -> Tensor:
        return 4 * dot(contexts, self.a).sin().square()


class GcbH3(Gcb):
    """||A x|| with A of shape (d, d) and entries N(0, 0.25): we read 0.25 as the variance, and choose A square."""

    A: Tensor

    def problem(self) -> dict[str, Tensor]:
        return {"A": 0.5 * self.streams.normal("A", 0, (self.dim, self.dim))}

    def mean(self, contexts: Tensor) -> Tensor:
        return length(contexts @ self.A.mT)


class Zhou(SphereContexts):
    """What ZhouH1, ZhouH2 and ZhouH3 share: sizes and noise."""

    def __init__(self, arms: int = 4, dim: int = 20, noise: float = 1.0, replicas: int = 1, seed: int = 0) -> None:
        super().__init__(arms, dim, noise, replicas, seed)


class ZhouH1(Zhou):
    """10 (a'x)^2, a uniform in the unit ball."""

    a: Tensor

    def problem(self) -> dict[str, Tensor]:
        return {"a": ball(self.streams, "a", 0, self.dim)}

    def mean(self, contexts: Tensor) -> Tensor:
        return 10 * dot(contexts, self.a).square()


class ZhouH2(Zhou):
    """x'A'A x with A of shape (d, d) and entries N(0, 1)."""

    A: Tensor

    def problem(self) -> dict[str, Tensor]:
        return {"A": self.streams.normal("A", 0, (self.dim, self.dim))}

    def mean(self, contexts: Tensor) -> Tensor:
        return (contexts @ self.A.mT).square().sum(-1)  # x'A'A x = ||A x||^2


class ZhouH3(ZhouH1):
    """cos(3 a'x), a uniform in the unit ball."""

    def mean(self, contexts: Tensor) -> Tensor:
        return (3 * dot(contexts, self.a)).cos()
