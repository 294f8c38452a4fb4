"""Several processes play one run: `trainer.devices=N`, under Lightning's launcher, torchrun or SLURM.

    python scripts/train.py recipe=neural_ucb replicas=10 trainer.devices=2
    torchrun --nproc-per-node 2 scripts/train.py recipe=neural_ucb replicas=10 trainer.devices=2

`Together` is Lightning's DDP without its wrapping, which would write the first process's replicas over everyone's. It
launches, connects, and makes one checkpoint of many states. Who plays what is in nbl/shards.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, distributed

from nbl import shards
from nbl.shards import Share
from nbl.types import NblError

ENVIRONMENT = ("loops", "fit_loop", "state_dict", "environment")  # where Lightning puts what the loop saves


class Together(DDPStrategy):
    """Each process owns its share; what concerns all goes through `exchange`, on a channel of its own."""

    strategy_name = "together"

    def __init__(self, share: Share, **options: Any) -> None:
        super().__init__(**options)
        self.share = share
        self._channel: Any = None

    def setup_environment(self) -> None:
        try:
            super().setup_environment()
            self._channel = distributed.new_group(backend="gloo")
        except RuntimeError as error:
            raise shards.gone(error) from error

    def configure_ddp(self) -> None:
        """No wrapping."""

    def exchange(self, what: str, t: int, mine: Any) -> list[Any]:
        """What each process has to say about `what` after round t; all of them must be there."""
        everyone: list[Any] = [None] * self.share.world
        self._safely(distributed.all_gather_object, everyone, (what, t, mine))
        if len({said[:2] for said in everyone}) > 1:
            where = ", ".join(f"process {rank} at {w!r} after round {n}" for rank, (w, n, _) in enumerate(everyone))
            raise NblError(
                f"the processes of this run are out of step: {where}. A callback must set `trainer.should_stop` and "
                "save checkpoints in all of them, in the same round."
            )
        return [said for *_, said in everyone]

    def gather(self, what: str, t: int, mine: Any) -> list[Any] | None:
        """The same, but only the first process learns it."""
        self.exchange(what, t, None)
        everyone = [None] * self.share.world if self.share.rank == 0 else None
        self._safely(distributed.gather_object, mine, everyone)
        return everyone

    def join(self, what: str, t: int, mine: Mapping[str, Tensor], dim: int = 0) -> dict[str, Tensor]:
        """Tensors with one entry a replica, for the replicas of all processes."""
        if self.share.by_members:
            return dict(mine)
        everyone = self.exchange(what, t, {name: value.detach().cpu() for name, value in mine.items()})
        return {name: torch.cat([said[name] for said in everyone], dim) for name in mine}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        everyone = self.gather("checkpoint", checkpoint["global_step"], _on_host(checkpoint))
        if everyone is not None:
            super().save_checkpoint(self._whole(everyone), filepath, storage_options)

    def load_checkpoint(self, *args: Any, **options: Any) -> dict[str, Any]:
        return self._part(super().load_checkpoint(*args, **options))

    def _whole(self, checkpoints: list[dict[str, Any]]) -> dict[str, Any]:
        """The checkpoint of the run that one process would have written."""
        whole, module, share = dict(checkpoints[0]), self.lightning_module, self.share
        assert module is not None
        whole["state_dict"] = shards.join_states(module, [c["state_dict"] for c in checkpoints], share)
        whole["hyper_parameters"] = {**whole["hyper_parameters"], "replicas": share.replicas, "seed": share.seed}
        states = [_at(c, ENVIRONMENT) for c in checkpoints]
        _at(whole, ENVIRONMENT[:-1])["environment"] = shards.join_states(self._environment, states, share)
        whole["callbacks"] = {
            key: shards.join_trees([c["callbacks"][key] for c in checkpoints], share, axes)
            for key, axes in self._axes(whole["callbacks"]).items()
        }
        return whole

    def _part(self, whole: dict[str, Any]) -> dict[str, Any]:
        part, module, share = dict(whole), self.lightning_module, self.share
        assert module is not None
        part["state_dict"] = shards.cut_state(module, whole["state_dict"], share)
        state = shards.cut_state(self._environment, _at(whole, ENVIRONMENT), share)
        _at(part, ENVIRONMENT[:-1])["environment"] = state
        part["callbacks"] = {
            key: shards.cut_tree(whole["callbacks"][key], share, axes)
            for key, axes in self._axes(whole["callbacks"]).items()
        }
        return part

    @property
    def _environment(self) -> torch.nn.Module:
        environment: torch.nn.Module = self.lightning_module.trainer.fit_loop.environment  # type: ignore[union-attr]
        return environment

    def _axes(self, states: Mapping[str, Any]) -> dict[str, Mapping[str, int]]:
        """Of each callback, by the key of its state."""
        callbacks: list[Any] = self.lightning_module.trainer.callbacks  # type: ignore[union-attr]
        known = {callback.state_key: getattr(callback, "replica_axes", {}) for callback in callbacks}
        return {key: known.get(key, {}) for key in states}

    def _safely(self, collective: Any, *args: Any) -> None:
        try:
            collective(*args, group=self._channel)
        except RuntimeError as error:
            raise shards.gone(error) from error


def place(options: Mapping[str, Any], replicas: int, seed: int) -> Share:
    """This process's share of a run with these options of the Trainer."""
    by, started = _started()
    if options.get("devices", "auto") in (1, "1") and options.get("num_nodes") in (None, 1):
        rank, world = 0, 1
    else:
        names = ("accelerator", "devices", "num_nodes")
        found = {name: options[name] for name in names if options.get(name) is not None}
        quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        try:
            probe = L.Trainer(**found, **quiet, enable_model_summary=False)
        except (RuntimeError, ValueError) as error:  # numbers that do not match
            if by != "srun":
                raise
            raise NblError(f"{error} The same number for both: {_srun(options.get('devices'))}.") from error
        rank, world = probe.global_rank, probe.num_devices * probe.num_nodes
    if by and world != started:
        cure = f"for example trainer.devices={started}" if started > 1 else f"or start {world} of them"
        if by == "srun":
            cure += f", or {_srun(world)}"
        raise NblError(
            f"{by} started {started} process{'es' if started > 1 else ''}, but trainer.devices="
            f"{options.get('devices')} makes {world}: give both the same number, {cure}."
        )
    if world > 1 and options.get("strategy", "auto") != "auto":
        raise NblError(
            f"trainer.strategy={options['strategy']}: replicas share no gradients, so a run over {world} processes has "
            "a strategy of its own. Leave it out."
        )
    return Share(replicas, seed, rank, world)


def plugins(world: int) -> list[Any]:
    """A signal of SLURM must not write a checkpoint in the middle of a round: SIGTERM does, between two."""
    if not SLURMEnvironment.detect():
        return []
    return [SLURMEnvironment(auto_requeue=False) if world > 1 else LightningEnvironment()]


def _started() -> tuple[str, int]:
    """Who started this process, beside how many; a batch script of SLURM that does not say `srun` is one process."""
    if TorchElasticEnvironment.detect():
        return "torchrun", TorchElasticEnvironment().world_size()
    if SLURMEnvironment.detect():
        return "srun", int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    return "", 1


def _srun(devices: Any) -> str:
    return f"srun --ntasks-per-node={devices} python scripts/train.py ... trainer.devices={devices}"


def _at(tree: dict[str, Any], path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _on_host(tree: Any) -> Any:
    """Tensors on the CPU, each with storage of its own: a view would travel with all it is a view of."""
    if isinstance(tree, dict):
        return {key: _on_host(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_on_host(item) for item in tree)
    if isinstance(tree, Tensor):
        return tree.detach().cpu().clone()
    return tree
