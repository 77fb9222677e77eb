"""A training for torchrun that lasts until it is preempted: elastic.py FOLDER."""

from __future__ import annotations

import sys

import torch.distributed as dist

import ckptstore


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    with ckptstore.open(folder) as store, ckptstore.CheckpointManager(store, 10**9) as manager:
        step = 0
        while not manager.reached_preemption(step):
            step += 1
            if manager.save(step, {"step": step}):
                say(f"saved {step}")
            if step == 3:
                say("training")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
