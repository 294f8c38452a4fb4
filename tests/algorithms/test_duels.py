"""Duels: what every algorithm for pairs promises, and the factored forms against ones written out."""

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import nbl
from nbl import design as designs
from nbl import links, pairs
from nbl.algorithms import NDB, NVLDB, VACDB, CoLSTIM, LinUCB, MaxInP
from nbl.envs import DuelCosine, DuelSquare, ZhouH1
from nbl.gradient import Gradient
from nbl.history import take
from nbl.links import Duels
from nbl.networks import MLP, Pairs
from nbl.rng import Streams
from nbl.types import NblError
from nbl_callbacks import DelayedFeedback, DoublingTrick, RandomWarmup, RoundRobinWarmup, VarianceWeighting
from tests.states import same, snapshot

R, K, D = 3, 4, 5
SMALL = {"net": {"width": 8, "phi": 6}, "fit": {"steps": 3}}
FULL = {"net": {"width": 6, "depth": 3}, "fit": {"steps": 3, "ridge": 1.0}}
DUELING = {
    **{
        f"nvldb_{rule}_{symmetry}": (NVLDB, {**SMALL, "rule": rule, "symmetry": symmetry})
        for rule in ("ucb", "ts")
        for symmetry in ("asym", "osym", "csym")
    },
    "nvldb_grown": (NVLDB, {**SMALL, "rebuild": False, "link": "thurstone", "retrain": {"every": 4}}),
    "nvldb_standard": (NVLDB, {"net": {"kind": "standard", "width": 8, "depth": 3}, "fit": {"steps": 3}}),
    "ndb_ucb": (NDB, {**FULL, "design": "dual"}),
    "ndb_ts": (NDB, {**FULL, "rule": "ts", "retrain": {"every": 5}}),
    "ndb_diagonal": (NDB, {**FULL, "design": "diagonal", "link": "exponential"}),
    "maxinp": (MaxInP, {}),
    "colstim": (CoLSTIM, {}),
    "vacdb": (VACDB, {}),
}


@pytest.fixture(params=list(DUELING))
def algorithm(request):
    cls, options = DUELING[request.param]
    return lambda **problem: cls(**{"dim": D, **options, **problem})


def environment(replicas=R, seed=0):
    return DuelSquare(arms=K, dim=D, replicas=replicas, seed=seed)


# What every algorithm promises ----------------------------------------------------------------------------------------


def test_a_replica_equals_a_run_of_its_own(algorithm, play):
    """Batch of R against single runs with those seeds: the same pairs, all of 200 rounds, in float64."""
    together = play(algorithm(replicas=R, seed=7).double(), environment(seed=7), 200)
    for r in (R - 1,):
        alone = play(algorithm(replicas=1, seed=7 + r).double(), environment(1, 7 + r), 200)
        assert torch.equal(together[0][:, r], alone[0][:, 0])
        assert torch.equal(together[1][:, r], alone[1][:, 0])


def test_act_is_pure_and_masks_forbid(algorithm, play):
    module, env = algorithm(replicas=R), environment()
    play(module, env, 12)
    contexts, before = env.contexts(13), snapshot(module)
    first = module.act(contexts)
    greedy = module.act(contexts, exploit=True)
    again = module.act(contexts.clone())
    assert torch.equal(first.arms, again.arms) and torch.equal(first.scores, again.scores)
    assert first.arms.shape == (R, 2) and first.scores.shape == first.widths.shape == (R, K, K)
    assert torch.equal(greedy.arms, greedy.means.argmax(-1, keepdim=True).expand(R, 2))
    mask = torch.zeros(R, K, dtype=torch.bool)
    for keep in ([1, 3], [2]):
        mask[:] = False
        mask[:, keep] = True
        for exploit in (False, True):
            arms = module.act(contexts, exploit=exploit, mask=mask).arms
            assert mask.gather(1, arms).all()
    assert same(before, snapshot(module))


