"""What the neural algorithms share: a network, its history, its training, and a confidence matrix on its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nbl import design as designs
from nbl import inner, networks, schedule
from nbl.gradient import Gradient
from nbl.history import ArmHistory, Data, History, one_by_one, take
from nbl.losses import Loss
from nbl.module import BanditModule, Weight
from nbl.networks import Net, Network, Pairs
from nbl.types import NblError


class NeuralBandit(BanditModule):
    """A network trained on everything seen so far.

    Args:
        lam: lambda, the ridge (of the confidence matrix, and of the loss unless `fit.ridge` says otherwise).
        net: options of `nbl.networks.MLP`, or a module, or a function that makes one.
        fit: options of `nbl.inner.Fit`.
        retrain: options of `nbl.schedule.Schedule`.
        history: `auto`, `arms` (sums per arm, for fixed arms) or `full`.
        members: networks a replica.
        **problem: dim, arms, replicas, seed, horizon, fixed_arms: see `BanditModule`.
    """

    own_weights = False  # True where an observation weighs differently for each member

    def __init__(
        self,
        dim: int,
        *,
        lam: float = 1.0,
        net: Net = None,
        fit: dict[str, Any] | None = None,
        retrain: dict[str, Any] | None = None,
        history: str = "auto",
        members: int = 1,
        **problem: Any,
    ) -> None:
        super().__init__(dim, **problem)
        if not lam > 0:
            raise NblError(f"{type(self).__name__}(lam={lam!r}): the ridge must be positive, for example 1.0.")
        if isinstance(members, bool) or not isinstance(members, int) or members < 1:
            raise NblError(f"{type(self).__name__}(members={members!r}): need a whole number, at least 1.")
        if history not in ("auto", "arms", "full"):
            raise NblError(f"history={history!r}: choose one of auto, arms, full.")
        if history == "arms" and not self.fixed_arms:
            raise NblError("history='arms' needs arms that come back every round: fixed_arms=True.")
        self.lam, self.members = float(lam), members
        if net is not None and not isinstance(net, Mapping):
            self.reads_blocks = False  # a user's own module gets contexts written out
        self.options: dict[str, Any] = {"net": net, "fit": fit, "history": history}
        self.schedule = schedule.build(retrain, self.replicas)
        self.build()

    def build(self) -> None:
        """The networks, how they are trained, and what on."""
        members, blocks = self.team.count(self.members), self.blocks if self.reads_blocks else None
        self.net = networks.build(self.options["net"], self.dim, self.replicas, members, blocks).to(self.placed)
        self.net.initialise(self.streams, self.phase)
        self.fit = inner.build(self.options["fit"], self.net, self.lam, self.loss).to(self.placed)
        self.history: History | ArmHistory
        if self.duel:
            self.history = History(self.replicas, 2 * self.dim, self.members).to(self.placed)
        elif self.fixed_arms and self.options["history"] != "full":
            assert self.arms is not None
            self.history = ArmHistory(self.replicas, self.arms, self.length, members, self.own_weights).to(self.placed)
        else:
            self.history = History(self.replicas, self.length, members, self.own_weights).to(self.placed)

    @property
    def loss(self) -> Loss | None:
        """What is minimised; None: squares."""
        return None

    @property
    def model(self) -> Network | Pairs:
        """What is trained: the network, in a duel on pairs."""
        return Pairs(self.net) if self.duel else self.net

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        self.history.append(contexts, arms, reward.unsqueeze(1), weight.loss)

    @torch.no_grad()
    def learn(self) -> None:
        due = self.schedule.due(self.history.n, self.logdet())
        if isinstance(due, Tensor) or due:
            who = due if isinstance(due, Tensor) else None
            self.fit(self.model, self.training_data(), self.history.n, who, self.ridge())
            self.trained(who)

    def trained(self, who: Tensor | None = None) -> None:
        """Called after each training, of all replicas or of those of a mask (R,)."""

    def training_data(self) -> Data:
        """What the network is trained on."""
        return self.history.data()

    def ridge(self) -> Tensor | None:
        """lambda of the loss, where it moves and each replica has its own.    -> (R,)"""
        return None

    def logdet(self) -> Tensor | None:
        """How much the confidence matrix has grown, where there is one.    -> (R,)"""
        return None

    def forget(self) -> None:
        self.net.initialise(self.streams, self.phase)
        for part in (self.fit, self.schedule, self.history):
            part.reset()

    def retrain(self) -> None:
        """A warm-started fit takes few steps a round: fresh weights get those of up to a hundred rounds at once."""
        self.net.initialise(self.streams, self.phase)
        self.fit.reset()
        for _ in range(min(self.history.n, 100) if self.fit.warm else min(self.history.n, 1)):
            self.train_all()

    def train_all(self) -> None:
        """One training of every network, due or not."""
        self.fit(self.model, self.training_data(), self.history.n, None, self.ridge())

    def diagnostics(self) -> dict[str, Tensor]:
        return {"fit/loss": self.team.join(self.fit.last, self.members, 1).mean(-1)}


class GradientBandit(NeuralBandit):
    """A neural bandit whose confidence is a linear model's on the network's gradient: U = lam I + sum g g^T / m.

    Args:
        nu: how much to explore.
        design: the confidence matrix: auto, dual, full (all exact) or diagonal.
        last_layer: gradient of the last layer only (shallow exploration).
        gradient_at: `now` takes gradients at the current weights, `start` at theta_0.
    """

    grows_after_learning = False  # U gets g at theta_{t-1}, before training; True: at theta_t, after it

    def __init__(
        self,
        dim: int,
        *,
        nu: float = 0.1,
        lam: float = 1.0,
        design: str = "auto",
        last_layer: bool = False,
        gradient_at: str = "now",
        **neural: Any,
    ) -> None:
        super().__init__(dim, lam=lam, **neural)
        if not nu >= 0:
            raise NblError(f"{type(self).__name__}(nu={nu!r}): need a number, 0 (greedy) or more.")
        if gradient_at not in ("now", "start"):
            raise NblError(f"gradient_at={gradient_at!r}: choose `now` or `start`.")
        self.nu, self.last_layer, self.at_start = float(nu), last_layer, gradient_at == "start"
        size = self.features(torch.zeros(self.replicas, 1, self.length)).size
        self.design = designs.build(design, self.replicas, size, lam, self.horizon)
        inputs = 2 * dim if self.duel else self.length
        self.register_buffer("pending", torch.zeros(self.replicas, 0, inputs + 1))  # played, not yet in U

    pending: Tensor

    def features(self, x: Tensor) -> Gradient:
        """g(x) / sqrt(m), to be read and not changed.    (R, n, d) -> (R, n, p)"""
        with torch.inference_mode(self.net.closed):  # a quarter less overhead
            return self.net.features(x, self.net.theta0 if self.at_start else None, self.last_layer)

    def played(self, x: Tensor) -> Gradient:
        """What U grows by: the features of an arm, in a duel their difference.    (R, n, d) or (R, n, 2 d)"""
        return self.features(one_by_one(x)).differences() if self.duel else self.features(x)

    def estimate(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """f(x; theta) and ||g(x)/sqrt(m)||_{U^-1}.    (R, q, K, d) -> (R, q, K) twice"""
        x = contexts.flatten(1, 2)
        g = self.features(x)
        width, mean = self.design.width(g).to(x.dtype), self.net(x) if g.value is None else g.value
        return mean.view(contexts.shape[:3]).clone(), width.view(contexts.shape[:3])

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        super().commit(contexts, arms, reward, weight)
        x = self.history.newest(arms.shape[1]) if isinstance(self.history, History) else take(contexts, arms)
        if self.grows_after_learning:
            self.pending = torch.cat([self.pending, torch.cat([x, weight.design.unsqueeze(-1)], -1)], 1)
        else:
            self._add(x, weight.design)

    def learn(self) -> None:
        super().learn()
        self._grow()

    def rest(self) -> None:
        self._grow()

    def _grow(self) -> None:
        """U <- U + w g g^T / m for what is pending."""
        if self.pending.shape[1]:
            self._add(self.pending[..., :-1], self.pending[..., -1])
            self.pending = self.pending[:, :0]

    def _add(self, x: Tensor, given: Tensor) -> None:
        """Played in the duel's or the arm's contexts, and weights as given to `observe`.    (R, n, d), (R, n)"""
        self.design.update(self.played(x), self.weigh(x, given))

    def weigh(self, x: Tensor, given: Tensor) -> Tensor:
        """The weights w in U, from those given to `observe`.    (R, n, d), (R, n) -> (R, n)"""
        return given

    def logdet(self) -> Tensor:
        return self.design.logdet()

    def forget(self) -> None:
        super().forget()
        self.design.reset()
        self.pending = self.pending[:, :0]

    def retrain(self) -> None:
        """Gradients at the old weights mean nothing to fresh ones: U is made anew, with the weights of the loss."""
        super().retrain()
        self.design.reset()
        self.pending = self.pending[:, :0]
        if self.history.n:
            data = self.history.data()
            self.design.update(self.played(data.inputs), self.weigh(data.inputs, data.weights))

    def diagnostics(self) -> dict[str, Tensor]:
        return {**super().diagnostics(), "design/logdet": self.logdet()}
