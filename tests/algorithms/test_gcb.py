"""NeuralGCB, SupNeuralUCB and Batched NeuralUCB against their pseudocode, written out one replica and one round at a
time.
"""

import math

import pytest
import torch

import nbl
from nbl.algorithms import BatchedNeuralUCB, NeuralGCB, NeuralUCB, SupNeuralUCB
from nbl.envs import GcbH1, ZhouH1
from nbl.types import Feedback, NblError

R, K, D = 3, 4, 3
SMALL = {
    "net": {"kind": "ntk", "width": 6},
    "fit": {"steps": 5, "lr": 0.01, "ridge": 0.2, "towards": "start"},
    "lam": 0.2,
}
GCB = {**SMALL, "levels": 4, "sigma0": 4.0, "eta0": 3.0, "alpha0": 0.3, "norm": 0.5, "noise": 0.1}


def environment(replicas=R, seed=0):
    return ZhouH1(arms=K, dim=D, replicas=replicas, seed=seed, noise=0.1)


class Slow:
    """Sets of rounds and p x p matrices of one replica, level by level, as the papers write them."""

    def __init__(self, module, r):
        self.module, self.r, self.M = module, r, module.levels
        self.psi = [[] for _ in range(self.M)]
        self.ctr, self.g = [0] * self.M, []

    def predictions(self, x):
        """f and sigma of every level, (M, K) each."""
        features = self.module.net.features(x.expand(R, -1, -1), self.module.net.theta0).dense()[self.r]
        f = self.module.net(x.expand(R, -1, -1)).view(R, self.M, -1)[self.r]
        sigma = torch.zeros_like(f)
        for level, rounds in enumerate(self.psi):
            V = self.module.lam * torch.eye(features.shape[1], dtype=torch.float64)
            for t in rounds:
                V += torch.outer(self.g[t], self.g[t])
            sigma[level] = ((features @ torch.linalg.inv(V)) * features).sum(-1).sqrt()
        return f, sigma

    def gcb(self, t, x):
        """Algorithm 1, lines 4 to 29: arm, level, v and the level to store at; levels from 0."""
        m, (f, sigma) = self.module, self.predictions(x)
        r, A, max_mu = 0, list(range(K)), {}
        while True:
            widest = max(sigma[r, a] for a in A)
            max_mu[r] = max(A, key=lambda a: f[r, a])
            ucb = {a: f[r, a] + m.beta * sigma[r, a] for a in A}
            lcb = {a: f[r, a] - m.beta * sigma[r, a] for a in A}
            if widest <= m.sigma0 * 2.0 ** -(r + 1):
                best = max(A, key=ucb.get)
                if sigma[r, best] <= m.eta0 / math.sqrt(t) or r == self.M - 1:
                    return best, r, 1, min(r + 1, self.M - 1)
                A, r = [a for a in A if ucb[a] >= max(lcb.values())], r + 1
            elif r == 0 or self.ctr[r] > m.alpha0 * 4.0 ** (r + 1):
                return max(A, key=lambda a: sigma[r, a]), r, 2, r
            else:
                return max_mu[r - 1], r, 3, r

    def sup(self, t, x):
        """Kassraie and Krause: the same with widths beta sigma."""
        m, (f, sigma) = self.module, self.predictions(x)
        s, A = 0, list(range(K))
        while True:
            width = {a: m.beta * sigma[s, a] for a in A}
            ucb = {a: f[s, a] + width[a] for a in A}
            if max(width.values()) <= 1 / math.sqrt(m.horizon) or (
                s == self.M - 1 and max(width.values()) <= 2.0 ** -(s + 1)
            ):
                return max(A, key=ucb.get), s, 1, None
            if max(width.values()) <= 2.0 ** -(s + 1):
                A, s = [a for a in A if ucb[a] >= max(ucb.values()) - 2.0**-s], s + 1
            else:
                return max(A, key=width.get), s, 2, s

    def store(self, x, level, v, place):
        features = self.module.net.features(x.expand(R, 1, -1), self.module.net.theta0).dense()[self.r, 0]
        self.g.append(features)
        if v != 1:
            self.ctr[level] += 1
        if place is not None:
            self.psi[place].append(len(self.g) - 1)


