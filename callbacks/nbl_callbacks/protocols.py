"""What a callback may ask of a module: small protocols, so that a callback drops into another project unchanged."""

from __future__ import annotations

from typing import Any, Protocol, cast, runtime_checkable

import lightning as L
from torch import Tensor


@runtime_checkable
class Restartable(Protocol):
    """Forgets what it learned and begins a new phase."""

    def restart(self, horizon: int | None = None, keep_history: bool = False, **changes: Any) -> None:
        """Begin anew; `horizon` is that of the phase in rounds, None where it is not known.

        `keep_history` (asked for only where the user did) keeps the data; `changes` are new hyper-parameters, of names
        in the module's `may_change`.
        """


@runtime_checkable
class Actor(Protocol):
    """Chooses arms, and changes no state in doing so."""

    def act(self, contexts: Tensor, exploit: bool = False, mask: Tensor | None = None) -> Any:
        """A decision with `arms` in it; `exploit` asks for the greedy one.    (R, K, d), (R, K)"""


@runtime_checkable
class Observer(Protocol):
    """Takes in what came back."""

    def observe(self, contexts: Tensor, arms: Tensor, feedback: Any, weight: Tensor | None = None) -> None:
        """Commit one round.    (R, K, d), (R,), feedback with `reward` (R,), (R,)"""


@runtime_checkable
class Deliverable(Protocol):
    """Takes in what came back for a decision made in an earlier round."""

    def deliver(self, ids: Tensor, contexts: Tensor, arms: Tensor, feedback: Any, weight: Any = None) -> None:
        """Commit an observation of an earlier round; `ids` are its decision's.    (R,), (R, K, d), (R,)"""


@runtime_checkable
class Heteroscedastic(Protocol):
    """Knows how noisy each outcome is, by its own estimate.

    A module that weighs its outcomes by that itself says so, `weighs_variance = True`, and is not weighed twice.
    """

    def variance(self, *inputs: Any) -> Tensor:
        """The variance of each outcome: of `(contexts, arms)` in a bandit, (R,), else of `(batch,)`, (n,)."""


@runtime_checkable
class Informed(Protocol):
    """Knows how much it has learned."""

    def logdet(self) -> Tensor:
        """log det of the confidence matrix over that of an empty one.    -> (R,)"""


@runtime_checkable
class Learner(Protocol):
    """Trains on what was observed."""

    def learn(self) -> None:
        """Train now."""


class Unsuitable(TypeError):
    """A callback that this module, or this batch, cannot serve."""


def require(module: object, protocol: type[Any], callback: object) -> Any:
    """`module`, known to follow `protocol`; otherwise an error that names the callback and what is missing."""
    wanted = sorted(name for name in vars(protocol) if not name.startswith("_"))
    missing = [name for name in wanted if not callable(getattr(module, name, None))]
    if missing:
        raise Unsuitable(
            f"{type(callback).__name__} needs a module that is {protocol.__name__}; "
            f"{type(module).__name__} has no {', '.join(f'`{name}`' for name in missing)}. "
            f"Write it (see nbl_callbacks.protocols.{protocol.__name__}) or take the callback out."
        )
    return module


def a_round(batch: Any, callback: object, *names: str) -> Any:
    """`batch`, known to be a bandit's round with these attributes."""
    missing = [name for name in names if not hasattr(batch, name)]
    if missing:
        raise Unsuitable(
            f"{type(callback).__name__} works on a bandit's rounds: batches with {', '.join(names)}. This batch, a "
            f"{type(batch).__name__}, has no {', '.join(missing)}."
        )
    return batch


def restarted(trainer: L.Trainer, module: L.LightningModule, batch: Any, rounds: int | None) -> None:
    """Tell every callback that keeps count of a phase (`on_restart`) that a new one of so many rounds begins."""
    for callback in cast(Any, trainer).callbacks:
        begin = getattr(callback, "on_restart", None)
        if begin is not None:
            begin(trainer, module, batch, rounds)
