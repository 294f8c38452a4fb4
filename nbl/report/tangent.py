"""Networks of finite width against the neural tangent kernel: what the pictures of `suite=ntk` show.

Lemma 1 and Theorem 1 of arXiv:2206.00099. Points are uniform on the sphere, everything is float64 and a function of
`seed`; a network is drawn `draws` times, all draws in one stack.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nbl import ntk
from nbl.history import Data
from nbl.inner import Fit
from nbl.networks import MLP
from nbl.rng import Streams


def kernel_error(
    width: int, power: int, depth: int = 2, points: int = 10, draws: int = 20, dim: int = 5, seed: int = 0
) -> float:
    """Lemma 1: |g(x).g(x') - k(x, x')|, root mean square over pairs and draws, relative to the mean of k(x, x)."""
    x = _sphere(points, dim, seed)
    net = _networks(width, power, depth, draws, dim, seed)
    g = net.features(x.expand(draws, -1, -1))
    k = ntk.kernel(x, depth=depth, power=power)
    return float((g.gram(g) - k).square().mean().sqrt() / k.diagonal().mean())


def ridge_error(
    width: int,
    power: int,
    depth: int = 2,
    points: int = 20,
    draws: int = 10,
    dim: int = 5,
    lam: float = 0.5,
    steps: int = 800,
    seed: int = 0,
) -> float:
    """Theorem 1: |f_NN - f_NTK| at 50 new points after training on `points` noisy ones, root mean square, relative to
    that of f_NTK.
    """
    new = _sphere(50, dim, seed + 1)
    f, kernel = _predictions(new, width, power, depth, points, draws, dim, lam, steps, seed)
    return float((f - kernel).square().mean().sqrt() / kernel.square().mean().sqrt())


def along(
    angle: NDArray[np.float64], model: str | int, power: int = 1, points: int = 20, dim: int = 5, seed: int = 0
) -> NDArray[np.float64]:
    """Predictions on a great circle: of kernel ridge regression (`kernel`), or of one trained network of a width."""
    u = _sphere(2, dim, seed + 1)
    v = u[1] - (u[1] @ u[0]) * u[0]
    turn = torch.from_numpy(angle).unsqueeze(1)
    new = turn.cos() * u[0] + turn.sin() * v / v.norm()
    width = 16 if model == "kernel" else int(model)
    f, kernel = _predictions(new, width, power, 2, points, 1, dim, 0.5, 800, seed)
    return (kernel if model == "kernel" else f[0]).numpy()


def _predictions(
    new: Tensor,
    width: int,
    power: int,
    depth: int,
    points: int,
    draws: int,
    dim: int,
    lam: float,
    steps: int,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """f_NN of each draw and f_NTK at new points, both from the same data, y = 4 (a.x)^2 + N(0, 0.1^2).

    Gradient descent from W_0 with half of the largest stable step at W_0.    -> (draws, n), (n,)
    """
    x, a = _sphere(points, dim, seed + 2), _sphere(1, dim, seed + 3)
    y = 4.0 * (x @ a[0]).square() + 0.1 * Streams([seed], "tangent").normal("noise", 0, (points,))[0]
    net = _networks(width, power, depth, draws, dim, seed)
    g = net.features(x.expand(draws, -1, -1))
    curvature = float(torch.linalg.eigvalsh(g.gram(g)).max())
    options = {"optimizer": "gd", "scale": "sum", "towards": "start", "start": "cold", "ridge": lam}
    train = Fit(net, lam, lr=0.5 / (lam + curvature), steps=steps, **options).double()  # type: ignore[arg-type]
    ones, rest = torch.ones(draws, points), torch.zeros(draws, 1)
    train(net, Data(x.expand(draws, -1, -1), y.expand(draws, 1, -1), ones.double(), rest.double()), points)
    K, cross = ntk.kernel(x, depth=depth, power=power), ntk.kernel(new, x, depth=depth, power=power)
    return net(new.expand(draws, -1, -1)).view(draws, -1), ntk.ridge(K, y, cross, new[:, 0] * 0 + 1, lam)[0]


def _networks(width: int, power: int, depth: int, draws: int, dim: int, seed: int) -> MLP:
    net = MLP(dim, draws, kind="ntk", width=width, depth=depth, power=power).double()
    net.initialise(Streams(range(seed, seed + draws), "tangent"), 0)
    return net


def _sphere(n: int, dim: int, seed: int) -> Tensor:
    x: Tensor = Streams([seed], "tangent").normal("points", 0, (n, dim))[0]
    return torch.nn.functional.normalize(x, dim=-1)
