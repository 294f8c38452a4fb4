"""NeuralUCB and NeuralTS as a textbook has them: what the library is compared with, and nothing else.

Gradients by autograd, one backward pass an arm; the p x p inverse by Sherman and Morrison; one run at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Textbook:
    """A network with one hidden layer and biases, trained by full-batch gradient descent on all rounds so far.

    Args:
        dim: d.
        width: m.
        nu: how much to explore.
        lam: the ridge of the confidence matrix.
        steps: J, at each retraining.
        lr: step size.
        ridge: of the loss, on all weights.
        thompson: draw from N(f, nu^2 width^2) instead of adding nu width.
        dtype: of the p x p matrix; float64 is what the library computes in.
    """

    def __init__(
        self,
        dim: int,
        width: int,
        nu: float = 0.1,
        lam: float = 1.0,
        steps: int = 100,
        lr: float = 1e-3,
        ridge: float = 4.0,
        thompson: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.net = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, 1))
        self.size = sum(p.numel() for p in self.net.parameters())
        self.inverse = torch.eye(self.size, dtype=dtype) / lam
        self.width, self.nu, self.steps, self.lr, self.ridge, self.thompson = width, nu, steps, lr, ridge, thompson
        self.inputs, self.rewards = torch.zeros(0, dim), torch.zeros(0)

    def gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(x) and g(x) / sqrt(m).    (d,) -> (), (p,)"""
        self.net.zero_grad()
        out = self.net(x).squeeze()
        out.backward()
        g = torch.cat([p.grad.flatten() for p in self.net.parameters() if p.grad is not None])
        return out.detach(), g.to(self.inverse.dtype) / self.width**0.5

    def act(self, contexts: Tensor) -> int:
        """(K, d) -> arm"""
        scores = []
        for x in contexts:
            mean, g = self.gradient(x)
            sigma = (g @ (self.inverse @ g)).sqrt()
            scores.append(torch.normal(mean.to(sigma), self.nu * sigma) if self.thompson else mean + self.nu * sigma)
        return int(torch.stack(scores).argmax())

    def observe(self, x: Tensor, reward: Tensor) -> None:
        """The context played, (d,), and what came back."""
        _, g = self.gradient(x)
        u = self.inverse @ g
        self.inverse -= torch.outer(u, u) / (1.0 + g @ u)
        self.remember(x.unsqueeze(0), reward.view(1))

    def remember(self, inputs: Tensor, rewards: Tensor) -> None:
        """Rounds that are trained on.    (n, d), (n,)"""
        self.inputs, self.rewards = torch.cat([self.inputs, inputs]), torch.cat([self.rewards, rewards])

    def learn(self) -> None:
        optimizer = torch.optim.SGD(self.net.parameters(), lr=self.lr, weight_decay=self.ridge / len(self.rewards))
        for _ in range(self.steps):
            optimizer.zero_grad()
            (0.5 * (self.net(self.inputs).squeeze(-1) - self.rewards).square().mean()).backward()
            optimizer.step()
