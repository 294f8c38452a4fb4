"""Weights from variances: a noisy outcome tells less."""

from __future__ import annotations

from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor

from nbl_callbacks.protocols import Heteroscedastic, Unsuitable, require


class Weighting(NamedTuple):
    """Weights in the loss and in the confidence matrix, (R,) each."""

    loss: Tensor
    design: Tensor


class VarianceWeighting(L.Callback):
    """Weighs each observation by its variance, as it is when the observation is made; later rounds do not change it.

    In a bandit it writes `batch.weight`, a function of the round that the loop calls once the feedback is there. In any
    other project it writes the weights (n,) into the batch before the training step: `batch["weight"]` in a dict,
    the last item of a list.

    Args:
        mode: `inverse` is 1 / max(sigma, eps)^2 for loss and confidence matrix (variance-aware duels); `direct` is
            sigma^2 for the confidence matrix alone (mu' of NeuralLog-UCB-2), and nothing changes in the loss.
        eps: the smallest sigma believed.
        source: `model` asks `module.variance`, `oracle` reads `feedback.extra["variance"]`, `auto` takes the oracle's
            where it is offered and else the model's.
    """

    def __init__(self, mode: str = "inverse", eps: float = 0.1, source: str = "auto") -> None:
        for name, value, known in (
            ("mode", mode, ("inverse", "direct")),
            ("source", source, ("auto", "model", "oracle")),
        ):
            if value not in known:
                raise ValueError(f"VarianceWeighting({name}={value!r}): choose one of {', '.join(known)}.")
        if not eps > 0:
            raise ValueError(f"VarianceWeighting(eps={eps!r}): need a standard deviation above 0, for example 0.1.")
        self.mode, self.eps, self.source = mode, eps, source

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self.source != "oracle":
            require(pl_module, Heteroscedastic, self)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if hasattr(batch, "contexts"):
            batch.weight = lambda played: self.weigh(self._variance(pl_module, played))
            return
        if self.source == "oracle" or self.mode == "direct":
            raise Unsuitable(
                f"VarianceWeighting(mode={self.mode!r}, source={self.source!r}) is for a bandit's rounds; a batch has "
                "only its loss to weigh: use mode='inverse' and source='model'."
            )
        if not isinstance(batch, dict | list):
            raise Unsuitable(
                f"VarianceWeighting writes weights into a batch that is a dict or a list, not a {type(batch).__name__}."
            )
        weight = self.weigh(self._ask(pl_module, batch)).loss
        if isinstance(batch, dict):
            batch["weight"] = weight
        else:
            batch.append(weight)

    def weigh(self, variance: Tensor) -> Weighting:
        """Variances to weights."""
        if not bool((variance >= 0).all()):  # false for NaN as well
            bad = float(variance[~(variance >= 0)][0])
            raise ValueError(
                f"VarianceWeighting: a variance is {bad}; need 0 or more. Usual cause: the model diverged."
            )
        if self.mode == "direct":
            return Weighting(torch.ones_like(variance), variance)
        inverse = 1.0 / variance.sqrt().clamp_min(self.eps).square()
        return Weighting(inverse, inverse)

    def _variance(self, module: Any, played: Any) -> Tensor:
        offered = played.feedback.extra.get("variance") if self.source != "model" else None
        if offered is not None:
            return torch.as_tensor(offered)
        if self.source == "oracle":
            raise Unsuitable(
                "VarianceWeighting(source='oracle'): this environment offers no `variance` in its feedback."
            )
        return self._ask(module, played.contexts, played.decision.arms)

    @torch.no_grad()
    def _ask(self, module: Any, *inputs: Any) -> Tensor:
        variance: Tensor = module.variance(*inputs)
        return variance.detach()
