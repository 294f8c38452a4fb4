"""Callbacks for tests: how a run dies."""

import os
import signal

import lightning as L


class Kill(L.Callback):
    """Send this process a signal at the start of a round."""

    def __init__(self, at, signum=int(signal.SIGKILL)):
        self.at, self.signum = at, signum

    def on_train_batch_start(self, trainer, module, batch, index):
        if batch.t == self.at:
            os.kill(os.getpid(), self.signum)


def play(arguments, folder):
    """In a child process: run the command line in this folder."""
    import sys

    import torch

    from nbl.cli import main

    torch.set_num_threads(1)
    os.chdir(folder)
    sys.exit(main(arguments))
