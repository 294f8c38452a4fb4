"""U written out: its diagonal, its inverse, or its inverse block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from nbl.blocks import own
from nbl.design.base import Design, groups
from nbl.gradient import Gradient


class Diagonal(Design):
    """Only the diagonal of U."""

    def __init__(self, replicas: int, size: int, lam: float) -> None:
        super().__init__(replicas, size, lam)
        self.register_buffer("diagonal", torch.full((replicas, size), self.lam, dtype=torch.float64))

    diagonal: Tensor

    def squared(self, g: Gradient) -> Tensor:
        """sum_ij d_i^2 a_j^2 / U_ij, layer by layer, without writing g out."""
        if g.terms > 1:
            return (g.dense().square() / self.diagonal.unsqueeze(1)).sum(-1)
        total, at = torch.zeros((), dtype=torch.float64, device=self.gain.device), 0
        for layer, (a, d) in enumerate(g.layers):
            if d is None:
                d = a.new_ones(1, 1, 1).expand(*a.shape[:2], 1)
            o, i, blocks = d.shape[-1], a.shape[-1], g.blocks if g.block is not None and not layer else None
            size = o * i * (blocks or 1)
            inverse = self.diagonal[:, at : at + size].reciprocal()
            if blocks is not None and g.block is not None:
                part = own(torch.matmul(d.square().unsqueeze(1), inverse.view(-1, blocks, o, i)), g.block)
            else:
                part = torch.bmm(d.square(), inverse.view(-1, o, i))
            total, at = total + (part * a.square()).sum(-1), at + size
        return total

    def between(self, g: Gradient, K: int) -> Tensor:
        v = groups(g.dense(), K)
        return (v / self.diagonal[:, None, None]) @ v.mT

    def add(self, g: Gradient, weight: Tensor) -> None:
        new = self.diagonal + weight[:, None] * g.dense().squeeze(1).square()
        self.gain += (new / self.diagonal).log().sum(-1)
        self.diagonal.copy_(new)

    def scaled(self, factor: Tensor) -> dict[str, Tensor]:
        new = self.lam + factor[:, None] * (self.diagonal - self.lam)
        return {"diagonal": new, "gain": (new / self.lam).log().sum(-1)}

    def reset(self) -> None:
        self.diagonal.fill_(self.lam)
        self.gain.zero_()


class Full(Design):
    """U^-1, p x p, by Sherman and Morrison."""

    def __init__(self, replicas: int, size: int, lam: float) -> None:
        super().__init__(replicas, size, lam)
        eye = torch.eye(size, dtype=torch.float64) / self.lam
        self.register_buffer("inverse", eye.repeat(replicas, 1, 1))

    inverse: Tensor

    def squared(self, g: Gradient) -> Tensor:
        v = g.dense()
        return (torch.bmm(v, self.inverse) * v).sum(-1)

    def between(self, g: Gradient, K: int) -> Tensor:
        v = g.dense()
        return groups(torch.bmm(v, self.inverse), K) @ groups(v, K).mT

    def rebuild(self, v: Tensor, weight: Tensor, who: Tensor | None = None) -> None:
        """U = lam I + sum weight v v^T from scratch, in all replicas or those of a mask.    (R, n, p), (R, n), (R,)"""
        eye = torch.eye(self.size, dtype=torch.float64, device=v.device)
        gram = torch.bmm((v * weight.unsqueeze(-1)).mT, v)
        inverse = torch.linalg.inv(self.lam * eye + gram)
        gain = torch.linalg.slogdet(eye + gram / self.lam).logabsdet
        self.inverse.copy_(inverse if who is None else torch.where(who[:, None, None], inverse, self.inverse))
        self.gain.copy_(gain if who is None else torch.where(who, gain, self.gain))

    def add(self, g: Gradient, weight: Tensor) -> None:
        v = g.dense()  # (R, 1, p)
        u = torch.bmm(v, self.inverse)
        growth = weight * (u * v).sum((-1, -2))
        u = u * (weight / (1.0 + growth)).sqrt()[:, None, None]
        self.inverse.baddbmm_(u.mT, u, alpha=-1.0)
        self.gain += growth.log1p()

    def scaled(self, factor: Tensor) -> dict[str, Tensor]:
        ridge = self.lam * torch.eye(self.size, dtype=torch.float64, device=self.inverse.device)
        new = ridge + factor[:, None, None] * (torch.linalg.inv(self.inverse) - ridge)
        gain = torch.linalg.slogdet(new / self.lam).logabsdet
        return {"inverse": torch.linalg.inv(new), "gain": gain}

    def reset(self) -> None:
        self.inverse.copy_(torch.eye(self.size, dtype=torch.float64, device=self.inverse.device) / self.lam)
        self.gain.zero_()


class Blockwise(Design):
    """U^-1 of disjoint vectors, block by block: (K, d, d) instead of (K d, K d), exactly.

    Args:
        blocks: K.
        size: K d.
    """

    def __init__(self, replicas: int, size: int, lam: float, blocks: int) -> None:
        super().__init__(replicas, size, lam)
        self.blocks = blocks
        eye = torch.eye(size // blocks, dtype=torch.float64) / self.lam
        self.register_buffer("inverse", eye.repeat(replicas, blocks, 1, 1))

    inverse: Tensor

    def squared(self, g: Gradient) -> Tensor:
        v, block = self._inside(g)
        return (own(torch.matmul(v.unsqueeze(1), self.inverse), block) * v).sum(-1)

    def between(self, g: Gradient, K: int) -> Tensor:
        v, block = self._inside(g)
        product = groups(own(torch.matmul(v.unsqueeze(1), self.inverse), block), K) @ groups(v, K).mT
        block = block.reshape(len(block), -1, K)
        return product * (block.unsqueeze(-1) == block.unsqueeze(-2))

    def add(self, g: Gradient, weight: Tensor) -> None:
        v, block = self._inside(g)  # (R, 1, d), (R, 1)
        where = torch.arange(self.replicas, device=block.device), block[:, 0]
        inverse = self.inverse[where]
        u = torch.bmm(v, inverse)
        growth = weight * (u * v).sum((-1, -2))
        u = u * (weight / (1.0 + growth)).sqrt()[:, None, None]
        self.inverse[where] = inverse.baddbmm_(u.mT, u, alpha=-1.0)
        self.gain += growth.log1p()

    @staticmethod
    def _inside(g: Gradient) -> tuple[Tensor, Tensor]:
        assert g.block is not None
        return g.layers[0][0], g.block

    def reset(self) -> None:
        self.inverse.copy_(torch.eye(self.inverse.shape[-1], dtype=torch.float64, device=self.gain.device) / self.lam)
        self.gain.zero_()


def matrix(replicas: int, size: int, lam: float, blocks: int | None) -> Full | Blockwise:
    """The confidence matrix of a linear model, whose contexts may come in blocks."""
    return Full(replicas, size, lam) if blocks is None else Blockwise(replicas, size, lam, blocks)
