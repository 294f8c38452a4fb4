"""Weights are what the formula says, reach loss and design apart, and serve ordinary projects."""

from collections import UserDict

import lightning as L
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

from nbl.algorithms import AdaOFUECOLog, LinUCB, NeuralLogTS2, NeuralLogUCB2, NeuralUCB
from nbl.envs import Linear
from nbl.types import Feedback
from nbl_callbacks import DelayedFeedback, Unsuitable, VarianceWeighting


class Modelled(NeuralUCB):
    """Believes that the variance of arm k is (k + 1)/10."""

    def variance(self, contexts, arms):
        return (arms + 1) / 10


class Told(Linear):
    """Offers the true variance: 0.04."""

    def pull(self, arms):
        feedback = super().pull(arms)
        return Feedback(feedback.reward, feedback.regret, feedback.optimal, {"variance": torch.full((2,), 0.04)})


def neural(environment=Linear):
    small = {"net": {"width": 4}, "fit": {"steps": 1}}
    return Modelled(3, replicas=2, history="full", **small), environment(arms=5, dim=3, replicas=2)


def weights(tape):
    return [torch.stack([batch.weight[i] for batch in tape.rounds]) for i in (0, 1)]


def test_inverse_weighs_loss_and_design(play):
    """1 / max(sigma, eps)^2 with sigma^2 = (k+1)/10, eps^2 = 0.25."""
    module, tape = play([VarianceWeighting(eps=0.5)], neural())
    expected = 1 / ((tape.arms + 1) / 10).clamp_min(0.25)
    for found in weights(tape):
        assert torch.allclose(found, expected)
    assert torch.allclose(module.history.data().weights, expected.T)


@pytest.mark.parametrize("algorithm", [NeuralLogUCB2, NeuralLogTS2, AdaOFUECOLog])
def test_nothing_is_weighed_twice(algorithm, play):
    """W of these has mu'(f) in it already; with the callback it would have its square."""
    with pytest.raises(Unsuitable, match=f"{algorithm.__name__} weighs .* itself"):
        play([VarianceWeighting("direct")], (algorithm(3, replicas=2), Linear(arms=5, dim=3, replicas=2)))


def test_direct_weighs_the_design_alone(play):
    module, tape = play([VarianceWeighting("direct")], neural())
    loss, design = weights(tape)
    assert (loss == 1).all() and torch.allclose(design, (tape.arms + 1) / 10)
    assert (module.history.data().weights == 1).all()


@pytest.mark.parametrize(("source", "told"), [("auto", True), ("oracle", True), ("model", False)])
def test_the_oracle_is_believed_when_offered(source, told, play):
    _, tape = play([VarianceWeighting(eps=0.1, source=source)], neural(Told))
    assert torch.allclose(weights(tape)[0], torch.tensor(25.0)) is told


def test_a_module_without_variance_needs_an_oracle(play):
    made = LinUCB(3, replicas=2), Told(arms=5, dim=3, replicas=2)
    with pytest.raises(Unsuitable, match=r"Heteroscedastic; LinUCB has no `variance`"):
        play([VarianceWeighting(source="model")], made)
    for source in ("oracle", "auto"):
        _, tape = play([VarianceWeighting(source=source)], made)
        assert torch.allclose(weights(tape)[0], torch.tensor(25.0))
    with pytest.raises(Unsuitable, match=r"no `variance` in its feedback, and LinUCB has no `variance`"):
        play([VarianceWeighting()], (LinUCB(3, replicas=2), Linear(arms=5, dim=3, replicas=2)))
    with pytest.raises(Unsuitable, match="offers no `variance`"):
        play([VarianceWeighting(source="oracle")], "lin_es")


def test_weight_one_is_no_weighting(play, equal_states):
    """Unit variance changes nothing."""

    class Unit(NeuralUCB):
        def variance(self, contexts, arms):
            return torch.ones(len(arms))

    def made():
        small = {"net": {"width": 4}, "fit": {"steps": 1}}
        return Unit(3, replicas=2, **small), Linear(arms=5, dim=3, replicas=2)

    one, a = play([VarianceWeighting()], made())
    two, b = play([], made())
    assert torch.equal(a.arms, b.arms) and equal_states(one, two)


