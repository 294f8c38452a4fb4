"""act, observe, learn: what every algorithm promises, with no Trainer in sight."""

import math

import pytest
import torch

from nbl.algorithms import EpsilonGreedy, LinES, LinUCB, NeuralES, NeuralTS, NeuralUCB, Uniform
from nbl.envs import Quadratic, ZhouH1
from nbl.types import Feedback, NblError, Weights
from tests.states import same, snapshot

R, K, D = 3, 4, 5


def environment(replicas=R, seed=0, **options):
    return ZhouH1(arms=K, dim=D, replicas=replicas, seed=seed, **options)


def test_a_replica_equals_a_run_of_its_own(algorithm, play):
    """Batch of R against R single runs with those seeds: the same arms, all of 200 rounds, in float64."""
    together = play(algorithm(replicas=R, seed=7).double(), algorithm.environment(seed=7), 200)
    for r in range(R):
        alone = play(algorithm(replicas=1, seed=7 + r).double(), algorithm.environment(1, 7 + r), 200)
        assert torch.equal(together[0][:, r], alone[0][:, 0])
        torch.testing.assert_close(together[1][:, r], alone[1][:, 0])


def test_fixed_arms_too(play):
    """The same with sums per arm, and an ensemble."""
    options = {"arms": 6, "dim": 4, "net": {"width": 8}, "fit": {"steps": 3}, "members": 3, "fixed_arms": True}
    together = play(NeuralES(replicas=R, **options).double(), Quadratic(arms=6, dim=4, replicas=R), 200)[0]
    for r in range(R):
        alone = play(NeuralES(replicas=1, seed=r, **options).double(), Quadratic(arms=6, dim=4, seed=r), 200)[0]
        assert torch.equal(together[:, r], alone[:, 0])


def test_every_algorithm_meets_the_same_rewards(play):
    """Common random numbers: two algorithms that play the same arm in the same round get the same reward."""
    a, x = play(LinUCB(D, replicas=R), environment(), 100)
    b, y = play(NeuralTS(D, replicas=R, net={"width": 8}, fit={"steps": 2}), environment(), 100)
    agree = a == b
    assert 0 < agree.sum() < agree.numel()
    assert torch.equal(x[agree], y[agree])


def test_act_is_pure(algorithm, play):
    """Scoring twice, in eval mode, exploiting in between: the same answer, and no state changes."""
    module, env = algorithm(replicas=R), algorithm.environment()
    play(module, env, 12)
    contexts, before = env.contexts(13), snapshot(module)
    first = module.act(contexts)
    module.act(contexts, exploit=True)
    module.eval()
    again = module.act(contexts.clone())
    assert torch.equal(first.arms, again.arms) and torch.equal(first.scores, again.scores)
    assert same(before, snapshot(module))
    assert first.arms.shape == (R,) and first.scores.shape == (R, K) and first.ids.unique().numel() == R


def test_exploit_is_the_best_mean(algorithm, play):
    module, env = algorithm(replicas=R), algorithm.environment()
    play(module, env, 30)
    decision = module.act(env.contexts(31), exploit=True)
    if decision.means is None:
        assert type(module) is Uniform
    else:
        assert torch.equal(decision.arms, decision.means.argmax(-1))


@pytest.mark.parametrize("cls", [NeuralUCB, NeuralTS, LinUCB])
def test_no_exploration_is_greedy(cls, play):
    module, env = cls(D, replicas=R, nu=0.0), environment()
    play(module, env, 20)
    contexts = env.contexts(21)
    assert torch.equal(module.act(contexts).arms, module.act(contexts, exploit=True).arms)


def test_ties_are_broken_at_random():
    """f(x; theta_0) = 0: all arms tie, and the lowest index must not win. 400 replicas, 4 arms: chi-square below 16.3
    (0.1%).
    """
    module = EpsilonGreedy(D, replicas=400, epsilon=0.0, net={"kind": "zhou", "width": 8})
    counts = module.act(torch.randn(400, K, D)).arms.bincount(minlength=K).double()
    assert ((counts - 100).square() / 100).sum() < 16.3


def test_propensities():
    """Where they have a closed form they are the frequencies."""
    contexts = torch.randn(K, D)
    uniform = Uniform(D, replicas=5).act(contexts)
    torch.testing.assert_close(uniform.propensities, torch.full((5,), 1 / K))
    greedy = EpsilonGreedy(D, replicas=2000, epsilon=0.4, net={"width": 4})
    greedy.net.theta.copy_(greedy.net.theta[:1].expand_as(greedy.net.theta))  # the same network everywhere
    decision = greedy.act(contexts)
    for arm in range(K):
        chosen = decision.arms == arm
        assert decision.propensities[chosen][0].item() == pytest.approx(chosen.double().mean().item(), abs=0.04)
    assert NeuralTS(D).act(contexts).propensities is None
    torch.testing.assert_close(NeuralUCB(D).act(contexts).propensities, torch.ones(1))


def test_ensemble_propensity_is_the_share_of_votes(play):
    module, env = NeuralES(D, members=5, warmup=0, net={"width": 8}, fit={"steps": 3}, nu=2.0), environment(1)
    play(module, env, 30)
    contexts = env.contexts(31).float()
    votes = module.net(contexts)[0].argmax(-1)
    decision = module.act(contexts)
    assert decision.propensities.item() == pytest.approx((votes == decision.arms).double().mean().item())


def test_plain_shapes():
    """(arms, dim) for one policy or for all replicas alike; (n, arms, dim) asks n questions of one policy."""
    one, many = LinUCB(D), LinUCB(D, replicas=R)
    assert one.act(torch.randn(K, D)).arms.shape == (1,)
    assert many.act(torch.randn(K, D)).arms.shape == (R,)
    contexts = torch.randn(9, K, D)
    decision = one.act(contexts)
    assert decision.arms.shape == (9,) and decision.scores.shape == (9, K)
    one.observe(contexts, decision, torch.randn(9))
    assert one.round == 1
    one.observe(torch.randn(K, D), 2, 0.5)
    assert one.round == 2
    with pytest.raises(NblError, match="9 sets of arms for 3 replicas"):
        many.act(contexts)


def test_answers_at_once_equal_answers_in_turn(algorithm):
    """n observations in one `observe` leave the same confidence matrix and the same data as n single ones."""
    if algorithm.cls in (NeuralES,) or ("members" in algorithm().hparams and algorithm().hparams["members"] > 1):
        pytest.skip("an ensemble draws its perturbations by round")
    contexts, arms, rewards = torch.randn(6, K, D), torch.tensor([0, 1, 2, 3, 0, 1]), torch.rand(6)
    at_once, in_turn = algorithm().double(), algorithm().double()
    at_once.observe(contexts, arms, rewards)
    for i in range(6):
        in_turn.observe(contexts[i], arms[i], rewards[i])
    probe = torch.randn(K, D)
    a, b = at_once.act(probe, exploit=True), in_turn.act(probe, exploit=True)
    for x, y in ((a.means, b.means), (a.widths, b.widths)):
        if x is not None:
            torch.testing.assert_close(x, y)


def test_a_mask_forbids_arms(algorithm, play):
    """A number of arms that varies by round: a masked arm is never chosen, exploiting or not."""
    module, env = algorithm(replicas=R), algorithm.environment()
    for t in range(1, 30):
        mask = torch.zeros(R, K, dtype=torch.bool)
        mask[:, t % K] = mask[:, (t + 1) % K] = True
        contexts = env.contexts(t)
        for exploit in (False, True):
            decision = module.act(contexts, exploit=exploit, mask=mask)
            assert mask.gather(1, decision.arms[:, None]).all()
        module.observe(contexts, decision, env.pull(decision.arms))
        module.learn()


def test_restart_begins_anew(algorithm, play):
    """After a restart nothing learnt is left: data, confidence, optimiser; the random start is a new one."""
    module, fresh = algorithm(replicas=R), algorithm(replicas=R)
    play(module, algorithm.environment(), 10)
    module.restart(horizon=50)
    assert module.horizon == 50 and module.round == 10
    state, clean = module.state_dict(), fresh.state_dict()
    for name in clean:
        if name.startswith(("fit.", "design.gain", "moment", "theta", "history.sums", "schedule.mark")):
            assert name.endswith("_extra_state") or torch.equal(state[name], clean[name]), name
    if hasattr(module, "net"):
        assert torch.equal(module.net.theta, module.net.theta0)
        assert not torch.equal(module.net.theta0, fresh.net.theta0)
        assert module.history.n == 0


BAD = {
    "NaN context": lambda m: m.observe(
        torch.full((R, K, D), math.nan), torch.zeros(R, dtype=torch.long), torch.zeros(R)
    ),
    "infinite context": lambda m: m.act(torch.full((R, K, D), math.inf)),
    "wrong dim": lambda m: m.act(torch.zeros(R, K, D + 1)),
    "wrong rank": lambda m: m.act(torch.zeros(D)),
    "no arms": lambda m: m.act(torch.zeros(R, 0, D)),
    "NaN reward": lambda m: m.observe(
        torch.zeros(R, K, D), torch.zeros(R, dtype=torch.long), torch.full((R,), math.nan)
    ),
    "reward of wrong shape": lambda m: m.observe(
        torch.zeros(R, K, D), torch.zeros(R, dtype=torch.long), torch.zeros(R + 1)
    ),
    "arm out of range": lambda m: m.observe(torch.zeros(R, K, D), torch.full((R,), K), torch.zeros(R)),
    "negative arm": lambda m: m.observe(torch.zeros(R, K, D), torch.full((R,), -1), torch.zeros(R)),
    "arms that are not whole": lambda m: m.observe(torch.zeros(R, K, D), torch.zeros(R), torch.zeros(R)),
    "negative weight": lambda m: m.observe(
        torch.zeros(R, K, D), torch.zeros(R, dtype=torch.long), torch.zeros(R), -1.0
    ),
    "mask of wrong shape": lambda m: m.act(torch.zeros(R, K, D), mask=torch.ones(R, K + 1, dtype=torch.bool)),
    "mask that leaves nothing": lambda m: m.act(torch.zeros(R, K, D), mask=torch.zeros(K, dtype=torch.bool)),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_raises_and_leaves_state_untouched(algorithm, what, play):
    module = algorithm(replicas=R)
    play(module, algorithm.environment(), 3)
    before = snapshot(module)
    with pytest.raises(NblError, match=r"act:|observe:"):
        BAD[what](module)
    assert same(before, snapshot(module))


@pytest.mark.parametrize(
    "options",
    [{"dim": 0}, {"replicas": 0}, {"horizon": 0}, {"horizon": -5}, {"arms": 0}, {"horizon": 2.5}, {"fixed_arms": True}],
)
def test_bad_problems_are_refused(options):
    with pytest.raises(NblError, match=r"LinUCB\("):
        LinUCB(**{"dim": D, **options})


@pytest.mark.parametrize("lam", [0.0, -1.0])
@pytest.mark.parametrize("cls", [NeuralUCB, NeuralTS, LinUCB, NeuralES])
def test_bad_ridge_is_refused(cls, lam):
    with pytest.raises(NblError, match="lam="):
        cls(D, lam=lam)


def test_feedback_or_a_plain_number():
    module = LinUCB(D)
    module.observe(torch.ones(K, D), torch.tensor([0]), Feedback(reward=torch.tensor([1.0])))
    module.observe(torch.ones(K, D), 0, 1.0)
    assert module.round == 2


def test_weights_are_repeated_observations():
    """Weight 3 counts as three observations of the same reward; weight 1 as one."""
    weighted, repeated = LinUCB(D).double(), LinUCB(D).double()
    contexts = torch.randn(K, D, dtype=torch.float64)
    weighted.observe(contexts, 1, 0.7, weight=3.0)
    for _ in range(3):
        repeated.observe(contexts, 1, 0.7)
    a, b = weighted.act(contexts), repeated.act(contexts)
    torch.testing.assert_close(a.means, b.means)
    torch.testing.assert_close(a.widths, b.widths)


def test_training_step_says_what_to_do():
    with pytest.raises(NblError, match=r"nbl\.fit"):
        LinUCB(D).training_step(None)


def test_hyper_parameters_are_plain_and_complete():
    """What nbl.load needs; a network of the user's own is left out, because safe files hold no code."""
    module = NeuralUCB(D, nu=0.7, replicas=2, net={"width": 4})
    assert module.hparams["nu"] == 0.7 and module.hparams["replicas"] == 2 and module.hparams["net"] == {"width": 4}
    assert "net" not in NeuralUCB(D, net=torch.nn.Linear(D, 1)).hparams


def test_loaded_in_the_middle_it_rounds_as_one_never_stopped(algorithm, play):
    """To the last bit of float64: what a product rounds to depends on how far a buffer's rows lie apart, and a
    checkpoint leaves out the room to spare.
    """
    module, env = algorithm(replicas=R).double(), algorithm.environment()
    for first, more in ((1, 5), (6, 12), (18, 12), (30, 12)):
        other = algorithm(replicas=R).double()
        other.load_state_dict(module.state_dict())
        contexts = env.contexts(first)
        whole, resumed = module.act(contexts), other.act(contexts)
        for name in ("scores", "means", "widths"):
            a, b = getattr(whole, name), getattr(resumed, name)
            assert a is b is None or torch.equal(a, b), name
        play(other, env, 3, first=first)
        play(module, env, 3, first=first)
        assert torch.equal(module.act(contexts).scores, other.act(contexts).scores)
        play(module, env, more - 3, first=first + 3)


def test_inference_mode_around_a_round_changes_nothing(algorithm, play):
    """A product asks inside it, learns outside it, or the other way round."""
    whole = play(algorithm(replicas=R), algorithm.environment(), 60)[0]
    module, parts = algorithm(replicas=R), []
    for first, inside in ((1, True), (21, False), (41, True)):
        with torch.inference_mode(inside):
            parts.append(play(module, algorithm.environment(), 20, first=first)[0])
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("name", ["lin_es", "neural_es"])
def test_a_restart_can_change_the_ensemble(name, play):
    """Members and perturbations follow the phase; a policy so changed loads back from its state."""
    cls, options = {"lin_es": (LinES, {}), "neural_es": (NeuralES, {"net": {"width": 4}, "fit": {"steps": 2}})}[name]
    module, env = cls(D, replicas=R, **options), environment()
    play(module, env, 10)
    module.restart(horizon=40, members=7, nu=0.9)
    assert module.hparams["members"] == module.members == 7 and module.nu == 0.9
    play(module, env, 10, first=11)
    other = cls(D, replicas=R, **options)
    other.on_load_checkpoint({"hyper_parameters": dict(module.hparams)})
    other.load_state_dict(module.state_dict())
    assert torch.equal(play(module, env, 5, first=21)[0], play(other, env, 5, first=21)[0])
    with pytest.raises(NblError, match="cannot change"):
        LinUCB(D).restart(members=3)


def test_loss_and_design_can_be_weighed_apart(play):
    """A design weight changes widths and not what is learnt; a loss weight the reverse."""
    contexts, probe = torch.randn(K, D), torch.randn(K, D)

    def made(weight):
        module = NeuralUCB(D, net={"width": 6}, fit={"steps": 5}).double()
        module.observe(contexts, 1, 0.7, weight)
        module.learn()
        return module.act(probe)

    plain, design, loss = made(None), made(Weights(design=0.25)), made(Weights(loss=4.0))
    assert torch.equal(plain.means, design.means) and (design.widths >= plain.widths).all()
    assert not torch.equal(design.widths, plain.widths) and not torch.equal(plain.means, loss.means)


@pytest.mark.parametrize("design", ["auto", "full", "diagonal"])
@pytest.mark.parametrize("fixed", [False, True])
def test_data_kept_over_a_restart_have_their_gradients_at_the_new_weights(design, fixed):
    """A restart draws theta_0 anew: U = lam I + sum w g g^T / m with g at the weights trained from there. With fixed
    arms the sum is over arms, each with the weights of its rounds.
    """
    environment = Quadratic(K, D, replicas=R) if fixed else ZhouH1(K, D, replicas=R)
    options = {"design": design, "net": {"width": 6}, "fit": {"steps": 3}, "arms": K, "fixed_arms": fixed}
    module = NeuralTS(D, replicas=R, **options).double()
    for t in range(1, 13):
        x = environment.contexts(t).double()
        decision = module.act(x)
        module.observe(x, decision, environment.pull(decision.arms), weight=0.5)
        module.learn()
    module.restart(keep_history=True)
    data = module.history.data()
    g = module.features(data.inputs).dense().double()
    U = torch.eye(g.shape[-1], dtype=torch.float64) + (g * data.weights.double().unsqueeze(-1)).mT @ g
    U = torch.diag_embed(torch.diagonal(U, dim1=1, dim2=2)) if design == "diagonal" else U
    width = torch.einsum("rnp,rpq,rnq->rn", g, torch.linalg.inv(U), g).sqrt()
    torch.testing.assert_close(module.design.width(module.features(data.inputs)), width)
    assert data.weights.sum(1).tolist() == [6.0] * R


@pytest.mark.parametrize("kind", [NeuralUCB, NeuralTS])
def test_what_is_observed_does_not_depend_on_what_was_asked(kind):
    """To the last bit, in float32: a policy that is asked before it is told, about the same arms and about others."""
    asked, told = (kind(D, replicas=R, net={"width": 6}, fit={"steps": 2}) for _ in range(2))
    for t in range(1, 9):
        contexts = environment().contexts(t)
        asked.act(contexts)
        asked.act(environment().contexts(t + 50), exploit=True)
        for policy in (asked, told):
            policy.observe(contexts, torch.tensor([0, 1, t % K]), torch.ones(R))
            policy.learn()
    assert same(snapshot(asked), snapshot(told))


@pytest.mark.parametrize("weight", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_weights_are_one_or_two(weight):
    policy = LinUCB(D)
    with pytest.raises(NblError, match="need two"):
        policy.observe(environment(1).contexts(1), 0, 1.0, weight)
    assert policy.round == 0