def test_answers_at_once_equal_answers_in_turn(algorithm):
    contexts, arms = torch.randn(6, K, D), torch.randint(0, K, (6, 2))
    won = torch.tensor([0.0, 1.0, 1.0, 0.5, 0.0, 1.0])
    at_once, in_turn = algorithm().double(), algorithm().double()
    at_once.observe(contexts, arms, won)
    for i in range(6):
        in_turn.observe(contexts[i], arms[i], won[i])
    probe = torch.randn(K, D)
    a, b = at_once.act(probe, exploit=True), in_turn.act(probe, exploit=True)
    torch.testing.assert_close(a.means, b.means)
    torch.testing.assert_close(a.widths, b.widths)
    many = at_once.act(contexts)  # n questions of one policy
    assert many.arms.shape == (6, 2)
    torch.testing.assert_close(many.widths[3], at_once.act(contexts[3]).widths[0])


def test_one_arm_and_identical_arms_are_no_trouble(algorithm):
    """A duel against oneself says nothing: widths are 0 and nothing breaks."""
    module = algorithm(replicas=2)
    for contexts in (torch.randn(2, 1, D), torch.ones(2, K, D)):
        for won in (1.0, 0.0):
            decision = module.act(contexts)
            assert decision.widths.abs().max() < 1e-5
            module.observe(contexts, decision, torch.full((2,), won))
            module.learn()
    assert (module.act(torch.randn(2, 1, D)).arms == 0).all()


def test_restart_begins_anew(algorithm, play):
    module, fresh = algorithm(replicas=R), algorithm(replicas=R)
    play(module, environment(), 10)
    module.restart(horizon=50)
    state, clean = module.state_dict(), fresh.state_dict()
    for name in clean:
        if name.startswith(("fit.", "design.gain", "theta", "thetas", "spread", "layered.gain")):
            assert name.endswith("_extra_state") or torch.equal(state[name], clean[name]), name
    assert module.history.n == 0


PAIR = torch.zeros(R, 2, dtype=torch.long)
BAD = {
    "one arm a replica": (lambda m: m.observe(torch.zeros(R, K, D), PAIR[:, 0], torch.zeros(R)), r"\(3, 2\)"),
    "three arms": (lambda m: m.observe(torch.zeros(R, K, D), torch.zeros(R, 3).long(), torch.zeros(R)), r"\(3, 2\)"),
    "an arm out of range": (lambda m: m.observe(torch.zeros(R, K, D), PAIR + K, torch.zeros(R)), "0 to 3"),
    "a reward of a pair": (lambda m: m.observe(torch.zeros(R, K, D), PAIR, torch.zeros(R, 2)), r"\(3,\)"),
    "a reward above 1": (lambda m: m.observe(torch.zeros(R, K, D), PAIR, torch.full((R,), 2.0)), "first arm won"),
    "a negative weight": (lambda m: m.observe(torch.zeros(R, K, D), PAIR, torch.zeros(R), -1.0), "weight"),
    "a NaN context": (lambda m: m.act(torch.full((R, K, D), torch.nan)), "contexts"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_raises_and_leaves_state_untouched(algorithm, what, play):
    module = algorithm(replicas=R)
    play(module, environment(), 3)
    before = snapshot(module)
    call, says = BAD[what]
    with pytest.raises(NblError, match=says):
        call(module)
    assert same(before, snapshot(module))


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (NVLDB, {"rule": "greedy"}),
        (NVLDB, {"symmetry": "sym"}),
        (NVLDB, {"nu": -1.0}),
        (NVLDB, {"link": "logit"}),
        (NVLDB, {"lam": 0.0}),
        (NVLDB, {"net": {"kind": "zhou", "width": 8}}),
        (NVLDB, {"net": {"kind": "mirrored", "width": 8}}),
        (NVLDB, {"net": {"phi": 0}}),
        (NVLDB, {"net": {"kind": "standard", "phi": 3}}),
        (NVLDB, {"net": torch.nn.Linear(D, 1)}),
        (NVLDB, {"fit": {"penalty": "first"}}),
        (NDB, {"history": "arms"}),
        (CoLSTIM, {"clip": -1.0}),
        (VACDB, {"alpha": 1.5}),
        (MaxInP, {"lam": -1.0}),
    ],
)
def test_bad_options_are_refused(cls, options):
    with pytest.raises(NblError):
        cls(D, **options)


# Equations ------------------------------------------------------------------------------------------------------------


def net(kind="standard", width=6, depth=3, seeds=(0, 1)):
    made = MLP(D, len(seeds), kind=kind, width=width, depth=depth).double()
    made.initialise(Streams(seeds, "test"), 0)
    return made