def test_a_delayed_observation_keeps_the_weight_of_its_round(play):
    module, tape = play([VarianceWeighting(eps=0.5), DelayedFeedback(3)], neural())
    expected = 1 / ((tape.arms + 1) / 10).clamp_min(0.25)
    assert torch.allclose(module.history.data().weights, expected.T)


def test_a_variance_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="nan"):
        VarianceWeighting().weigh(torch.tensor([0.1, torch.nan]))


def test_a_variance_of_another_shape_is_refused(play):
    class Wide(NeuralUCB):
        def variance(self, contexts, arms):
            return torch.ones(len(arms), 1)

    made = Wide(3, replicas=2, net={"width": 4}, fit={"steps": 1}), Linear(arms=5, dim=3, replicas=2)
    with pytest.raises(ValueError, match=r"shape \(2, 1\); need \(2,\).*squeeze"):
        play([VarianceWeighting()], made)


class Ordinary(BoringModel):
    """A heteroscedastic regressor's shape: variance of each sample."""

    def variance(self, batch):
        x = batch["x"] if isinstance(batch, dict) else batch[0]
        return x[:, 0].square()

    def training_step(self, batch, index):
        x, weight = (batch["x"], batch["weight"]) if isinstance(batch, dict) else batch
        assert torch.allclose(weight, 1 / x[:, 0].abs().clamp_min(0.5).square())
        self.seen = True
        return (weight * self.layer(x).square().mean(-1)).mean()


def samples(kind):
    x = torch.randn(16, 32)
    wrapped = {"dict": [{"x": row} for row in x], "list": torch.utils.data.TensorDataset(x), "tensor": x}
    return torch.utils.data.DataLoader(wrapped[kind], batch_size=4)


@pytest.mark.parametrize("kind", ["dict", "list", "tensor"])
def test_an_ordinary_project_finds_the_weights_in_its_batch(kind):
    module = Ordinary()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = L.Trainer(max_steps=3, callbacks=[VarianceWeighting(eps=0.5)], **quiet)
    if kind == "tensor":
        with pytest.raises(Unsuitable, match="a dict or a list, not a Tensor"):
            trainer.fit(module, samples(kind))
    else:
        trainer.fit(module, samples(kind))
        assert module.seen


def started(module, batch, **options):
    VarianceWeighting(**options).on_train_batch_start(None, module, batch, 0)
    return batch


def test_a_mapping_is_written_to_and_a_tuple_is_not():
    class Mapped(BoringModel):
        def variance(self, batch):
            return batch["x"][:, 0].square()

    assert started(Mapped(), UserDict(x=torch.ones(4, 32)))["weight"].tolist() == [1.0] * 4
    with pytest.raises(Unsuitable, match="not a tuple"):
        started(Mapped(), (torch.ones(4, 32),))
    with pytest.raises(Unsuitable, match="BoringModel has no `variance`"):
        started(BoringModel(), [torch.ones(4, 32)])


class Noisy(BoringModel):
    """Dropout and batch statistics, and a part that is in eval mode for good."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(32))
        self.net[2].eval()

    def variance(self, batch):
        assert not any(part.training for part in self.modules()) and not torch.is_grad_enabled()
        return self.net(batch[0]).square().mean(-1)


def test_asking_leaves_an_ordinary_module_as_it_was():
    module, x = Noisy(), torch.randn(8, 32)
    modes, state, before = [part.training for part in module.modules()], module.state_dict(), torch.get_rng_state()
    state = {name: value.clone() for name, value in state.items()}
    first, second = (started(module, [x])[1] for _ in range(2))
    assert torch.equal(first, second) and torch.equal(before, torch.get_rng_state())
    assert modes == [part.training for part in module.modules()] and modes.count(False) == 1
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("shape", [(), (4, 1), (4, 32), (3,)])
def test_an_ordinary_variance_of_another_shape_is_refused(shape):
    class Odd(BoringModel):
        def variance(self, batch):
            return torch.ones(shape)

    with pytest.raises(ValueError, match=r"need \(4,\): one number a sample"):
        started(Odd(), [torch.ones(4, 32)])


@pytest.mark.parametrize("bad", [{"mode": "both"}, {"eps": 0}, {"source": "hearsay"}])
def test_bad_arguments(bad):
    with pytest.raises(ValueError, match="VarianceWeighting"):
        VarianceWeighting(**bad)
