"""Weights from variances: a noisy outcome tells less."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor, nn

from nbl_callbacks.protocols import Heteroscedastic, Unsuitable, require


class Weighting(NamedTuple):
    """Weights in the loss and in the confidence matrix, (R,) each."""

    loss: Tensor
    design: Tensor


def weights(variance: Tensor, mode: str = "inverse", eps: float = 0.1) -> Weighting:
    """Variances to weights, element by element; nothing is checked, so that no device is waited for."""
    if mode == "direct":
        return Weighting(torch.ones_like(variance), variance)
    inverse = 1.0 / variance.sqrt().clamp_min(eps).square()
    return Weighting(inverse, inverse)


class VarianceWeighting(L.Callback):
    """Weighs each observation by its variance, as it is when the observation is made; later rounds do not change it.

    In a bandit it writes `batch.weight`, a function of the round that the loop calls once the feedback is there. In any
    other project it writes the weights (n,) into the batch before the training step: `batch["weight"]` in a dict (any
    MutableMapping), the last item of a list; a tuple cannot be written to, so let the collate function make a list.
    There the variance is asked for in eval mode and without gradients, so that no dropout is drawn and no batch
    statistic counts twice.

    Args:
        mode: `inverse` is 1 / max(sigma, eps)^2 for loss and confidence matrix (variance-aware duels); `direct` is
            sigma^2 for the confidence matrix alone (mu' of NeuralLog-UCB-2), and nothing changes in the loss.
        eps: the smallest sigma believed; None is 1 / sqrt(d), d the length of a context (variance-aware duels).
        source: `model` asks `module.variance`, `oracle` reads `feedback.extra["variance"]`, `auto` takes the oracle's
            where it is offered and else the model's; with neither, the first round says so.
    """

    def __init__(self, mode: str = "inverse", eps: float | None = 0.1, source: str = "auto") -> None:
        for name, value, known in (
            ("mode", mode, ("inverse", "direct")),
            ("source", source, ("auto", "model", "oracle")),
        ):
            if value not in known:
                raise ValueError(f"VarianceWeighting({name}={value!r}): choose one of {', '.join(known)}.")
        if eps is not None and not eps > 0:
            raise ValueError(f"VarianceWeighting(eps={eps!r}): need a standard deviation above 0, for example 0.1.")
        self.mode, self.eps, self.source = mode, eps, source

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if getattr(pl_module, "weighs_variance", False):
            raise Unsuitable(
                f"VarianceWeighting: {type(pl_module).__name__} weighs each observation by its variance itself, and "
                "would do so twice. Take the callback out."
            )
        if self.source == "model":  # what the environment offers is known once it has answered
            require(pl_module, Heteroscedastic, self)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if hasattr(batch, "contexts"):
            length = getattr(pl_module, "dim", batch.contexts.shape[-1])  # of contexts with their zeros
            eps = self.eps or length**-0.5
            batch.weight = lambda played: self.weigh(self._variance(pl_module, played), eps)
            return
        if self.eps is None:
            raise Unsuitable("VarianceWeighting(eps=None) is for a bandit's rounds; give a number, for example 0.1.")
        if self.source == "oracle" or self.mode == "direct":
            raise Unsuitable(
                f"VarianceWeighting(mode={self.mode!r}, source={self.source!r}) is for a bandit's rounds; a batch has "
                "only its loss to weigh: use mode='inverse' and source='model'."
            )
        if not isinstance(batch, MutableMapping | list):
            raise Unsuitable(
                "VarianceWeighting writes weights into a batch that is a dict or a list, not a "
                f"{type(batch).__name__}. Let the collate function of the DataLoader make one of the two."
            )
        require(pl_module, Heteroscedastic, self)
        with _asleep(pl_module):
            variance = self._ask(pl_module, batch)
        items = batch.values() if isinstance(batch, MutableMapping) else batch
        lengths = {len(item) for item in items if isinstance(item, Tensor) and item.ndim}
        if variance.ndim != 1 or (lengths and len(variance) not in lengths):
            size = str(next(iter(lengths))) if len(lengths) == 1 else "n"
            raise ValueError(_misshapen("`variance(batch)`", variance, f"({size},): one number a sample"))
        weight = self.weigh(variance).loss
        if isinstance(batch, MutableMapping):
            batch["weight"] = weight
        else:
            batch.append(weight)

    def weigh(self, variance: Tensor, eps: float | None = None) -> Weighting:
        """Variances to weights, with another eps than the callback's own where it is given."""
        if not bool((variance >= 0).all()):  # false for NaN as well
            bad = float(variance[~(variance >= 0)][0])
            raise ValueError(
                f"VarianceWeighting: a variance is {bad}; need 0 or more. Usual cause: the model diverged."
            )
        return weights(variance, self.mode, eps or self.eps or 0.0)

    def _variance(self, module: Any, played: Any) -> Tensor:
        variance = played.feedback.extra.get("variance") if self.source != "model" else None
        if variance is not None:
            variance, who = torch.as_tensor(variance), '`feedback.extra["variance"]`'
        elif self.source == "oracle":
            raise Unsuitable(
                "VarianceWeighting(source='oracle'): this environment offers no `variance` in its feedback."
            )
        elif not callable(getattr(module, "variance", None)):
            raise Unsuitable(
                "VarianceWeighting(source='auto'): this environment offers no `variance` in its feedback, and "
                f"{type(module).__name__} has no `variance` (see nbl_callbacks.protocols.Heteroscedastic). Write one "
                "of the two or take the callback out."
            )
        else:
            variance, who = self._ask(module, played.contexts, played.decision.arms), "`variance(contexts, arms)`"
        need = tuple(played.decision.arms.shape[:1])  # a duel has two arms and one outcome
        if tuple(variance.shape) != need:
            raise ValueError(_misshapen(who, variance, f"{need}: one number an outcome"))
        return variance

    @torch.no_grad()
    def _ask(self, module: Any, *inputs: Any) -> Tensor:
        variance: Tensor = module.variance(*inputs)
        return variance.detach()


def _misshapen(who: str, variance: Tensor, need: str) -> str:
    hint = " (squeeze the last axis)" if variance.ndim > 1 and variance.shape[-1] == 1 else ""
    return f"VarianceWeighting: {who} has shape {tuple(variance.shape)}; need {need}{hint}."


@contextmanager
def _asleep(module: nn.Module) -> Iterator[None]:
    """Every part in eval mode, and afterwards each in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode
