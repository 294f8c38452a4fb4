"""What a callback may ask of a module: small protocols, so that a callback drops into another project unchanged."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from torch import Tensor


@runtime_checkable
class Restartable(Protocol):
    """Forgets what it learned and begins a new phase."""

    def restart(self, horizon: int | None = None) -> None:
        """Begin anew; `horizon` is the length of the phase in rounds, None where it is not known."""


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
class Learner(Protocol):
    """Trains on what was observed."""

    def learn(self) -> None:
        """Train now."""


P = TypeVar("P")


def require(module: object, protocol: type[P], callback: object) -> P:
    """`module`, known to follow `protocol`; otherwise a TypeError that names the callback and what is missing."""
    wanted = sorted(name for name in vars(protocol) if not name.startswith("_"))
    missing = [name for name in wanted if not callable(getattr(module, name, None))]
    if missing:
        raise TypeError(
            f"{type(callback).__name__} needs a module that is {protocol.__name__}; "
            f"{type(module).__name__} has no {', '.join(f'`{name}`' for name in missing)}. "
            f"Write it (see nbl_callbacks.protocols.{protocol.__name__}) or take the callback out."
        )
    return cast(P, module)
