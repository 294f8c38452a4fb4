"""Checkpoints that survive: written whole or not at all, checked before they are used, and enough to rebuild a policy.

python scripts/train.py recipe=neural_ucb resume=last
policy = nbl.load("runs/neural_ucb/2026-01-31_12-00-00/checkpoints/round-2000.ckpt")
"""

from __future__ import annotations

import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException

from nbl.types import NblError

if TYPE_CHECKING:
    from nbl.module import BanditModule

FOLDER = "checkpoints"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes, then renames: a kill at any moment leaves the old file or the new one."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        return read(path, map_location)


class RoundCheckpoint(Checkpoint):
    """Saves every `every` rounds and at the end; keeps the newest `keep`, so that a damaged one has a predecessor.

    Lightning's ModelCheckpoint works here as well. This one has no state: what it keeps is what is in the folder.
    """

    def __init__(self, folder: str | os.PathLike[str], every: int, keep: int = 2) -> None:
        if every < 1 or keep < 1:
            raise NblError(f"RoundCheckpoint(every={every}, keep={keep}): need whole numbers of rounds, at least 1.")
        self.folder, self.every, self.keep = Path(folder), every, keep
        self._saved = -1

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self.every == 0 and trainer.global_step != trainer.max_steps:
            self._save(trainer)  # the last round's is saved in `on_train_end`, after callbacks have told what is out

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._save(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        if isinstance(exception, SIGTERMException):  # raised between rounds; anything else may have cut one in half
            self._save(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        if trainer.global_step in (0, self._saved) or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self._saved = trainer.global_step
        trainer.save_checkpoint(self.folder / f"round-{self._saved:07d}.ckpt")
        if trainer.is_global_zero:
            for old in [*_newest(self.folder)[self.keep :], *self.folder.glob(".*.part")]:  # parts: of a killed write
                old.unlink(missing_ok=True)


def read(path: str | os.PathLike[str], map_location: Any = "cpu") -> dict[str, Any]:
    """The checkpoint in this file, checked for damage and loaded safely (`weights_only=True`)."""
    file = Path(path)
    if not file.is_file():
        raise NblError(f"No checkpoint at {file}. Runs keep theirs in <out>/{FOLDER}/round-*.ckpt.")
    if fault := damage(file):
        good = next((other for other in _newest(file.parent) if other != file and not damage(other)), None)
        cure = f"The newest good one beside it: resume={good}" if good else "No good one is beside it: start anew."
        raise NblError(f"Checkpoint {file} ({file.stat().st_size} bytes) is damaged: {fault}. {cure}")
    try:
        checkpoint: dict[str, Any] = torch.load(file, map_location=map_location, weights_only=True)
    except Exception as error:  # whole, but not one of ours: torch's own text is a page
        raise NblError(f"{file} is not a checkpoint that loads safely: {str(error).splitlines()[0]}") from error
    return checkpoint


def damage(file: Path) -> str | None:
    """What is wrong with the file, or None. Every byte is read: the archive keeps a checksum of each tensor."""
    try:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():  # torch writes neither compressed nor encrypted entries, nor folders
                if entry.compress_type or entry.flag_bits & 1 or entry.external_attr:
                    return f"the entry {entry.filename} is not as it was written"
            bad = archive.testzip()
    except Exception as error:  # a damaged archive can fail in any way
        return str(error).rstrip(".") or type(error).__name__
    return f"checksum of {bad} does not match" if bad else None


def find(resume: str, root: str | os.PathLike[str] = "runs", recipe: str | None = None) -> Path:
    """The checkpoint meant by `resume=`: a file, a run's folder, or `last`, the recipe's newest run that has one."""
    if resume != "last":
        path = Path(resume)
        if path.is_file():
            return path
        if path.is_dir() and (found := _newest_good(path)):
            return found
        what = "has no good checkpoint" if path.is_dir() else "does not exist"
        raise NblError(f"resume={resume}: {what}. Give a .ckpt file, a run's folder, or `last`.")
    folder = Path(root) / recipe if recipe else Path(root)
    runs = {file.parent.parent for file in folder.glob(f"**/{FOLDER}/*.ckpt")}
    for run in sorted(runs, key=lambda r: max(f.stat().st_mtime_ns for f in _newest(r / FOLDER)), reverse=True):
        if found := _newest_good(run):
            return found
    raise NblError(f"resume=last: no run with a good checkpoint under {folder}. Give the folder of a run: resume=PATH.")


def load(path: str | os.PathLike[str], algorithm: type[BanditModule] | None = None, **overrides: Any) -> BanditModule:
    """Rebuild a policy from its checkpoint alone, ready for `act`.

    Args:
        path: the file.
        algorithm: the class, where it is not one of `nbl.algorithms`.
        **overrides: constructor arguments to change.
    """
    checkpoint = read(path)
    if algorithm is None:
        import nbl.algorithms

        name = checkpoint.get("nbl", {}).get("algorithm")
        algorithm = getattr(nbl.algorithms, name, None) if isinstance(name, str) and name in _exported() else None
        if algorithm is None:
            raise NblError(
                f"{path} was written by {name or 'an unknown class'}, which is not in nbl.algorithms. "
                "Give the class: load(path, algorithm=MyAlgorithm)."
            )
    if missing := sorted(set(checkpoint.get("nbl", {}).get("left_out", ())) - set(overrides)):
        raise NblError(
            f"{path}: {', '.join(missing)} was an object of your own, which a safe file does not hold. "
            f"Give it again: load(path, {', '.join(f'{name}=...' for name in missing)})."
        )
    module = algorithm(**{**checkpoint["hyper_parameters"], **overrides})
    if checkpoint.get("nbl", {}).get("double"):
        module.double()
    module.on_load_checkpoint(checkpoint)
    module.load_state_dict(checkpoint["state_dict"])
    return module.eval()


def _exported() -> Iterator[str]:
    import nbl.algorithms
    from nbl.module import BanditModule

    for name, value in vars(nbl.algorithms).items():
        if isinstance(value, type) and issubclass(value, BanditModule):
            yield name


def _newest(folder: Path) -> list[Path]:
    """Checkpoints, newest round first."""
    files = [file for file in folder.glob("*.ckpt") if file.is_file()]
    return sorted(files, key=lambda file: (len(file.name), file.name, file.stat().st_mtime_ns), reverse=True)


def _newest_good(run: Path) -> Path | None:
    for file in _newest(run / FOLDER) or _newest(run):
        fault = damage(file)
        if fault is None:
            return file
        size = file.stat().st_size
        warnings.warn(f"Checkpoint {file} ({size} bytes) is damaged ({fault}): taking the one before it.", stacklevel=3)
    return None
