"""The state of a module, kept and compared."""

import torch


def snapshot(module):
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in module.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a
    )
