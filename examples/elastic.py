"""What happens to a distributed training: one of its ranks is killed, and a new job goes on with what it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

import ckptstore

STEPS, EVERY, KILLED_AT = 12, 4, 6

NEVER = 0

Train = Callable[[str, str, int], None]
"""Trains the run of a store to the last step, from where it stands, as one of torchrun's ranks; one dies at a step."""


def begin(script: str, train: Train, ranks: int, ranks_later: int) -> None:
    """The story, in the folder that is given or in a temporary one; or one rank's part in it."""
    if len(sys.argv) == 4:
        train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
        os._exit(0)  # gloo's threads may still free tensors, which aborts a Python that is ending: pytorch issue 190489
    elif len(sys.argv) == 2:
        show_all(script, sys.argv[1], ranks, ranks_later)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            show_all(script, str(Path(temporary, "store")), ranks, ranks_later)


def show_all(script: str, folder: str, ranks: int, ranks_later: int) -> None:
    """The whole story."""
    torchrun(script, ranks, folder, "straight")
    print(f"run straight: {ranks} ranks, to step {STEPS}")
    torchrun(script, ranks, folder, "elastic", dies_at=KILLED_AT)
    with ckptstore.open(folder, run="elastic") as store:
        print(f"run elastic: one of {ranks} ranks killed after step {KILLED_AT}, last commit at step {store.latest()}")
        torchrun(script, ranks_later, folder, "elastic")
        print(f"run elastic: {ranks_later} ranks, to step {STEPS}")
        show(store)


def torchrun(script: str, ranks: int, folder: str, run: str, dies_at: int = NEVER) -> None:
    """Train on so many ranks; fails unless all come to the end or one is meant to die."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    job = [*launcher, script, folder, run, str(dies_at)]
    done = subprocess.run(job, stderr=subprocess.PIPE, text=True, check=False)
    if (done.returncode == 0) != (dies_at == NEVER):
        raise SystemExit(done.stderr)


def may_die(step: int, dies_at: int) -> None:
    """Kill the last rank when it has come to the step."""
    if step == dies_at and dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)


def show(store: ckptstore.Store) -> None:
    """Whether both runs came to the same."""
    print(f"differences to the straight run at step {STEPS}: {len(store.diff(STEPS, f'straight@{STEPS}').changes)}")
    straight, elastic = (store.read(f"{run}@{STEPS}", "losses") for run in ("straight", "elastic"))
    print(f"loss {straight[0]:.3f} to {straight[-1]:.3f}; the same at every step: {straight == elastic}")
