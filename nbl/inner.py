"""The inner training: J steps of gradient descent on R x M stacked networks.

    minimise  sum_i w_i loss(f(x_i; theta), y_i)  +  ridge/2 |theta - centre|^2        (divided by t where scale = mean)

Optimisers act element by element, so one over the stacked parameters trains every network as one of its own would.
Networks are trained in chunks whose working set fits the cache. Nothing is committed unless every weight is finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from nbl.history import Data
from nbl.losses import Loss, Squared
from nbl.networks import Network, Pairs
from nbl.types import NblError

Trained = tuple[Tensor, Tensor, Tensor]  # weights, optimiser's state and loss of a chunk
CHUNK = 1 << 19  # numbers of working set trained together: measured best around the size of a core's cache


class FitError(NblError):
    """Training diverged."""


class Fit(nn.Module):
    """How the networks are trained, and the optimiser's state.

    Args:
        optimizer: gd, momentum or adam.
        lr: step size; `theory` is the papers' 1 / (m lam + m L t), for scale=sum.
        steps: J, full-batch steps at each retraining.
        scale: `sum` as the papers print the loss, or `mean`: loss and ridge divided by t, so that one lr serves all t.
        ridge: strength of the penalty, against the sum of losses; None is the papers' m lam.
        towards: `start` pulls towards theta_0 (as printed), `zero` towards 0.
        start: `warm` goes on from the last weights and optimiser state, `cold` begins each retraining at theta_0.
        momentum: of the optimiser `momentum`.
        penalty: which weights the ridge is on: `all`, or those of the `last` layer.
    """

    def __init__(
        self,
        net: Network,
        lam: float,
        *,
        optimizer: str = "adam",
        lr: float | str = 3e-3,
        steps: int = 10,
        scale: str = "mean",
        ridge: float | None = 4.0,
        towards: str = "zero",
        start: str = "warm",
        momentum: float = 0.9,
        penalty: str = "all",
        loss: Loss | None = None,
    ) -> None:
        super().__init__()
        choices = {"optimizer": ("gd", "momentum", "adam"), "scale": ("mean", "sum"), "towards": ("zero", "start")}
        given = {"optimizer": optimizer, "scale": scale, "towards": towards, "start": start, "penalty": penalty}
        for name, allowed in {**choices, "start": ("warm", "cold"), "penalty": ("all", "last")}.items():
            if given[name] not in allowed:
                raise NblError(f"fit.{name}={given[name]!r}: choose one of {', '.join(allowed)}.")
        if lr != "theory" and not (isinstance(lr, int | float) and lr > 0):
            raise NblError(f"fit.lr={lr!r}: need a positive number or 'theory'.")
        if not isinstance(steps, int) or steps < 1:
            raise NblError(f"fit.steps={steps!r}: need a whole number, at least 1.")
        for name, value in (("ridge", ridge), ("momentum", momentum)):
            if value is not None and not (isinstance(value, int | float) and value >= 0):
                raise NblError(f"fit.{name}={value!r}: need a number, 0 or more.")
        self.optimizer, self.lr, self.steps, self.momentum = optimizer, lr, steps, momentum
        self.mean, self.to_start, self.warm = scale == "mean", towards == "start", start == "warm"
        self.lam, self.ridge = lam, net.width * lam if ridge is None else float(ridge)
        self.part = slice(None if penalty == "all" else -net.head, None)  # of theta, that the ridge is on
        self.loss: Loss = loss or Squared()
        moments = {"gd": 0, "momentum": 1, "adam": 2}[optimizer]
        self.register_buffer("moments", torch.zeros(moments, *net.theta.shape))
        self.register_buffer("taken", torch.zeros(net.theta.shape[0], 1))  # steps taken by each network
        self.register_buffer("last", torch.zeros(net.replicas, net.members))  # mean loss at the last retraining

    moments: Tensor
    taken: Tensor
    last: Tensor

    @torch.no_grad()
    def forward(self, net: Network | Pairs, data: Data, t: int, who: Tensor | None = None) -> None:
        """Train on the data of t observations; `who` (R,) masks the replicas that train."""
        everyone = torch.arange(net.replicas, device=net.theta.device)
        replicas = everyone if who is None else everyone[who]
        if not len(replicas):
            return
        n = data.inputs.shape[1]
        size = n * (data.inputs.shape[2] + 3 * net.copies * net.width * (net.depth - 1)) * net.members
        chunks = torch.split(replicas, max(1, CHUNK // max(size, 1)))
        trained = _side_by_side(lambda chunk: self._train(net, data, t, chunk), chunks)
        theta, moments, last = (
            torch.cat(parts, dim) for parts, dim in zip(zip(*trained, strict=True), (0, 1, 0), strict=True)
        )
        if not bool(theta.isfinite().all()):
            bad = replicas[~theta.isfinite().view(len(replicas), -1).all(1)].tolist()
            raise FitError(
                f"training diverged after {t} observations: weights of replica(s) {bad} are not finite. "
                f"Lower `fit.lr` (now {self.lr}), or use `fit.scale=mean`. The weights from before were kept."
            )
        rows = self._rows(net, replicas)
        net.theta[rows], self.moments[:, rows], self.last[replicas] = theta, moments, last
        self.taken[rows] = (self.taken[rows] if self.warm else 0.0) + self.steps

    @torch.no_grad()
    def _train(self, net: Network | Pairs, data: Data, t: int, replicas: Tensor) -> Trained:
        """J steps for some replicas. Returns their weights, their optimiser's state and their loss."""
        rows = self._rows(net, replicas)
        start = net.theta0[rows]
        theta = net.theta[rows] if self.warm else start.clone()
        moments, taken = self.moments[:, rows].clone(), self.taken[rows]
        if not self.warm:
            moments, taken = torch.zeros_like(moments), torch.zeros_like(taken)
        x = net.prepare(data.inputs[replicas].repeat_interleave(net.members, 0))
        y = data.targets[replicas].flatten(0, 1)
        weights = data.weights[replicas].repeat_interleave(net.members, 0)
        offset = net.evaluate(net.unpack(start), x)[0] if net.centered else None
        shrink = 1.0 / t if self.mean else 1.0
        ridge, lr = self.ridge * shrink, self.rate(net, t)
        scaled, grad = weights * shrink, torch.empty_like(theta)
        now, into = net.unpack(theta), net.unpack(grad)
        pulled, origin, held = grad[:, self.part], start[:, self.part], theta[:, self.part]
        rates, roots = self._corrections(taken, lr)
        for step in range(self.steps):
            out, kept = net.evaluate(now, x)
            out = out if offset is None else out - offset
            net.pullback(now, kept, self.loss.derivative(out, y) * scaled, into)
            pulled.add_(held, alpha=ridge)
            if self.to_start:
                pulled.sub_(origin, alpha=ridge)
            self._step(theta, grad, moments, rates[step], roots[step])
        out = net.evaluate(now, x)[0]
        out = out if offset is None else out - offset
        total = (self.loss.value(out, y) * weights).sum(-1).view(len(replicas), -1) + data.rest[replicas]
        return theta, moments, total / t

    def _corrections(self, taken: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        """Step sizes and epsilons of the coming steps, with Adam's bias corrections.    (B, 1) -> (J, B, 1) twice"""
        steps = taken + torch.arange(1, self.steps + 1, device=taken.device).view(-1, 1, 1)
        if self.optimizer != "adam":
            return torch.full_like(steps, lr), steps
        root = (1.0 - 0.999**steps).sqrt()
        return lr * root / (1.0 - 0.9**steps), 1e-8 * root

    def _step(self, theta: Tensor, grad: Tensor, moments: Tensor, rate: Tensor, epsilon: Tensor) -> None:
        """One step of the optimiser, in place."""
        if self.optimizer == "gd":
            theta.addcmul_(grad, rate, value=-1.0)
        elif self.optimizer == "momentum":
            theta.addcmul_(moments[0].mul_(self.momentum).add_(grad), rate, value=-1.0)
        else:  # Adam, Kingma and Ba 2015, with its usual constants
            first = moments[0].lerp_(grad, 0.1)
            second = moments[1].mul_(0.999).addcmul_(grad, grad, value=0.001)
            theta.addcdiv_(first * rate, second.sqrt().add_(epsilon), value=-1.0)

    def rate(self, net: Network | Pairs, t: int) -> float:
        """The step size after t observations."""
        if isinstance(self.lr, str):  # eta = 1 / (m lam + m L t): NeuralTS Theorem 3.5, Neural-ES Theorem 5.11
            eta = 1.0 / (net.width * (self.lam + net.depth * t))
            return eta * t if self.mean else eta
        return float(self.lr)

    def reset(self) -> None:
        for buffer in (self.moments, self.taken, self.last):
            buffer.zero_()

    @staticmethod
    def _rows(net: Network | Pairs, replicas: Tensor) -> Tensor:
        """Rows of theta that belong to these replicas: all members of each."""
        members = torch.arange(net.members, device=replicas.device)
        return (replicas[:, None] * net.members + members).flatten()


def _side_by_side(train: Callable[[Tensor], Trained], chunks: Sequence[Tensor]) -> list[Trained]:
    """Chunks fit a core's cache: with several CPU threads each trains chunks of its own, rather than share one."""
    threads = min(torch.get_num_threads(), len(chunks))
    if threads < 2 or chunks[0].device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return [train(chunk) for chunk in chunks]
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(train, chunks))


def build(options: dict[str, Any] | None, net: Network, lam: float, loss: Loss | None = None) -> Fit:
    """`fit={"optimizer": "adam", "lr": 0.003, ...}`"""
    options = dict(options or {})
    known = ("optimizer", "lr", "steps", "scale", "ridge", "towards", "start", "momentum", "penalty")
    if unknown := sorted(set(options) - set(known)):
        raise NblError(f"fit has no option {', '.join(unknown)}; it has {', '.join(known)}.")
    return Fit(net, lam, loss=loss, **options)