@pytest.mark.parametrize("kind", ["gcb", "sup"])
def test_every_round_is_the_pseudocodes(kind):
    """Arm, level, branch and all sets, over 80 rounds in which every branch and several levels occur."""
    if kind == "gcb":
        module = NeuralGCB(D, replicas=R, **GCB).double()
    else:
        module = SupNeuralUCB(D, replicas=R, levels=4, horizon=30, beta=0.15, **{**SMALL, "lam": 0.5}).double()
    env, slow, met = environment(), [Slow(module, r) for r in range(R)], set()
    for t in range(1, 81):
        x = env.contexts(t)
        decision = module.act(x)
        for r in range(R):
            arm, level, v, place = getattr(slow[r], kind)(t, x[r])
            found = (decision.arms[r].item(), decision.extra["level"][r].item() - 1, decision.extra["branch"][r].item())
            assert found == (arm, level, v), f"round {t}, replica {r}"
            assert [decision.extra[f"psi_{i + 1}"][r].item() for i in range(4)] == [len(p) for p in slow[r].psi]
            slow[r].store(x[r, arm], level, v, place)
            met.add((level, v))
        module.observe(x, decision, env.pull(decision.arms))
        module.learn()
    assert {v for _, v in met} == ({1, 2, 3} if kind == "gcb" else {1, 2}) and len({level for level, _ in met}) >= 3
    if kind == "gcb":
        assert module.ctr.tolist() == [s.ctr for s in slow]


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_each_level_is_trained_on_its_own_rounds_when_its_batch_is_full(start):
    """Networks of a stack against networks that are alone with Psi^(r); q_r = 2, 4, 8, 16."""
    options = {**GCB, "fit": {"steps": 4, "optimizer": "adam", "lr": 0.01, "start": start}}
    module = NeuralGCB(D, replicas=R, batch={"first": 2, "factor": 2}, **options).double()
    alone = {}  # (replica, level): a NeuralUCB that is told the rounds of that level
    for r in range(R):
        for level in range(4):
            one = NeuralUCB(D, seed=r, **SMALL | {"fit": options["fit"]}, retrain={"every": 2 * 2**level}).double()
            alone[r, level] = one
    env = environment()
    for t in range(1, 71):
        x = env.contexts(t)
        decision = module.act(x)
        feedback = env.pull(decision.arms)
        module.observe(x, decision, feedback)
        module.learn()
        for r in range(R):
            v, level = decision.extra["branch"][r].item(), decision.extra["level"][r].item() - 1
            one = alone[r, min(3, level + 1) if v == 1 else level]
            one.observe(x[r], decision.arms[r : r + 1], feedback.reward[r : r + 1])
            one.learn()
    probe = environment().contexts(1)
    f = module.net(probe)
    trained = 0
    for (r, level), one in alone.items():
        torch.testing.assert_close(f[r, level], one.net(probe[r : r + 1])[0])
        trained += bool(one.net(probe[r : r + 1]).abs().max() > 0)
    assert trained >= 4


def test_adaptive_batches_follow_each_levels_determinant():
    """A level retrains when det V^(r) has grown by the factor since it last did, and only then."""
    module = NeuralGCB(D, replicas=R, batch={"logdet": 3.0}, **GCB).double()
    env, mark, seen = environment(), module.mark.clone(), module.psi.clone()
    often = 0
    for t in range(1, 61):
        x = env.contexts(t)
        decision = module.act(x)
        module.observe(x, decision, env.pull(decision.arms))
        before = module.net.theta.clone()
        module.learn()
        moved = (module.net.theta != before).any(-1).view(R, 4)
        grown = (module.psi > seen) & ((module.design.logdet() - mark >= math.log(3.0)) | (seen == 0))
        assert torch.equal(moved, grown)
        mark, seen = torch.where(grown, module.design.logdet(), mark), torch.where(grown, module.psi, seen)
        often += int(moved.sum())
    assert 4 * R < often < 0.75 * 60 * R


