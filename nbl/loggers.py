"""Where curves go besides `metrics.csv`: Weights & Biases, or Lightning's CSV logger. Chosen with `logger=NAME`."""

from __future__ import annotations

import contextlib
import io
import netrc
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from nbl.types import NblError

if TYPE_CHECKING:
    from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger


def csv(out: str, **_: Any) -> CSVLogger:
    """A live `csv/metrics.csv` in the run's folder."""
    from lightning.pytorch.loggers import CSVLogger

    return CSVLogger(out, name="", version="csv", flush_logs_every_n_steps=1)


def wandb(out: str, id: str, project: str = "nbl", name: str | None = None, mode: str = "auto") -> WandbLogger | None:
    """Lightning's WandbLogger, its files in the run's folder. Nothing starts before the run does.

    Args:
        out: the run's folder.
        id: the run's identifier: a resumed run continues the same curve.
        project, name: as W&B shows them.
        mode: online, offline, disabled, or auto: what WANDB_MODE says, else online where the user is logged in.
    """
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or ("online" if _logged_in() else "offline")
    mode = {"dryrun": "offline", "run": "online"}.get(mode, mode)
    if mode not in ("online", "offline", "disabled", "shared"):
        raise NblError(f"logger.wandb.mode={mode}: need online, offline, disabled or auto.")
    if mode == "disabled":
        return None
    os.environ.setdefault("WANDB_SILENT", "true")  # read when wandb is first imported
    try:
        import wandb as package
        from lightning.pytorch.loggers import WandbLogger
    except ImportError as error:
        warnings.warn(f"No W&B here ({error}): going on without it. Say logger=csv to choose that.", stacklevel=2)
        return None
    settings = package.Settings(silent=True, console="off", init_timeout=30)
    folder = Path(out).resolve()  # wandb writes from a process of its own, whose working folder is not ours
    return WandbLogger(save_dir=folder, id=id, project=project, name=name, mode=mode, settings=settings)


def start(loggers: list[Logger], config: dict[str, Any]) -> list[Logger]:
    """Start each logger and give it the config. One that cannot start is left out with a warning: the run goes on."""
    started, said = [], io.StringIO()
    for logger in loggers:
        try:
            with contextlib.redirect_stderr(said):
                logger.log_hyperparams(config)
            started.append(logger)
        except Exception as error:
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            warnings.warn(f"{type(logger).__name__} did not start ({why}): going on without it.", stacklevel=2)
    for line in said.getvalue().splitlines(keepends=True):
        if "anonymous setting has no effect" not in line:  # Lightning passes it, and wandb complains
            sys.stderr.write(line)
    return started


def finish(loggers: list[Logger], summary: dict[str, Any], picture: Path) -> str | None:
    """Hand over the summary and the plot, and close. Returns how to sync, where there is something to sync."""
    line = None
    for logger in loggers:
        if type(logger).__name__ != "WandbLogger":
            continue
        try:
            run = logger.experiment  # type: ignore[attr-defined]
            run.summary.update(_flat(summary))
            logger.log_image(key="regret/plot", images=[str(picture)])  # type: ignore[attr-defined]
            if run.settings.mode == "offline":
                line = f"wandb sync {_shown(Path(run.dir).parent)}"
            run.finish()
        except Exception as error:
            warnings.warn(f"W&B did not take the results ({error}); the files are complete.", stacklevel=2)
    return line


def _logged_in() -> bool:
    """Whether wandb will find a key by itself. Looked up the way wandb does, because asking wandb may prompt."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    names = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for file in map(os.path.expanduser, names):
        try:
            if netrc.netrc(file).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{prefix}{key}/") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
