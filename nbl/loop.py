"""The bandit loop: one pass is one round.

`max_steps` is the horizon, `global_step` the rounds played, an epoch a block of rounds.

    trainer = L.Trainer(max_steps=2000)
    trainer.fit_loop = BanditLoop(trainer, environment)
    trainer.fit(algorithm)

Lightning marks its loops protected. Everything taken from behind an underscore is in this file, and
tests/test_loop.py fails when a new Lightning moves it.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from nbl.devices import Together
from nbl.envs.base import Environment
from nbl.envs.logged import LogEnded, Logged
from nbl.module import BanditModule
from nbl.types import Decision, NblError, Round

Found = TypeVar("Found")


class _Stopped(Exception):
    """A signal came between two events of a log: the round is not played."""


class BanditLoop(_FitLoop):
    """Plays rounds until the horizon, a callback, a signal or the clock says stop.

    Args:
        trainer: an ordinary Trainer; its `max_steps` is the horizon (-1: none), `limit_train_batches` a cap on a block.
        environment: where rounds come from.
        block: rounds in a Lightning epoch. EarlyStopping looks at the end of each.
    """

    def __init__(self, trainer: L.Trainer, environment: Environment, block: int = 1000) -> None:
        if block < 1:
            raise NblError(f"BanditLoop(block={block}): need at least one round in a block.")
        if trainer.world_size > 1 and not isinstance(trainer.strategy, Together):
            raise NblError(
                f"BanditLoop: {trainer.world_size} processes under {type(trainer.strategy).__name__}. Each must build "
                "its own share, as scripts/train.py does with trainer.devices=N (nbl.devices); here use devices=1."
            )
        super().__init__(trainer, min_epochs=0, max_epochs=trainer.max_epochs if trainer.max_epochs is not None else -1)
        self.epoch_loop = trainer.fit_loop.epoch_loop  # keeps Trainer(max_steps=...)
        limit = trainer.limit_train_batches
        if isinstance(limit, int) and not isinstance(limit, bool):
            block = min(block, limit) if limit else 0
            self.max_epochs = 1  # `limit_train_batches=n` plays n rounds
        self.environment, self.block = environment, block
        self._random: dict[str, Any] | None = None
        self.asked = 0  # the signal that asks to stop
        self._meeting, self._met = 1, (0, time.monotonic())  # the round after which processes meet; when they last did

    def ask(self, signum: int, *_: Any) -> None:
        """Stop after the round being played; with several processes after the next one in which they meet."""
        self.asked = signum
        if not isinstance(self.trainer.strategy, Together):
            self.trainer.should_stop = True

    def setup_data(self) -> None:
        """Rounds come from the environment."""
        self._combined_loader = CombinedLoader([])
        self.max_batches = self.block
        self._check()
        self.environment.to(self.trainer.strategy.root_device)
        if isinstance(self.trainer.strategy, Together) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.ask)  # Lightning's handler talks to the others in the middle of a round

    def advance(self) -> None:
        """One block of rounds."""
        self._settle()
        rounds: Any = self.epoch_loop.batch_progress.current
        end = (rounds.processed // self.block + 1) * self.block
        if self.max_steps >= 0:
            end = min(end, self.max_steps)
        while rounds.processed < end and not self.trainer.should_stop:
            before = self._counts()
            try:
                self.play()
            except (_Stopped, LogEnded) as why:  # a round that is not played has not begun
                for callback, state in before:
                    callback.load_state_dict(state)
                if isinstance(why, LogEnded):
                    rank_zero_warn(f"the log has ended: {why}")
                    self.trainer.should_stop = True
            self._meet(rounds.processed)
            if self.trainer.received_sigterm:
                raise SIGTERMException
        self.epoch_loop.batch_progress.is_last_batch = True

    def play(self) -> None:
        """One round: contexts, act, pull, observe, learn; every batch hook of every callback fires."""
        trainer, module, progress = self.trainer, self.trainer.lightning_module, self.epoch_loop.batch_progress
        assert isinstance(module, BanditModule)
        index: int = progress.current.processed  # type: ignore[attr-defined]
        progress.increment_ready()
        batch = Round(index + 1, self._unless_ended(index + 1, lambda: self.environment.contexts(index + 1)))
        batch.mask = self.environment.allowed
        trainer._logger_connector.on_batch_start(batch)
        self._hook("on_train_batch_start", batch, index)
        progress.increment_started()

        with trainer.precision_plugin.train_step_context():
            batch.decision = self._unless_ended(index + 1, lambda: self._walk(batch))
            self.environment.allowed = batch.mask
            batch.feedback = self.environment.pull(batch.decision.arms)
            if callable(batch.weight):
                batch.weight = batch.weight(batch)
            if batch.hold:
                module.skip()
            else:
                module.observe(batch.contexts, batch.decision, batch.feedback, batch.weight)
            if batch.learn:
                module.learn()
            else:
                module.rest()

        steps = self.epoch_loop.manual_optimization.optim_step_progress  # read by trainer.global_step
        steps.increment_ready()
        steps.increment_completed()
        progress.increment_processed()
        self._hook("on_train_batch_end", batch, batch, index)
        trainer._logger_connector.on_batch_end()
        progress.increment_completed()
        trainer._logger_connector.update_train_step_metrics()
        self.epoch_loop._batches_that_stepped += 1

    def _counts(self) -> list[tuple[L.Callback, dict[str, Any]]]:
        """The state of callbacks that count rounds as they begin, where one may begin and not be played."""
        if not isinstance(self.environment, Logged):
            return []
        counting = [c for c in cast(Any, self.trainer).callbacks if _overrides(c, "on_train_batch_start")]
        return [(callback, callback.state_dict()) for callback in counting if _overrides(callback, "state_dict")]

    def _walk(self, batch: Round) -> Decision:
        """Ask about events until the environment can tell what the arms bring; most can at once."""
        decision = self._decide(batch)
        while (other := self.environment.again(decision.arms)) is not None:
            if self.trainer.should_stop or self.trainer.received_sigterm:
                raise _Stopped
            batch.contexts = other
            decision = self._decide(batch)
        return decision

    def _unless_ended(self, t: int, step: Callable[[], Found]) -> Found:
        """What `step` finds; a log that ends in one process has ended, in this round, in all of them."""
        strategy, ended = self.trainer.strategy, None
        try:
            found = step()
        except LogEnded as error:
            ended = error
        if isinstance(strategy, Together) and isinstance(self.environment, Logged):
            said = strategy.exchange("event", t, None if ended is None else str(ended))
            ended = next((LogEnded(why) for why in said if why is not None), None)
        if ended is not None:
            raise ended
        return found

    def _decide(self, batch: Round) -> Decision:
        """What the algorithm plays, or a callback wants played."""
        module = self.trainer.lightning_module
        assert isinstance(module, BanditModule)
        decision = module.act(batch.contexts, mask=batch.mask)
        if batch.arms is not None:
            decision.arms = self._forced(batch.arms, decision.arms, batch.mask)
            decision.propensities = None
        return decision

    def _meet(self, t: int) -> None:
        """Several processes stop together: about twice a second they ask each other whether a signal came."""
        strategy = self.trainer.strategy
        if not isinstance(strategy, Together) or t < self._meeting:
            return
        since, when = self._met
        now = time.monotonic()
        said = strategy.exchange("meeting", t, (self.asked, now - when))
        self.asked = max(asked for asked, _ in said)
        self.trainer.should_stop |= bool(self.asked)
        self._met = (t, now)
        self._meeting = t + max(1, int(0.5 * (t - since) / max(1e-6, *(seconds for _, seconds in said))))

    @staticmethod
    def _forced(arms: Tensor, own: Tensor, mask: Tensor | None) -> Tensor:
        """What a callback wants played, but the algorithm's own choice where that is below 0 or forbidden."""
        if arms.shape != own.shape:
            raise NblError(
                f"a callback wants arms of shape {tuple(arms.shape)} played, but this round takes {tuple(own.shape)}"
                + (": a duel has two arms, so take out warm-ups that play one." if own.ndim == 2 else ".")
            )
        takes, pairs = arms >= 0, arms.view(len(arms), -1)
        if mask is not None:
            takes = takes & mask.expand(len(arms), -1).gather(-1, pairs.clamp_min(0)).view(arms.shape)
        return torch.where(takes if own.ndim == 1 else takes.all(-1, keepdim=True), arms, own)

    def _hook(self, name: str, *args: Any) -> None:
        call._call_callback_hooks(self.trainer, name, *args)
        call._call_lightning_module_hook(self.trainer, name, *args)

    def _check(self) -> None:
        """The module and the environment speak of the same problem, in a precision that can hold it."""
        module, environment = self.trainer.lightning_module, self.environment
        if self.trainer.precision in ("16-true", "bf16-true", "transformer-engine-float16"):
            raise NblError(
                f"precision={self.trainer.precision}: sums over rounds do not fit in 16 bits. "
                "Use bf16-mixed, 32-true or 64-true."
            )
        if not isinstance(module, BanditModule):
            raise NblError(f"BanditLoop plays a BanditModule, not a {type(module).__name__}.")
        for name in ("dim", "replicas", "blocks"):
            if getattr(module, name) != getattr(environment, name):
                raise NblError(
                    f"{type(module).__name__} has {name}={getattr(module, name)}, but {type(environment).__name__} has "
                    f"{getattr(environment, name)}: build both with the same."
                )
        if module.duel != environment.duel:
            one, other = (module, environment) if module.duel else (environment, module)
            raise NblError(
                f"{type(one).__name__} is for duels (two arms, and which of them won), {type(other).__name__} for "
                "rewards of one arm. Choose both for duels (algorithm=nvldb env=duel_cosine), or neither."
            )
        if module.fixed_arms and not environment.fixed_arms:
            raise NblError(
                f"{type(module).__name__}(fixed_arms=True), but the arms of {type(environment).__name__} change."
            )

    def _settle(self) -> None:
        """Checkpoints are written in `on_train_batch_end`, after `processed` and before `completed`: level the
        counters.
        """
        rounds: Any = self.epoch_loop.batch_progress.current
        rounds.ready = rounds.started = rounds.completed = rounds.processed
        self.epoch_loop.batch_progress.is_last_batch = False
        self.epoch_loop._batches_that_stepped = rounds.processed
        if self._meeting <= rounds.processed:  # resumed
            self._meeting, self._met = rounds.processed + 1, (rounds.processed, time.monotonic())
        if self._random is not None:
            torch.set_rng_state(self._random["torch"])
            name, keys, *rest = self._random["numpy"]
            np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
            version, state, gauss = self._random["python"]
            random.setstate((version, tuple(state), gauss))
            self._random = None

    def on_save_checkpoint(self) -> dict[str, Any]:
        """Lightning saves no random state; a user's algorithm or callback may use the global generators."""
        name, keys, *rest = cast(tuple[Any, ...], np.random.get_state())
        version, state, gauss = random.getstate()
        states = {
            "torch": torch.get_rng_state(),
            "numpy": [name, keys.tolist(), *rest],
            "python": [version, list(state), gauss],
        }
        return {"environment": self.environment.state_dict(), "random": states}

    def on_load_checkpoint(self, state: dict[str, Any]) -> None:
        self.environment.load_state_dict(state["environment"])
        self._random = state["random"]


def _overrides(callback: L.Callback, hook: str) -> bool:
    return getattr(type(callback), hook) is not getattr(L.Callback, hook)
