"""U through the kernel of what was played: exact, and never a p-vector.

With D = diag(w_i), K the kernel of the played gradients and k that of a new one (push-through identity):

    g^T U^-1 g = (g.g - k^T D^1/2 (lam I + D^1/2 K D^1/2)^-1 D^1/2 k) / lam
    log det U  = p log lam + log det(I + D^1/2 K D^1/2 / lam)

The subtraction cancels: this is why designs are float64.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nbl.design.base import Design, groups, root
from nbl.design.explicit import Full
from nbl.gradient import Gradient, length2

BAND = 256  # rows of the factor multiplied at a time: what is above the diagonal is left out band by band
MOST = 12_000  # the largest p for which a p x p matrix is considered (1.2 GB a replica)


def _bands(n: int) -> list[slice]:
    """Rows of the factor that are multiplied together; one of none, where there are none."""
    return [slice(i, min(i + BAND, n)) for i in range(0, max(n, 1), BAND)]


class Dual(Design):
    """The kernel of what was played, as the inverse of its Cholesky factor, which grows by a row a round.

    Keeping L^-1 and not L turns every triangular solve into a matrix product on the buffer as it lies. What costs is
    reading it: products go by bands of rows and leave out the zeros above the diagonal.
    """

    counters = ("n", "blocks")
    blocks: int | None = None  # K where gradients are disjoint in the first layer
    block: Tensor

    def __init__(self, replicas: int, size: int, lam: float) -> None:
        super().__init__(replicas, size, lam)
        self.n, self.growing = 0, {"roots": (1,), "factor": (1, 2)}
        self.register_buffer("roots", torch.zeros(replicas, 0, dtype=torch.float64))  # sqrt(w_i)
        self.register_buffer("factor", torch.zeros(replicas, 0, 0, dtype=torch.float64))  # L^-1

    roots: Tensor
    factor: Tensor

    def played(self) -> Gradient:
        """The gradients in U.    -> (R, n, p)"""
        rows = {name: kept[:, : self.n] for name in self.parts if (kept := self._buffers.get(name)) is not None}
        pairs = [(a, rows.get("d" + name[1:])) for name, a in rows.items() if name[0] == "a"]
        return Gradient(pairs, rows.get("block"), self.blocks)

    @property
    def parts(self) -> list[str]:
        """The buffers that hold what gradients are made of, once the first one has shown their sizes."""
        return [name for name in self._buffers if name == "block" or name[:2] in ("a_", "d_")]

    def project(self, g: Gradient) -> Tensor:
        """L^-1 D^1/2 k, as columns.    (R, m, p) -> (R, n, m)"""
        n, factor = self.n, self.factor
        cross = g.gram(self.played()).mul_(self.roots[:, :n].unsqueeze(1)).mT
        if n <= BAND:
            return torch.bmm(factor[:, :n, :n], cross)
        return torch.cat([torch.bmm(factor[:, b, : b.stop], cross[:, : b.stop]) for b in _bands(n)], 1)

    def squared(self, g: Gradient) -> Tensor:
        squared = g.square()
        if self.n:
            squared = squared - self.project(g).square_().sum(1)
        return squared if self.lam == 1.0 else squared / self.lam

    def between(self, g: Gradient, K: int) -> Tensor:
        """K projections, not K^2: a difference's is the difference of theirs."""
        apart = g.map(lambda x: groups(x, K).flatten(0, 1))
        gram = apart.gram(apart).view(self.replicas, -1, K, K)
        if self.n:
            z = groups(self.project(g).mT, K)
            gram = gram - z @ z.mT
        return gram / self.lam

    def add(self, g: Gradient, weight: Tensor) -> None:
        self.gain.add_(self._append(g, weight).log().sub_(math.log(self.lam)))

    def _append(self, g: Gradient, weight: Tensor, with_rows: Tensor | None = None) -> Tensor:
        """A row more, and its squared pivot (R,). `with_rows` (R, n): the kernel with all other rows counts as 0."""
        n, root = self.n, weight.sqrt().unsqueeze(1)
        self._keep(g, root)
        with torch.inference_mode():
            cross = g.gram(self.played())  # with itself at the end    (R, 1, n + 1)
            cross.squeeze(1).mul_(self.roots[:, : n + 1]).mul_(root)
            new = self.factor[:, n : n + 1, : n + 1].zero_()
            row = self._solve(cross[..., :n], with_rows, new[..., :n])
            corner = cross[..., n].add_(self.lam).sub_(length2(row)).clamp_min_(self.lam)  # (R, 1)
            new[..., n:].fill_(1.0)
            new.div_(corner.sqrt().unsqueeze(1))
        return corner.squeeze(1)

    def _solve(self, cross: Tensor, with_rows: Tensor | None, new: Tensor) -> Tensor:
        """r = L^-1 cross, and -L^-T r added to `new`: a band of L^-1 serves both while it is in the cache. (R, 1, n)"""
        rows = []
        for b in _bands(cross.shape[-1]):
            band = self.factor[:, b, : b.stop]
            row = torch.bmm(cross[..., : b.stop], band.mT)
            rows.append(row if with_rows is None else row * with_rows[:, None, b])
            new[..., : b.stop].baddbmm_(rows[-1], band, alpha=-1.0)
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)

    def _keep(self, g: Gradient, root: Tensor) -> None:
        """Store what a gradient is made of, and sqrt(w); the buffers are made when the first one shows their sizes."""
        parts: dict[str, Tensor | None] = {"roots": root, "block": g.block}
        parts |= {f"a_{layer}": a for layer, (a, _) in enumerate(g.layers)}
        parts |= {f"d_{layer}": d for layer, (_, d) in enumerate(g.layers)}
        for name, part in parts.items():
            if part is not None and name not in self._buffers:
                self.register_buffer(name, part.new_zeros(self.replicas, 0, *part.shape[2:]))
                self.growing[name], self.blocks = (1,), g.blocks
        self.reserve(1)
        for name, part in parts.items():
            if part is not None:
                getattr(self, name)[:, self.n : self.n + 1] = part
        self.n += 1

    def scaled(self, factor: Tensor) -> dict[str, Tensor]:
        n = self.n
        if not n:
            return {}
        roots = self.roots[:, :n] * factor.sqrt()[:, None]
        kernel = self.played().gram(self.played()) * roots[:, :, None] * roots[:, None]
        eye = torch.eye(n, dtype=torch.float64, device=roots.device)
        lower = root(kernel + self.lam * eye, self.lam)
        gain = 2.0 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1) - n * math.log(self.lam)
        return {"roots": roots, "factor": torch.linalg.solve_triangular(lower, eye, upper=False), "gain": gain}

    def reset(self) -> None:
        self.n = 0
        self.gain.zero_()

    def set_extra_state(self, state: dict[str, int]) -> None:
        super().set_extra_state(state)
        self.growing.update({name: (1,) for name in self.parts})

    @torch.inference_mode(False)  # a user's: what is made here is updated in place after it too
    def full(self) -> Full:
        """The same matrix, p x p:  U^-1 = (I - G^T D^1/2 (lam I + D^1/2 K D^1/2)^-1 D^1/2 G) / lam."""
        full = Full(self.replicas, self.size, self.lam).to(self.gain.device)
        rows = torch.bmm(self.factor[:, : self.n, : self.n], self.roots[:, : self.n, None] * self.played().dense())
        full.inverse.baddbmm_(rows.mT, rows, alpha=-1.0 / self.lam)
        full.gain.copy_(self.gain)
        return full


