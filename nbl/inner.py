"""The inner training: J steps of gradient descent on R x M stacked networks.

    minimise  sum_i w_i loss(f(x_i; theta), y_i)  +  ridge/2 |theta - centre|^2        (divided by t where scale = mean)

Optimisers act element by element, so one over the stacked parameters trains every network as one of its own would.
Networks are trained in chunks whose working set fits the cache. Nothing is committed unless every weight is finite.
With `compile` a step is one kernel (nbl/compiled.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nbl import compiled
from nbl.history import Data
from nbl.losses import Loss, Squared
from nbl.networks import Network, Pairs, Weights
from nbl.types import NblError

Trained = tuple[Tensor, Tensor, Tensor]  # weights, optimiser's state and loss of a chunk
CHUNK = 1 << 20  # numbers of working set trained together: measured best around the size of a core's cache


class Fixed(NamedTuple):
    """What stays the same from step to step."""

    inputs: Any
    targets: Tensor
    weights: Tensor
    offset: Tensor | None  # f(x; theta_0), where it is subtracted
    origin: Tensor | None  # what the ridge pulls to; None: 0
    ridge: Tensor


class Working(NamedTuple):
    """What a step changes, and views of it: theta and grad unpacked, and their part that the ridge is on."""

    theta: Tensor
    grad: Tensor
    moments: Tensor
    now: Weights
    into: Weights
    held: Tensor
    pulled: Tensor


class FitError(NblError):
    """Training diverged."""


class Fit(nn.Module):
    """How the networks are trained, and the optimiser's state.

    Args:
        optimizer: gd, momentum or adam.
        lr: step size; `theory` is the papers' 1 / (m lam + m L t), for scale=sum (`ntk` networks: see `rate`).
        steps: J, full-batch steps at each retraining.
        scale: `sum` as the papers print the loss, or `mean`: loss and ridge divided by t, so that one lr serves all t.
        ridge: strength of the penalty, against the sum of losses; None is the papers' m lam (`ntk` networks: lam).
        towards: `start` pulls towards theta_0 (as printed), `zero` towards 0.
        start: `warm` goes on from the last weights and optimiser state, `cold` begins each retraining at theta_0.
        momentum: of the optimiser `momentum`.
        penalty: which weights the ridge is on: `all`, or those of the `last` layer.
        compile: each step as one kernel of torch.compile's, where there is a compiler: the same to rounding. Made for
            GPUs; on a CPU it does not pay (m=100, one thread, time over that without: 1.05 at t=200 and 0.95 at t=1000
            with one network, 1.35 and 1.01 with five, 1.4 with twenty at t=200), and compiling takes 10 to 30 s.
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
        compile: bool = False,
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
        if not isinstance(compile, bool):
            raise NblError(f"fit.compile={compile!r}: need true or false.")
        self.compiles = compile
        self.optimizer, self.lr, self.steps, self.momentum = optimizer, lr, steps, momentum
        self.mean, self.to_start, self.warm = scale == "mean", towards == "start", start == "warm"
        self.lam, self.ridge = lam, lam / net.scale**2 if ridge is None else float(ridge)
        self.part = slice(None if penalty == "all" else -net.head, None)  # of theta, that the ridge is on
        self.loss: Loss = loss or Squared()
        moments = {"gd": 0, "momentum": 1, "adam": 2}[optimizer]
        self.register_buffer("moments", torch.zeros(moments, *net.theta.shape))
        self.register_buffer("taken", torch.zeros(net.theta.shape[0], 1))  # steps taken by each network
        self.register_buffer("last", torch.zeros(net.replicas, net.members))  # mean loss at the last retraining

    moments: Tensor
    taken: Tensor
    last: Tensor
    question: Tensor | None = None  # (R,), of the caller's: on a GPU it is asked together with ours, is it true of any?
    answer: bool | None = None
    layout: Mapping[str, str] = {"moments": "-B", "taken": "B", "last": "RM"}

    @torch.no_grad()
    def forward(
        self, net: Network | Pairs, data: Data, t: int, who: Tensor | None = None, lam: Tensor | None = None
    ) -> None:
        """Train on the data of t observations; `who` (R,) masks the replicas that train.

        `lam` (R,) is a lambda of each replica's own, where it moves: the ridge is then m lam.
        """
        replicas = self._due(net, who, t)
        members = torch.arange(net.members, device=replicas.device)
        self._fit(net, data, t, replicas, (replicas[:, None] * net.members + members).view(-1, net.members), lam)

    @torch.no_grad()
    def some(self, net: Network, data: Data, t: Tensor, rows: Tensor) -> None:
        """Train some networks, rows of theta, each on its own data of t observations.    B of each"""
        self._fit(net, data, t, torch.arange(len(rows), device=rows.device), rows.unsqueeze(1))

    def _fit(
        self, net: Network | Pairs, data: Data, t: int | Tensor, sets: Tensor, rows: Tensor, lam: Tensor | None = None
    ) -> None:
        """Train the networks `rows` (B, M) on the data sets `sets` (B,), chunk by chunk, and keep what they learn."""
        if not len(sets):
            return
        n, each = data.inputs.shape[1], rows.shape[1]
        each *= 2 * data.inputs.shape[2] + net.copies * net.width * net.depth  # hidden layers, and one to work in
        size = max(1, CHUNK // max(n * each, 1))

        def train(some: Tensor, which: Tensor) -> Trained:
            with torch.inference_mode(net.closed and not self.compiles):  # a step has a third less overhead
                return self._train(net, data, t if isinstance(t, int) else t[some].unsqueeze(1), some, which, lam)

        play = map if self.compiles else _side_by_side  # a kernel has threads of its own
        trained = list(play(train, torch.split(sets, size), torch.split(rows, size)))
        theta, moments, last = (
            torch.cat(parts, dim) for parts, dim in zip(zip(*trained, strict=True), (0, 1, 0), strict=True)
        )
        rows, well = rows.flatten(), theta.isfinite().all(1, keepdim=True)
        if theta.device.type == "cpu":
            self._diverged((rows[~well.squeeze(1)] // net.members).tolist(), t)
        else:  # found out by `_due`, at the next retraining
            theta, moments = (
                torch.where(well, theta, net.theta[rows]),
                torch.where(well, moments, self.moments[:, rows]),
            )
        net.theta[rows], self.moments[:, rows], self.last.view(-1)[rows] = theta, moments, last.flatten()
        self.taken[rows] = (self.taken[rows] if self.warm else 0.0) + self.steps

    def _due(self, net: Network | Pairs, who: Tensor | None, t: int) -> Tensor:
        """Which replicas train. On a GPU this is the one question that a retraining asks: who, and are all well?"""
        everyone = torch.arange(net.replicas, device=net.theta.device)
        if everyone.device.type == "cpu":
            return everyone if who is None else everyone[who]
        well = self.last.isfinite().all(1)
        asked = [torch.ones_like(well) if who is None else who, well]
        due, fine, *told = torch.stack(asked if self.question is None else [*asked, self.question]).tolist()
        self.answer = any(told[0]) if told else None
        self._diverged([r for r, is_fine in enumerate(fine) if not is_fine], t)
        return everyone if all(due) else torch.tensor([r for r, d in enumerate(due) if d], device=everyone.device)

    def _diverged(self, bad: list[int], t: int | Tensor) -> None:
        if bad:
            longest = t if isinstance(t, int) else int(t.max())
            raise FitError(
                f"training diverged after {longest} observations: weights of replica(s) {sorted(set(bad))} are not "
                f"finite. Lower `fit.lr` (now {self.lr}), or use `fit.scale=mean`. The weights from before were kept."
            )

    @torch.no_grad()
    def _train(
        self, net: Network | Pairs, data: Data, t: int | Tensor, sets: Tensor, networks: Tensor, lam: Tensor | None
    ) -> Trained:
        """J steps for some networks. Returns their weights, their optimiser's state and their loss."""
        rows, members = networks.flatten(), networks.shape[1]
        start = net.theta0[rows]
        theta = net.theta[rows] if self.warm else start.clone()
        moments, taken = self.moments[:, rows].clone(), self.taken[rows]
        if not self.warm:
            moments, taken = torch.zeros_like(moments), torch.zeros_like(taken)
        x = net.prepare(data.inputs[sets].repeat_interleave(members, 0), many=True)
        y = data.targets[sets].flatten(0, 1)
        weights = data.weights[sets]
        weights = weights.flatten(0, 1) if weights.ndim == 3 else weights.repeat_interleave(members, 0)
        offset = net.evaluate(net.unpack(start), x)[0] if net.centered else None
        shrink = 1.0 / t if self.mean else 1.0  # a number, or (B, 1) where each network has its own t
        own = None if lam is None else lam[sets].repeat_interleave(members).unsqueeze(1).to(theta)  # (B, 1)
        ridge = self.ridge * shrink if own is None else own / net.scale**2 * shrink
        ridge, lr = torch.as_tensor(ridge, dtype=theta.dtype, device=theta.device), self.rate(net, t, own)
        rates, roots = self._corrections(taken, lr)
        origin = start[:, self.part] if self.to_start else None
        fixed = Fixed(x, y, weights * shrink, offset, origin, ridge)
        try:
            self._descend(net, theta, moments, fixed, rates, roots)
        except Exception as error:
            if not self.compiles:
                raise
            self.compiles = False
            compiled.warn(error)
            return self._train(net, data, t, sets, networks, lam)  # from the start: nothing was committed
        out = net.evaluate(net.unpack(theta), x)[0]
        out = out if offset is None else out - offset
        total = (self.loss.value(out, y) * weights).sum(-1).view(len(sets), -1) + data.rest[sets]
        return theta, moments, total / t

    def _descend(
        self, net: Network | Pairs, theta: Tensor, moments: Tensor, fixed: Fixed, rates: Tensor, roots: Tensor
    ) -> None:
        """J steps, in place."""
        if self.compiles:
            step = compiled.compiled(_alone)
            for rate, epsilon in zip(rates, roots, strict=True):
                step(self, net, theta, moments, fixed, rate, epsilon)
            return
        state = self.state(net, theta, moments)
        for rate, epsilon in zip(rates, roots, strict=True):
            self.step(net, state, fixed, rate, epsilon)

    def state(self, net: Network | Pairs, theta: Tensor, moments: Tensor) -> Working:
        grad = torch.empty_like(theta)
        now, into = net.unpack(theta), net.unpack(grad)
        return Working(theta, grad, moments, now, into, theta[:, self.part], grad[:, self.part])

    def step(self, net: Network | Pairs, state: Working, fixed: Fixed, rate: Tensor, epsilon: Tensor) -> None:
        """One step: the gradient, and the optimiser's move."""
        theta, grad, moments, now, into, held, pulled = state
        out, kept = net.evaluate(now, fixed.inputs)
        out = out if fixed.offset is None else out - fixed.offset
        net.pullback(now, kept, self.loss.derivative(out, fixed.targets) * fixed.weights, into)
        pulled.addcmul_(held, fixed.ridge)
        if fixed.origin is not None:
            pulled.addcmul_(fixed.origin, fixed.ridge, value=-1.0)
        self._step(theta, grad, moments, rate, epsilon)

    def _corrections(self, taken: Tensor, lr: float | Tensor) -> tuple[Tensor, Tensor]:
        """Step sizes and epsilons of the coming steps, with Adam's bias corrections.    (B, 1) -> (J, B, 1) twice"""
        steps = taken + torch.arange(1, self.steps + 1, device=taken.device).view(-1, 1, 1)
        if self.optimizer != "adam":
            return torch.zeros_like(steps) + lr, steps
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

    def rate(self, net: Network | Pairs, t: int | Tensor, lam: Tensor | None = None) -> float | Tensor:
        """The step size after t observations.

        `theory` is one over the largest curvature: lam / scale^2 of the ridge, |g|^2 of each point. At the start
        |g|^2 is m L on unit contexts (m = 1 / scale^2), and for sigma_s in an `ntk` network a sum over its layers.
        """
        if isinstance(self.lr, str):  # eta = 1 / (m lam + m L t): NeuralTS Theorem 3.5, Neural-ES Theorem 5.11
            eta = net.scale**2 / ((self.lam if lam is None else lam) + net.slope * t)
            return eta * t if self.mean else eta
        return float(self.lr)

    def reset(self) -> None:
        for buffer in (self.moments, self.taken, self.last):
            buffer.zero_()


def _alone(
    fit: Fit, net: Network | Pairs, theta: Tensor, moments: Tensor, fixed: Fixed, rate: Tensor, epsilon: Tensor
) -> None:
    """A step that is given no views: what is compiled."""
    fit.step(net, fit.state(net, theta, moments), fixed, rate, epsilon)


def _side_by_side(train: Callable[..., Trained], *chunks: Sequence[Tensor]) -> list[Trained]:
    """Chunks fit a core's cache: with several CPU threads each trains chunks of its own, rather than share one."""
    threads = min(torch.get_num_threads(), len(chunks[0]))
    if threads < 2 or chunks[0][0].device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return list(map(train, *chunks))
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(train, *chunks))


def build(options: dict[str, Any] | None, net: Network, lam: float, loss: Loss | None = None) -> Fit:
    """`fit={"optimizer": "adam", "lr": 0.003, ...}`"""
    options = dict(options or {})
    known = ("optimizer", "lr", "steps", "scale", "ridge", "towards", "start", "momentum", "penalty", "compile")
    if unknown := sorted(set(options) - set(known)):
        raise NblError(f"fit has no option {', '.join(unknown)}; it has {', '.join(known)}.")
    return Fit(net, lam, loss=loss, **options)