def explicit(made, x):
    """Gradients of f by autograd, scaled.    (R, n, d) -> (R, n, p)"""

    def f(theta, row):
        return made.evaluate(made.unpack(theta.unsqueeze(0)), made.prepare(row.view(1, 1, -1)))[0].squeeze()

    return made.scale * torch.stack(
        [torch.stack([torch.func.grad(f)(made.theta[r], row) for row in x[r]]) for r in range(len(x))]
    )


@pytest.mark.parametrize("kind", ["standard", "feature", "zhou"])
def test_differences_of_gradients_stay_factored(kind):
    """Inner products, norms and entries of g(x) - g(y) against autograd's gradients, written out."""
    torch.manual_seed(0)
    made = net(kind)
    x, y = torch.randn(2, 8, D, dtype=torch.float64), torch.randn(2, 3, D, dtype=torch.float64)
    gx, gy = explicit(made, x), explicit(made, y)
    dx, found = gx[:, ::2] - gx[:, 1::2], made.features(x).differences()
    torch.testing.assert_close(found.dense(), dx)
    torch.testing.assert_close(found.square(), dx.square().sum(-1))
    torch.testing.assert_close(found.gram(found), dx @ dx.mT)
    torch.testing.assert_close(made.features(y).gram(found), gy @ dx.mT)
    assert found.terms == 2 and found.points == 4 and found.size == gx.shape[-1]


@pytest.mark.parametrize("kind", ["dual", "full", "auto", "diagonal"])
def test_widths_of_pairs_are_those_of_the_matrix(kind):
    """||g_k - g_l||_{U^-1} for two questions of K arms, against U written out (of Diagonal: its diagonal)."""
    torch.manual_seed(1)
    made = net(width=4, depth=2)
    design = designs.build(kind, 2, made.size, 0.5)
    U = 0.5 * torch.eye(made.size, dtype=torch.float64).repeat(2, 1, 1)
    for _ in range(2 * made.size + 3):  # beyond the turn of `auto`
        x, w = torch.randn(2, 2, D, dtype=torch.float64), torch.rand(2, 1, dtype=torch.float64)
        design.update(made.features(x).differences(), w)
        g = explicit(made, x)
        z = g[:, :1] - g[:, 1:]
        U += w.unsqueeze(-1) * z.mT @ z
    if kind == "diagonal":
        U = torch.diag_embed(U.diagonal(dim1=-2, dim2=-1))
    x = torch.randn(2, 2 * K, D, dtype=torch.float64)
    found = pairs.widths(design.covariance(made.features(x), K))
    g = explicit(made, x).view(2, 2, K, -1)
    z = g.unsqueeze(3) - g.unsqueeze(2)
    squared = torch.einsum("rqklp,rpo,rqklo->rqkl", z, torch.linalg.inv(U), z)
    torch.testing.assert_close(found, squared.clamp_min(0).sqrt(), rtol=1e-6, atol=1e-7)
    assert found.shape == (2, 2, K, K)
    torch.testing.assert_close(  # the same, one difference at a time
        design.width(made.features(x).differences()), found[:, :, [0, 2], [1, 3]].flatten(1), rtol=1e-6, atol=1e-7
    )


def test_pairs_train_on_differences():
    """The pullback of a pair's loss is autograd's gradient of sum w loss(f(x) - f(y), o)."""
    torch.manual_seed(2)
    made, loss = net("feature"), Duels(links.link("btl"))
    model, x = Pairs(made), torch.randn(2, 7, 2 * D, dtype=torch.float64)
    won, w = (torch.rand(2, 7) < 0.5).double(), torch.rand(2, 7, dtype=torch.float64)
    grad = torch.empty_like(made.theta)
    out, kept = model.evaluate(model.unpack(made.theta), model.prepare(x))
    model.pullback(model.unpack(made.theta), kept, loss.derivative(out, won) * w, model.unpack(grad))
    theta = made.theta.detach().clone().requires_grad_(True)
    first, second = (made.evaluate(made.unpack(theta), made.prepare(part))[0] for part in x.chunk(2, -1))
    torch.testing.assert_close(out, (first - second).detach())
    (loss.value(first - second, won) * w).sum().backward()
    torch.testing.assert_close(grad, theta.grad)


