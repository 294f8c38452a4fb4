"""No waiting for the device: `act` and `observe` never ask for a value, a retraining asks once.

No GPU is needed to find out. Tensors here have a device and a shape but no values (torch's fake tensors on `meta`):
what needs a value on the host, `.item()`, `bool()`, `.cpu()`, an index by a mask, a Python branch, is seen or fails,
and so is a tensor left on the CPU. The checks of bad input, which are made on the host before the transfer, are off as
they are on a GPU.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from nbl.algorithms import EpsilonGreedy
from nbl.types import NblError

R, K, D = 3, 4, 5
ITEM, COPY = torch.ops.aten._local_scalar_dense.default, torch.ops.aten._to_copy.default


class Waits(TorchDispatchMode):
    """Counts what would wait for the device, and answers with ones."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (ITEM, COPY) and args[0].device.type != "cpu":
            if func is ITEM:
                self.count += 1
                return True if args[0].dtype == torch.bool else 1
            if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu":
                self.count += 1
                return self.ones(args[0])
        return func(*args, **kwargs)

    def tolist(self, x):
        """One copy and then its values; torch's fake tensors would ask for one after the other."""
        self.count += 1
        return self.ones(x).tolist()

    def ones(self, like):
        with _disable_current_modes():
            return torch.ones(like.shape, dtype=like.dtype)


@pytest.fixture
def waits(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # knows no such device
    with FakeTensorMode(allow_non_fake_inputs=True), Waits() as mode:
        monkeypatch.setattr(FakeTensor, "tolist", lambda x: mode.tolist(x))
        yield mode


def a_round():
    """Contexts, rewards, weights and a mask, on the device."""
    contexts, reward = torch.empty(R, K, D, device="meta"), torch.empty(R, device="meta")
    return contexts, reward, torch.empty(R, device="meta"), torch.empty(R, K, dtype=torch.bool, device="meta")


@pytest.mark.parametrize("fixed", [False, True])
def test_act_and_observe_never_wait_and_a_retraining_asks_once(algorithm, fixed, request):
    module = algorithm(dim=D, replicas=R, arms=K, fixed_arms=fixed).to("meta")
    waits = request.getfixturevalue("waits")
    for _ in range(3):
        contexts, reward, weight, mask = a_round()
        decision = module.act(contexts, mask=mask)
        module.act(contexts, exploit=True)
        module.observe(contexts, decision, reward, weight)
        module.diagnostics()
        assert waits.count == 0
        module.learn()
        assert waits.count <= 1
        waits.count = 0


def test_what_comes_from_the_host_is_checked_there():
    """A policy on a device is given bad input in host memory: refused before the transfer."""
    module = EpsilonGreedy(D, replicas=R, net={"width": 4}).to("meta")
    contexts, reward = torch.ones(R, K, D), torch.ones(R)
    with pytest.raises(NblError, match="contexts hold nan"):
        module.act(contexts / torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]) * 0.0)
    decision = module.act(contexts)
    assert decision.arms.device.type == "meta"
    for arms, rewards, weight in (([0, 1, 9], reward, 1.0), (decision, reward / 0, 1.0), (decision, reward, -reward)):
        with pytest.raises(NblError, match="observe"):
            module.observe(contexts, arms, rewards, weight)
    assert module.round == 0 and module.history.n == 0
    module.observe(contexts, decision, reward)
    assert module.round == 1


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: float(x.max()),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: 1 if x.mean() > 0 else 0,
        lambda x: x.tolist(),
    ],
)
def test_waiting_is_seen(wait, waits):
    """The test above can fail."""
    wait(torch.empty(3, device="meta"))
    assert waits.count == 1


def test_an_index_by_a_mask_is_seen(waits):
    x = torch.empty(3, device="meta")
    with pytest.raises(DynamicOutputShapeException):
        x[x > 0]
