"""Several ranks that save and load with DCP: ckptstore's storage beside DCP's files, and a coordinator of 1,024 ranks.

    python -m benchmarks.distributed [--mib 1200] [--layers 2] [--runs 5] [--ranks 2 4] [--simulated 1024]
        [--chunks 100000] [--leaves 1200] [--folder FOLDER] [--json FILE] [--markdown FILE]

Ranks are processes on one machine, in a gloo group; their state is sharded and trained by FSDP2. Then the coordinator
of a save is given what 1,024 ranks would send. docs/benchmarks.md says what the rows are. Ends with status 1 when a
tool gave back other bits than it was given.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from pathlib import Path

from torch.multiprocessing.spawn import spawn

from benchmarks.coordinator import measure_coordinator, measure_merging
from benchmarks.figures import DISTRIBUTED
from benchmarks.measuring import Samples
from benchmarks.rank_job import measure
from benchmarks.rank_tools import RANK_TOOLS
from benchmarks.report import Report, add_files


def main() -> None:
    """Measure, and report."""
    arguments = _arguments()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    samples = Samples()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for ranks in arguments.ranks:
            found = measured_by(ranks, arguments, Path(folder))
            samples.values |= found.values
            samples.correct |= found.correct
            samples.sizes |= found.sizes
        for run in range(arguments.runs):
            measure_coordinator(samples, arguments.simulated, arguments.chunks, Path(folder, f"store{run}"))
            measure_merging(samples, arguments.simulated, arguments.leaves, Path(folder, f"merged{run}"))
    Report(samples, [tool.name for tool in RANK_TOOLS], DISTRIBUTED).publish(arguments)


def measured_by(ranks: int, arguments: argparse.Namespace, folder: Path) -> Samples:
    """What so many processes measure."""
    found = multiprocessing.get_context("spawn").SimpleQueue()
    given = ranks, arguments.mib, arguments.layers, arguments.runs, folder, found
    spawn(measure, given, nprocs=ranks)
    return found.get()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=1200, help="size of the state that all ranks have together")
    parser.add_argument("--layers", type=int, default=2, help="of the transformer: the fewer, the wider")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of which the median is taken")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="numbers of processes")
    parser.add_argument("--simulated", type=int, default=1024, help="ranks whose coordinator is measured")
    parser.add_argument("--chunks", type=int, default=100_000, help="that the simulated ranks have together")
    parser.add_argument("--leaves", type=int, default=1200, help="that each simulated rank has of one state")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    add_files(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