@pytest.mark.parametrize("rebuild", [True, False])
def test_nvldb_is_algorithm_1(rebuild, play):
    """After a round theta minimises eq. (4) for the W of now (line 10), and V is eq. (6): with today's features
    (appendix) or with those of each duel's own round (line 13).
    """
    options = {"net": SMALL["net"], "fit": {"steps": 3, "ridge": None, "penalty": "last"}}
    module, env = NVLDB(D, replicas=R, lam=0.8, rebuild=rebuild, **options).double(), environment()
    V = 0.8 * torch.eye(6, dtype=torch.float64).repeat(R, 1, 1)
    for t in range(1, 13):
        contexts = env.contexts(t)
        decision = module.act(contexts)
        pair = take(contexts.unsqueeze(1), decision.arms.unsqueeze(1)).squeeze(1)
        z = module.phi(pair)[:, :1] - module.phi(pair)[:, 1:]
        zeta = module.variance(contexts, decision.arms).sqrt().clamp_min(D**-0.5)
        V += z.mT @ z / zeta.square()[:, None, None]
        module.observe(contexts, decision, env.pull(decision.arms), 1 / zeta.square())
        module.learn()
    data = module.history.data()
    dphi = module.differences(data.inputs)
    if rebuild:
        V = 0.8 * torch.eye(6, dtype=torch.float64) + (dphi * data.weights.unsqueeze(-1)).mT @ dphi
    torch.testing.assert_close(module.design.inverse, torch.linalg.inv(V), rtol=1e-6, atol=1e-8)
    o = (dphi @ module.theta.unsqueeze(-1)).squeeze(-1)
    slope = data.weights * (o.sigmoid() - data.targets[:, 0])  # of -log g((-1)^(1-o) z) / zeta^2 for the logistic g
    start = module.net.theta0[:, -6:]
    gradient = (dphi * slope.unsqueeze(-1)).sum(1) + 0.8 * (module.theta - start)
    assert gradient.abs().max() < 1e-8
    torch.testing.assert_close(module.act(contexts).means, module.net(contexts))


def test_the_variance_is_the_models(play):
    module, env = NVLDB(D, replicas=R, **SMALL), environment()
    play(module, env, 5)
    contexts, arms = env.contexts(6), torch.tensor([[0, 1], [2, 2], [3, 0]])
    f = module.net(contexts.float())
    chance = (f.gather(1, arms[:, :1]) - f.gather(1, arms[:, 1:])).sigmoid().squeeze(1)
    torch.testing.assert_close(module.variance(contexts, arms), chance * (1 - chance))
    assert float(module.variance(contexts, arms)[1]) == 0.25


def test_vacdb_gives_each_duel_to_the_first_layer_it_is_too_wide_for():
    """Layer 1 fills until its widths are within 1/2; each layer's matrix is lam I + sum of its own weighted duels."""
    module, env = VACDB(D, replicas=2, alpha=0.1, lam=1.0), DuelSquare(arms=K, dim=D, replicas=2)
    for t in range(1, 150):
        x = env.contexts(t)
        decision = module.act(x)
        module.observe(x, decision, env.pull(decision.arms))
        module.learn()
    z, _, weight = module._duels()
    layer = module.history.data().targets[:, 1]
    assert module.layers == 4 and len(layer.unique()) > 2
    for index in range(module.layers):
        mine = weight * (layer == index)
        A = torch.eye(D, dtype=torch.float64) + (z * mine.unsqueeze(-1)).mT @ z
        torch.testing.assert_close(module.layered.inverse.view(2, 4, D, D)[:, index], torch.linalg.inv(A))


# In the loop ----------------------------------------------------------------------------------------------------------


class Played(L.Callback):
    def __init__(self):
        self.arms = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.arms.append(batch.decision.arms)


MADE = {
    "nvldb": lambda: (NVLDB(D, replicas=2, rule="ts", **SMALL), [VarianceWeighting(eps=None, source="model")]),
    "ndb": lambda: (NDB(D, replicas=2, **FULL), [DelayedFeedback(3), RandomWarmup(4)]),
    "vacdb": lambda: (VACDB(D, replicas=2), [DoublingTrick(first=8)]),
}


