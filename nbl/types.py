"""What is passed between the loop, an algorithm and an environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class NblError(ValueError):
    """Something a user can cause and can mend: the message says what, where and what to do."""


@dataclass
class Decision:
    """What an algorithm chose, and why. Shapes: R replicas, K arms.

    Attributes:
        arms: the arm to play, (R,); in a duel the two arms, (R, 2).
        scores: what the rule maximised, (R, K); in a duel over pairs, (R, K, K).
        means: the model's estimate of the mean reward, (R, K); None where there is no model.
        widths: the width of the confidence interval, (R, K), of a pair (R, K, K); None where there is none.
        propensities: the probability with which `arms` was chosen, (R,); None where it has no closed form.
        ids: one number a decision, (R,), so that feedback can come back later.
        extra: what the algorithm adds to the table of rounds, each (R,) (for example the ensemble's `member`).
    """

    arms: Tensor
    scores: Tensor
    means: Tensor | None = None
    widths: Tensor | None = None
    propensities: Tensor | None = None
    ids: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Feedback:
    """What came back for the arms played. All (R,).

    Attributes:
        reward: the noisy reward (in a duel: 1.0 when the first arm won).
        regret: the best mean reward minus the mean reward of the arm played (in a duel: the average of the two arms');
            None outside simulations.
        optimal: whether the arm played is one of the best; None outside simulations.
        extra: anything else the environment knows (for example the `variance` of each reward).
    """

    reward: Tensor
    regret: Tensor | None = None
    optimal: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)


class Weights(NamedTuple):
    """The weight of an observation in the loss and in the confidence matrix. Each (R,) or a number."""

    loss: Tensor | float = 1.0
    design: Tensor | float = 1.0


@dataclass
class Round:
    """One round, as callbacks see it: the `batch` of Lightning's batch hooks.

    A callback may write to it in `on_train_batch_start`: `arms` to force what is played (below 0: the algorithm's own
    choice), `weight` to weigh the observation (a value, or a function of the round, called once feedback is there),
    `hold` to keep the feedback from the learner (the callback then delivers it later), `learn=False` to leave out
    retraining.
    After the round `decision` and `feedback` are filled in.
    """

    t: int
    contexts: Tensor
    mask: Tensor | None = None
    arms: Tensor | None = None
    weight: Tensor | Weights | Callable[[Round], Tensor | Weights] | None = None
    hold: bool = False
    learn: bool = True
    decision: Decision | None = None
    feedback: Feedback | None = None
