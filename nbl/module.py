"""BanditModule: what every algorithm is. A LightningModule with three verbs: act, observe, learn.

    policy = NeuralUCB(dim=20, arms=4)
    decision = policy.act(contexts)                     # changes nothing
    policy.observe(contexts, decision, reward)          # commits one round
    policy.learn()                                      # retrains when its schedule says so

An algorithm writes `score` (and `commit`, `learn` where it keeps more than nothing). This class does what is the
same for all: shapes, masks, bad input, ties, the count of rounds, randomness, checkpoints.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import lightning as L
import torch
from torch import Tensor
from typing_extensions import Self

from nbl import blocks as disjoint
from nbl import explore, inputs
from nbl.history import take
from nbl.rng import Streams
from nbl.shards import Members
from nbl.state import take_shapes
from nbl.types import Decision, Feedback, NblError, Weights
from nbl.values import known, plain, simple, whole


class Weight(NamedTuple):
    """Weights of q observations, in the loss and in the confidence matrix, (R, q) each."""

    loss: Tensor
    design: Tensor


@dataclass
class Score:
    """What an algorithm thinks of each arm. All (R, q, K) for q sets of K arms; `extra` (R, q).

    In a duel `width` is that of each pair, (R, q, K, K), and `rank` makes scores of pairs from the rest.
    """

    score: Tensor
    mean: Tensor | None = None
    width: Tensor | None = None
    propensity: Tensor | None = None  # of every arm; None: the best score is played, or no closed form exists
    extra: dict[str, Tensor] = field(default_factory=dict)


class BanditModule(L.LightningModule):
    """R independent policies, seeds `seed .. seed+R-1`, that act and learn in lockstep. R = 1 is a deployed policy.

    Args:
        dim: d, the length of an arm's context.
        arms: K; needed only where arms are fixed.
        replicas: R.
        seed: of the first replica.
        horizon: T where it is known; None otherwise.
        fixed_arms: the same arms come back every round: data are then kept per arm.
        blocks: K where contexts are disjoint, (0, .., x, .., 0), and come as (x, k), d/K + 1 numbers: see `nbl.blocks`.
            `dim` counts the zeros.
    """

    coarse: torch.dtype | None = None  # a precision in which nothing can be learnt, if the networks are in one
    exact: tuple[str, ...] = ()  # buffers that stay float64 whatever the precision
    may_change: tuple[str, ...] = ()  # hyper-parameters that `restart` may change
    bernoulli = False  # True where the likelihood is a coin's: an observed reward lies in [0, 1]
    reads_blocks = False  # True where disjoint contexts are taken as (x, k), `length` numbers; else written out
    randomised = False  # True where the rule itself draws: the best score's propensity is then unknown
    duel = False  # True where a decision is two arms, and feedback says whether the first one won
    ensemble = False  # True where members can be shared out over processes: see `share_members`
    team = Members()  # which of them are here

    def __init__(
        self,
        dim: int,
        arms: int | None = None,
        replicas: int = 1,
        seed: int = 0,
        horizon: int | None = None,
        fixed_arms: bool = False,
        blocks: int | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()  # of the class that is being built, with all its arguments
        given = {name: simple(value) for name, value in self.hparams.items()}
        self.hparams.update({name: value for name, value in given.items() if plain(value)})
        self.left_out = [name for name, value in given.items() if not plain(value)]  # a user's own network
        for name in self.left_out:
            del self.hparams[name]
        self.automatic_optimization = False
        for name, value in {"dim": dim, "replicas": replicas, "arms": arms, "horizon": horizon}.items():
            if not (value is None and name in ("arms", "horizon")) and not whole(value, 1):
                raise NblError(f"{type(self).__name__}({name}={value!r}): need a whole number, at least 1.")
        if not whole(seed) or not -(2**63) <= seed < 2**63 - replicas:
            raise NblError(f"{type(self).__name__}(seed={seed!r}): need a whole number of at most 63 bits.")
        dim, replicas, seed = int(dim), int(replicas), int(seed)
        arms, horizon = (None if n is None else int(n) for n in (arms, horizon))
        if fixed_arms and arms is None:
            raise NblError(f"{type(self).__name__}(fixed_arms=True): say how many, arms=K.")
        if blocks is not None and (not whole(blocks, 1) or dim % blocks):
            raise NblError(f"{type(self).__name__}(dim={dim}, blocks={blocks!r}): need a divisor of dim: dim = K d.")
        self.dim, self.arms, self.replicas, self.blocks = dim, arms, replicas, None if blocks is None else int(blocks)
        self.horizon, self.fixed_arms = horizon, fixed_arms
        self.seeds = tuple(range(seed, seed + replicas))
        self.streams = Streams(self.seeds, "algorithm")
        self.round = 0  # rounds observed
        self.phase, self.began = 0, 0  # restarts so far, and the rounds before the last one
        self.decided: dict[str, Tensor] = {}  # during `commit`: what the Decision said of itself, where there is one

    # What an algorithm writes -----------------------------------------------------------------------------------------

    @abstractmethod
    def score(self, contexts: Tensor) -> Score:
        """What each arm is worth in round `self.round + 1`.    (R, q, K, d) -> Score of (R, q, K)"""

    def score_among(self, contexts: Tensor, allowed: Tensor) -> Score:
        """The same where only some arms may be played, for rules that look at all.    (R, q, K, d), (R, q, K)"""
        return self.score(contexts)

    def rank(self, score: Score, exploit: bool, allowed: Tensor | None) -> Tensor:
        """What is maximised: over arms, (R, q, K), in a duel over pairs, (R, q, K, K); -inf is never played."""
        best = score.mean if exploit and score.mean is not None else score.score
        return best if allowed is None else best.masked_fill(~allowed, -torch.inf)

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        """Take in q observations a replica.    (R, q, K, d), (R, q) or (R, q, 2), (R, q), and weights of (R, q)"""

    def learn(self) -> None:
        """Retrain, if it is time."""

    def forget(self) -> None:
        """Back to the first round: called by `restart`."""

    def rest(self) -> None:
        """The round closes without `learn`: what waits for it waits no longer."""

    def retrain(self) -> None:
        """Begin the training anew on the data that are there: called by `restart(keep_history=True)`."""

    def build(self) -> None:
        """Make what has its shape from `members`: in the beginning, and when a restart changes it."""

    def share_members(self, team: Members) -> None:
        """Before the first round: keep the members of this process alone. `act` then asks the others."""
        if not self.ensemble:
            raise NblError(
                f"replicas={self.replicas} over {team.world} processes: {type(self).__name__} has no members to share "
                f"out. Use at most trainer.devices={self.replicas}, or replicas={team.world} and more."
            )
        self.team = team
        self.build()

    def diagnostics(self) -> dict[str, Tensor]:
        """What is worth logging now and then, by slashed name, each (R,)."""
        return {}

    # What every algorithm has -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, contexts: Tensor, exploit: bool = False, mask: Tensor | None = None) -> Decision:
        """Choose an arm. Changes nothing: asked twice, it answers the same.

        Args:
            contexts: (R, K, d); (K, d) is one set of arms for all; with one replica, (n, K, d) is n questions at once.
            exploit: the arm with the best estimate, no exploration.
            mask: True where an arm may be played, shaped as the contexts without their last axis, or (K,).
        """
        x = self._contexts(contexts, "act")
        R, q, K, _ = x.shape
        allowed = None if mask is None else self._send(inputs.mask(mask, x.shape[:3]))
        s = self.score(x) if allowed is None else self.score_among(x, allowed)
        ranked = self.rank(s, exploit, allowed)
        values = ranked.flatten(2)
        if values.device.type == "cpu" and not (known(values) and (s.mean is None or known(s.mean))):
            raise NblError(
                f"act: {type(self).__name__}'s score of an arm is not a number in round {self.round + 1}. Usual "
                "causes: training diverged (lower `fit.lr`), or contexts and rewards are very large (scale them)."
            )
        best = explore.tied(values)
        arms = explore.pick(best, self.uniform("ties", (q, values.shape[-1])))
        propensity = None  # unknown where the rule draws and has no closed form, or a mask has changed it
        if exploit or not self.randomised:
            propensity = best.sum(-1, dtype=values.dtype).reciprocal()
        elif allowed is None and s.propensity is not None:
            propensity = s.propensity.gather(-1, arms.unsqueeze(-1)).squeeze(-1)
        first = self.round << 20
        return Decision(
            arms=(torch.stack([arms // K, arms % K], -1) if self.duel else arms).flatten(0, 1),
            scores=(ranked if self.duel else s.score).flatten(0, 1),
            means=None if s.mean is None else s.mean.flatten(0, 1),
            widths=None if s.width is None else s.width.flatten(0, 1),
            propensities=None if propensity is None else propensity.flatten(),
            ids=torch.arange(first, first + R * q, device=x.device),
            extra={name: value.flatten() for name, value in s.extra.items()},
        )

    @torch.no_grad()
    def observe(
        self,
        contexts: Tensor,
        arms: Tensor | Decision | int,
        feedback: Feedback | Tensor | float,
        weight: Tensor | float | Weights | None = None,
    ) -> None:
        """Take in what came back, and close the round. Bad input raises and changes nothing.

        Args:
            contexts: as given to `act`.
            arms: what was played, (R,) (or (n,) for n answers at once); in a duel (R, 2).
            feedback: the rewards, (R,) (or (n,)); in a duel 1 where the first arm won, 0 where the second.
            weight: of each observation in the loss and in the confidence matrix (`Weights`, or any pair, where they
                differ); 1 where not given.
        """
        self._take_in(contexts, arms, feedback, weight)
        self.round += 1

    @torch.no_grad()
    def deliver(
        self,
        ids: Tensor,
        contexts: Tensor,
        arms: Tensor | int,
        feedback: Feedback | Tensor | float,
        weight: Tensor | float | Weights | None = None,
    ) -> None:
        """Take in late what came back for the decision with these ids, whose round `skip` closed.

        Rounds are not counted again, and what is drawn for the observation is what its own round would have drawn.
        """
        now, self.round = self.round, int(torch.as_tensor(ids).flatten()[0]) >> 20
        try:
            self._take_in(contexts, arms, feedback, weight)
        finally:
            self.round = now

    def _take_in(self, contexts: Tensor, arms: Any, feedback: Any, weight: Any) -> None:
        x = self._contexts(contexts, "observe")
        shape, K = x.shape[:2], x.shape[2]
        played = inputs.arms(arms.arms if isinstance(arms, Decision) else arms, (*shape, 2) if self.duel else shape, K)
        came = feedback.reward if isinstance(feedback, Feedback) else feedback
        reward = inputs.row(came, shape, "reward").to(x.dtype)
        given = weight if isinstance(weight, tuple) else () if weight is None else (weight,)  # in loss and design
        if isinstance(weight, tuple) and len(weight) != 2:
            raise NblError(f"observe: weight is a tuple of {len(weight)}; need two, for the loss and for the matrix.")
        weights = [inputs.row(w, shape, "weight", fill=True).to(x.dtype) for w in given]
        inputs.check(reward, weights, self.duel, type(self).__name__ if self.bernoulli else None)
        played, reward, *weights = (self._send(value) for value in (played, reward, *weights))
        weights = weights or [torch.ones_like(reward)]
        self.decided.update(arms.extra if isinstance(arms, Decision) else {})
        try:
            self.commit(x, played, reward, Weight(weights[0], weights[-1]))
        finally:
            self.decided.clear()

    def skip(self) -> None:
        """Close the round with nothing observed: the feedback comes later, or never."""
        self.round += 1

    @torch.no_grad()
    def restart(self, horizon: int | None = None, keep_history: bool = False, **changes: Any) -> None:
        """Begin anew, as a run with this horizon would: fresh weights, no data. Rounds go on being counted.

        Args:
            horizon: of what comes.
            keep_history: keep the data, train fresh weights on them, and make the confidence matrix for those.
            **changes: new values of hyper-parameters that may change (`members`, `nu`), where the algorithm has them.
        """
        if keep_history and changes.get("members", getattr(self, "members", None)) != getattr(self, "members", None):
            raise NblError(
                f"{type(self).__name__}.restart(keep_history=True, members={changes['members']}): each of its "
                f"{cast(Any, self).members} members keeps its own data. Leave `members` as it is, or drop keep_history."
            )
        if horizon is not None and not whole(horizon, 1):
            raise NblError(f"{type(self).__name__}.restart(horizon={horizon!r}): need a whole number, at least 1.")
        self._retune(changes)
        self.phase, self.began = self.phase + 1, self.round
        self.horizon = horizon if horizon is not None else self.horizon
        if keep_history:
            self.retrain()
        else:
            self.forget()

    def _retune(self, changes: dict[str, Any]) -> None:
        """New values of hyper-parameters, before `forget`."""
        if unknown := set(changes) - set(self.may_change):
            raise NblError(f"{type(self).__name__} cannot change {', '.join(sorted(unknown))} at a restart.")
        if not whole(changes.get("members", 1), 1) or not changes.get("nu", 0.0) >= 0:
            raise NblError(f"{type(self).__name__}.restart({changes}): need members of at least 1 and nu of 0 or more.")
        remake = changes.get("members", getattr(self, "members", None)) != getattr(self, "members", None)
        for name, value in changes.items():
            setattr(self, name, value)
        self.hparams.update(changes)
        if remake:
            self.build()

    @property
    def length(self) -> int:
        """Of a context as `score` and `commit` get it: `dim`, or d/K + 1 where blocks are read."""
        return self.dim if self.blocks is None or not self.reads_blocks else self.dim // self.blocks + 1

    @property
    def placed(self) -> Tensor:
        """An empty tensor on the module's device, of its precision: `part.to(self.placed)`."""
        return torch.empty(0, device=self.device, dtype=cast(torch.dtype, self.dtype))

    def chosen(self, contexts: Tensor, arms: Tensor) -> Tensor:
        """What was played, as `commit` sees it, blocks written out or not; both given as to `observe`.

        (R, K, d), (R,) or (R, 2) -> (R, 1, d) or (R, 1, 2, d)
        """
        x = self._contexts(contexts, "variance")
        shape = x.shape[:2]
        return take(x, self._send(inputs.arms(arms, (*shape, 2) if self.duel else shape, x.shape[2])))

    # Random numbers of this round -------------------------------------------------------------------------------------

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Uniform on (0, 1), a function of (seed, round, purpose).    -> (R, *shape)"""
        return self.streams.uniform(purpose, self.round + 1, shape, self.device)

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Standard normal, likewise.    -> (R, *shape)"""
        return self.streams.normal(purpose, self.round + 1, shape, self.device).to(self.dtype)

    # Input ------------------------------------------------------------------------------------------------------------

    def _contexts(self, contexts: Tensor, verb: str) -> Tensor:
        """Any of the shapes a user may give.    -> (R, q, K, d)"""
        if self.coarse:
            raise NblError(f"{verb}: the networks are in {self.coarse}, too coarse to learn in. Use .float().")
        fixed, dtype = self.arms if self.fixed_arms else None, cast(torch.dtype, self.dtype)
        x = self._send(inputs.contexts(contexts, verb, self.replicas, self.dim, dtype, fixed, self.blocks))
        return x if self.blocks is None or self.reads_blocks else disjoint.written(x, self.blocks)

    def _send(self, value: Tensor) -> Tensor:
        """To the module's device; what comes from the host was checked there, and does not wait for the transfer."""
        device = self.device
        if value.device == device:
            return value
        if device.type == "cuda" and value.device.type == "cpu":
            return value.pin_memory().to(device, non_blocking=True)
        return value.to(device)

    # Lightning --------------------------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        return {"round": self.round, "phase": self.phase, "began": self.began, "horizon": self.horizon}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.round, self.phase = state["round"], state["phase"]
        self.began, self.horizon = state["began"], state["horizon"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        take_shapes(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Sums over rounds stay float64 when the precision changes; they follow a move to a device."""
        kept = {name: buffer for name in self.exact if (buffer := self._buffers.get(name)) is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in kept.items():
            self._buffers[name] = buffer.to(cast(Tensor, self._buffers[name]).device)
        self.coarse = next((p.dtype for p in self.parameters() if p.dtype in (torch.half, torch.bfloat16)), None)
        return self

    def setup(self, stage: str) -> None:
        """The Trainer's precision before a checkpoint is loaded: Lightning converts after it, too late for 64 bits."""
        self.trainer.precision_plugin.convert_module(self)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        double = self.dtype == torch.float64
        checkpoint["nbl"] = {"algorithm": type(self).__name__, "double": double, "left_out": self.left_out}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A restart may have changed hyper-parameters, and with them the shapes of what is about to be loaded."""
        saved = checkpoint["hyper_parameters"]
        self._retune({k: saved[k] for k in self.may_change if k in saved and saved[k] != self.hparams.get(k)})

    def training_step(self, *args: Any, **kwargs: Any) -> None:
        raise NblError(
            "a bandit plays rounds, not batches: use nbl.fit(module, environment, horizon=...), or set "
            "trainer.fit_loop = nbl.BanditLoop(trainer, environment) before trainer.fit(module)."
        )

    def configure_optimizers(self) -> list[Any]:
        """None for Lightning: the inner training has its own (nbl/inner.py)."""
        return []