class Auto(Design):
    """Dual until as many gradients are in it as they are long, then Full: the cheaper of the two in every round.

    A round of Dual at n costs about what a round of Full costs at p = n. The move is not made where p x p is too
    large, or where the horizon is known and too near to repay it.
    """

    def __init__(self, replicas: int, size: int, lam: float, horizon: int | None = None) -> None:
        super().__init__(replicas, size, lam)
        worth = size <= MOST and (horizon is None or horizon > 1.25 * size)
        self.turn, self.horizon = size if worth else None, horizon
        self.form: Dual | Full = self._dual()

    @torch.inference_mode(False)
    def _dual(self) -> Dual:
        dual = Dual(self.replicas, self.size, self.lam).to(self.gain.device)
        dual.most = self.turn or self.horizon
        return dual

    def squared(self, g: Gradient) -> Tensor:
        return self.form.squared(g)

    def between(self, g: Gradient, K: int) -> Tensor:
        return self.form.between(g, K)

    def add(self, g: Gradient, weight: Tensor) -> None:
        self.form.add(g, weight)
        if isinstance(self.form, Dual) and self.turn is not None and self.form.n >= self.turn:
            self.form = self.form.full()

    def rescale(self, factor: Tensor, who: Tensor) -> None:
        self.form.rescale(factor, who)

    def logdet(self) -> Tensor:
        return self.form.gain

    def reset(self) -> None:
        self.form = self._dual()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        full = f"{prefix}form.inverse" in state_dict
        if full != isinstance(self.form, Full):
            self.form = Full(self.replicas, self.size, self.lam).to(self.gain.device) if full else self._dual()
        super()._load_from_state_dict(state_dict, prefix, *args)