def test_forbidden_arms_do_not_hold_up_the_levels():
    """An arm that may never be played stays uncertain; the walk must not look at it."""
    module, env = NeuralGCB(D, replicas=R, **GCB).double(), environment()
    mask, levels = torch.tensor([True, True, False, True]), []
    for t in range(1, 61):
        x = env.contexts(t)
        x[:, 2] *= 100.0
        decision = module.act(x, mask=mask)
        assert (decision.arms != 2).all()
        module.observe(x, decision, env.pull(decision.arms))
        module.learn()
        levels.append(decision.extra["level"])
    assert torch.stack(levels).max() >= 3
    assert torch.equal(module.psi.sum(1), torch.full((R,), 60))


def test_arms_alone_and_decisions_say_the_same():
    """Without a mask the walk made again at observing is the one made at acting."""
    both = [NeuralGCB(D, replicas=R, **GCB).double() for _ in range(2)]
    env = environment()
    for t in range(1, 31):
        x = env.contexts(t)
        decision = both[0].act(x)
        reward = env.pull(decision.arms).reward
        both[0].observe(x, decision, reward)
        both[1].observe(x, decision.arms, Feedback(reward))
        for module in both:
            module.learn()
    assert torch.equal(both[0].psi, both[1].psi) and torch.equal(both[0].ctr, both[1].ctr)
    assert torch.equal(both[0].net.theta, both[1].net.theta)