@pytest.mark.parametrize("name", MADE)
def test_resumed_at_any_round_equals_never_stopped(name, tmp_path):
    """With callbacks that have a say: weights from variances, delays, warm-ups, restarts."""
    whole, env = Played(), lambda: DuelCosine(arms=K, dim=D, replicas=2)
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    module, callbacks = MADE[name]()
    nbl.fit(module, env(), 20, callbacks=[whole, saver, *callbacks], enable_checkpointing=True)
    for at in range(1, 20, 3):
        part = Played()
        module, callbacks = MADE[name]()
        nbl.fit(module, env(), 20, callbacks=[part, *callbacks], resume=tmp_path / f"step={at}.ckpt")
        assert torch.equal(torch.stack(part.arms), torch.stack(whole.arms)[at:]), at


def test_variance_weighting_is_the_papers(play):
    """Weights are 1 / max(sigma, 1 / sqrt(d))^2 of the model or of the oracle; without the callback all are 1."""
    for source in ("model", "oracle", None):
        module = NVLDB(D, replicas=2, **SMALL)
        callbacks = [VarianceWeighting(eps=None, source=source)] if source else []
        nbl.fit(module, DuelSquare(arms=K, dim=D, replicas=2), 15, callbacks=callbacks)
        weights = module.history.data().weights
        if source is None:
            assert (weights == 1).all()
        else:
            assert (weights > 4 - 1e-5).all() and (weights < D + 1e-4).all() and weights.std() > 0


def test_rounds_have_both_arms_and_both_regrets():
    rounds = nbl.fit(MaxInP(D, replicas=2), DuelSquare(arms=K, dim=D, replicas=2), 30)
    table = rounds.table().to_pandas()
    assert {"arm", "arm_2", "regret", "weak_regret", "width", "mean"} <= set(table.columns)
    assert (table.weak_regret <= table.regret + 1e-12).all() and table.reward.isin([0.0, 1.0]).all()
    assert rounds.summary()["weak_regret"]["mean"] <= rounds.summary()["regret"]["mean"]


def test_mismatches_and_callbacks_that_play_one_arm_are_refused():
    duel = DuelSquare(arms=K, dim=D)
    with pytest.raises(NblError, match="MaxInP is for duels"):
        nbl.fit(MaxInP(D), ZhouH1(arms=K, dim=D), 3)
    with pytest.raises(NblError, match="DuelSquare is for duels"):
        nbl.fit(LinUCB(D), duel, 3)
    with pytest.raises(NblError, match="a duel has two arms"):
        nbl.fit(MaxInP(D), duel, 3, callbacks=RoundRobinWarmup())


def test_a_random_warm_up_plays_two_different_arms():
    rounds = nbl.fit(MaxInP(D, replicas=20), DuelSquare(arms=K, dim=D, replicas=20), 12, callbacks=RandomWarmup(12))
    assert (rounds.arm != rounds.extra["arm_2"]).all() and rounds.extra["arm_2"].unique().numel() == K


def test_an_explicit_gradient_has_differences_too():
    v = torch.randn(2, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(Gradient.explicit(v).differences().dense(), v[:, ::2] - v[:, 1::2])


class LinearDuels(DuelSquare):
    """A utility that is linear in the context."""

    def mean(self, contexts):
        return 3.0 * (contexts * self.theta[:, None]).sum(-1)


@pytest.mark.parametrize("cls", [MaxInP, CoLSTIM, VACDB])
def test_linear_duels_learn_a_linear_utility(cls):
    """Less than a quarter of the regret of chance in the second half of 300 rounds (VACDB, in layers: than a half)."""
    env = LinearDuels(arms=K, dim=D, replicas=4)
    chance = torch.stack([env.mean(env.draw(t)).amax(-1) - env.mean(env.draw(t)).mean(-1) for t in range(1, 301)], 1)
    rounds = nbl.fit(cls(D, replicas=4, nu=0.5), env, 300)
    share = rounds.regret[:, 150:].sum() / chance[:, 150:].sum()
    assert share < (0.5 if cls is VACDB else 0.25), share


def test_nvldb_learns_what_a_linear_utility_cannot():
    """The square utility, 120 rounds: the network has less regret late than early, and less than MaxInP."""
    env = {"arms": K, "dim": 3, "replicas": 4}
    neural = nbl.fit(NVLDB(3, replicas=4, fit={"steps": 10}), DuelSquare(**env), 120)
    linear = nbl.fit(MaxInP(3, replicas=4), DuelSquare(**env), 120)
    assert neural.regret[:, 60:].sum() < neural.regret[:, :60].sum()
    assert neural.regret.sum() < linear.regret.sum()
