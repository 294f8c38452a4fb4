"""Callbacks for tests: how a run dies. And processes that play one."""

import os
import signal
import socket

import lightning as L


class Kill(L.Callback):
    """Send this process a signal at the start of a round.

    `rank`: only in that one of several. `seed`: only in the run of a sweep that has it. `once`: a file that is made by
    the first time, and spares the second.
    """

    def __init__(self, at, signum=int(signal.SIGKILL), rank=0, seed=None, once=None):
        self.at, self.signum, self.rank, self.seed, self.once = at, signum, rank, seed, once

    def on_train_batch_start(self, trainer, module, batch, index):
        mine = self.seed is None or module.seeds[0] == self.seed
        if batch.t != self.at or trainer.global_rank != self.rank or not mine:
            return
        if self.once is not None:
            if os.path.exists(self.once):
                return
            open(self.once, "w").close()
        os.kill(os.getpid(), self.signum)


def play(arguments, folder, variables=None, log=None):
    """In a child process: run the command line in this folder."""
    import sys

    import torch

    from nbl.cli import main

    torch.set_num_threads(1)
    os.chdir(folder)
    os.environ.update(variables or {})
    if log is not None:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.exit(main(arguments))


def torchrun(context, world, arguments, folder, log):
    """Processes with the variables that torchrun sets, without paying for the imports each time. -> exit codes"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    processes = []
    for rank in range(world):
        variables = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
        options = [*arguments, f"trainer.devices={world}"]
        processes.append(context.Process(target=play, args=(options, folder, variables, log)))
        processes[-1].start()
    for process in processes:
        process.join(240)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()  # what hangs must not outlive the test
    return codes