def test_batched_neural_ucb_stands_still_within_a_batch():
    """Means and widths of a probe change at the ends of batches of 5 only, and are NeuralUCB's there."""
    module = BatchedNeuralUCB(D, replicas=R, nu=0.5, retrain={"every": 5}, **SMALL).double()
    env, probe, last = environment(), environment().contexts(1), None
    for t in range(1, 26):
        decision = module.act(probe)
        if (t - 1) % 5 and last is not None:
            torch.testing.assert_close(decision.scores, last.scores, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(decision.widths, last.widths, rtol=1e-12, atol=1e-12)
        elif last is not None:
            assert (decision.widths < last.widths).any() and not torch.equal(decision.means, last.means)
        last = decision
        x = env.contexts(t)
        played = module.act(x)
        module.observe(x, played, env.pull(played.arms))
        module.learn()


def test_batches_of_one_are_neural_ucb():
    """The same scores, round by round."""
    every = BatchedNeuralUCB(D, replicas=R, nu=0.5, retrain={"every": 1}, **SMALL).double()
    plain, env = NeuralUCB(D, replicas=R, nu=0.5, design="dual", **SMALL).double(), environment()
    for t in range(1, 31):
        x = env.contexts(t)
        a, b = every.act(x), plain.act(x)
        torch.testing.assert_close(a.scores, b.scores)
        for module in (every, plain):
            module.observe(x, b.arms, env.pull(b.arms))
            module.learn()


def test_restarts_forget_and_keep():
    module, env = NeuralGCB(D, replicas=R, **GCB).double(), environment()
    fresh = NeuralGCB(D, replicas=R, **GCB).double()
    for t in range(1, 21):
        x = env.contexts(t)
        decision = module.act(x)
        module.observe(x, decision, env.pull(decision.arms))
        module.learn()
    psi = module.psi.clone()
    module.restart(horizon=50, keep_history=True)
    assert torch.equal(module.psi, psi) and (module.learnt == psi).all()
    module.restart(horizon=50)
    assert not module.psi.any() and not module.ctr.any() and module.history.n == 0
    widths = [m.act(environment().contexts(9)).widths.isfinite().all() for m in (module, fresh)]
    assert all(widths)


@pytest.mark.parametrize(
    ("cls", "options", "words"),
    [
        (NeuralGCB, {}, "horizon"),
        (NeuralGCB, {"levels": 0}, "levels"),
        (NeuralGCB, {"horizon": 0}, "horizon"),
        (NeuralGCB, {"horizon": "long"}, "horizon"),
        (NeuralGCB, {"levels": 3, "sigma0": -1}, "sigma0"),
        (NeuralGCB, {"levels": 3, "beta": -1}, "beta"),
        (NeuralGCB, {"levels": 3, "beta": "wide"}, "beta"),
        (NeuralGCB, {"levels": 3, "norm": "S"}, "norm"),
        (NeuralGCB, {"levels": 3, "batch": [5]}, "first"),
        (NeuralGCB, {"levels": 3, "delta": 0}, "delta"),
        (NeuralGCB, {"levels": 3, "members": 3}, "levels"),
        (NeuralGCB, {"levels": 3, "retrain": {"every": 5}}, "batch"),
        (NeuralGCB, {"levels": 3, "batch": {"every": 5}}, "first"),
        (NeuralGCB, {"levels": 3, "batch": {"first": 0}}, "first"),
        (NeuralGCB, {"levels": 3, "batch": {"logdet": 1.0}}, "logdet"),
        (NeuralGCB, {"levels": 3, "batch": {"logdet": 2.0, "first": 5}}, "alone"),
        (BatchedNeuralUCB, {"design": "diagonal"}, "dual"),
    ],
)
def test_bad_options_are_named(cls, options, words):
    with pytest.raises(NblError, match=words):
        cls(D, **options)


def test_levels_are_as_many_as_the_horizon_asks_for():
    """ceil(log2 T), at least one."""
    for horizon, levels in ((1, 1), (2, 1), (3, 2), (1024, 10), (2000, 11)):
        assert NeuralGCB(D, horizon=horizon, **SMALL).levels == levels


def test_rounds_say_where_they_went():
    """Level, branch and the sizes of all sets are in the table of rounds."""
    rounds = nbl.fit(NeuralGCB(10, replicas=2, **GCB), GcbH1(replicas=2), horizon=12)
    assert {"level", "branch", "psi_1", "psi_4"} <= set(rounds.table().column_names)


@pytest.mark.parametrize("cls", [NeuralGCB, SupNeuralUCB])
def test_levels_live_with_delay_restarts_and_warmup(cls):
    """What comes late is walked for when it comes; a restart forgets all levels; every round is stored once."""
    from nbl_callbacks import DelayedFeedback, DoublingTrick, RandomWarmup

    options = GCB if cls is NeuralGCB else {**SMALL, "levels": 4, "beta": 0.01}
    module = cls(10, replicas=2, **options)
    callbacks = [DelayedFeedback(5), DoublingTrick(first=16), RandomWarmup(4)]
    rounds = nbl.fit(module, GcbH1(replicas=2), horizon=40, callbacks=callbacks)
    assert module.phase >= 1 and module.round == 40 and rounds.table().num_rows == 80
    stored = module.psi.sum(1)
    assert (stored <= module.history.n).all() and module.design.n == module.history.n
    if cls is NeuralGCB:
        assert (stored == module.history.n).all()


def test_questions_at_once_with_changing_numbers_of_arms():
    """One deployed policy: n questions of K arms, both changing; act is pure and every answer is stored."""
    module = NeuralGCB(D, **GCB).double()
    told = 0
    for n, arms in ((1, 2), (7, 5), (3, 1), (16, 9)):
        contexts = torch.randn(n, arms, D, dtype=torch.float64)
        mask = torch.rand(n, arms) < 0.7
        mask[:, 0] = True
        decision = module.act(contexts, mask=mask)
        assert mask.gather(1, decision.arms.unsqueeze(1)).all()
        module.observe(contexts, decision, torch.randn(n, dtype=torch.float64))
        module.learn()
        told += n
        assert int(module.psi.sum()) == told == module.history.n


def test_a_refused_observation_changes_nothing():
    module, env = NeuralGCB(D, replicas=R, **GCB).double(), environment()
    x = env.contexts(1)
    decision = module.act(x)
    with pytest.raises(NblError):
        module.observe(x, decision, torch.tensor([1.0, float("nan"), 0.0]))
    assert not module.psi.any() and module.history.n == module.design.n == module.round == 0
    decision.extra["level"] = torch.tensor([99, -5, 1])  # what was tampered with stays in range
    module.observe(x, decision, torch.zeros(R))
    assert int(module.psi.sum()) == R
