"""ckptstore beside DCP and torch.save on an S3 server that answers late.

    python -m benchmarks.remote [--mib 256] [--runs 5] [--latency 0.02] [--folder FOLDER] [--json FILE]
        [--markdown FILE]

A real S3 server runs on this machine with its objects in memory, behind a proxy that makes every request wait. Every
run trains the state one step further; then each tool saves the same tensors, in an order that rotates, and so on for
the other rows. docs/benchmarks.md says what the rows are. Fails when a tool gave back other bits than it was given,
when an unchanged commit wrote more than its document, or when rows took more than two requests.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fsspec
from torch import Tensor

from benchmarks.far import Far
from benchmarks.figures import OWN, REMOTE
from benchmarks.measuring import Samples, copies, rotated
from benchmarks.remote_tools import Ckptstore, Dcp, RemoteTool, TorchSave
from benchmarks.report import Report, add_files
from benchmarks.tools import Tensors
from benchmarks.trained import Trained
from ckptstore.testing.servers import Bucket, s3_bucket, s3_server

ROWS = slice(16, 32)
MOST_REQUESTS = 2
RAW_BYTES = 8 << 20


def main() -> None:
    """Measure, and report."""
    arguments = _arguments()
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
        s3_server() as port,
        Far(port, arguments.latency) as far,
    ):
        remote = Remote(s3_bucket(port), far, Path(folder))
        trained = Trained(arguments.mib)
        remote.samples.sizes["state"] = sum(tensor.nbytes for tensor in trained.tensors().values())
        for run in range(arguments.runs):
            trained.train()
            remote.measure(trained.tensors(), run)
    Report(remote.samples, [tool.name for tool in remote.tools], REMOTE).publish(arguments)


class Remote:
    """The rows, on a server that is measured from far away and looked into from near by."""

    def __init__(self, near: Bucket, far: Far, folder: Path) -> None:
        self.samples = Samples()
        bucket = s3_bucket(far.port)
        # rclone sends the whole object's checksum with a range of it, and boto would refuse that range.
        bucket.options["config_kwargs"] = {"response_checksum_validation": "when_required"}
        self.tools: list[RemoteTool] = [Ckptstore(bucket, folder), Dcp(bucket), TorchSave(bucket)]
        self._far, self._near = far, near
        self._raw = fsspec.filesystem("s3", **bucket.options)
        self._inside = fsspec.filesystem("s3", **near.options, use_listings_cache=False)

    def measure(self, tensors: Tensors, run: int) -> None:
        """All rows once."""
        self._measure_limits(b"".join(tensor.numpy().tobytes() for tensor in tensors.values()))
        into = copies(tensors)
        tools = rotated(self.tools, run)
        for tool in tools:
            tool.begin(f"{tool.name}{run}")
            self._measure_save("save all-new", tool, tensors, f"{tool.name}{run}")
        for tool in tools:
            self._measure_reads(tool, tensors, into)
        for tool in tools:
            self._measure_save("save unchanged", tool, tensors, f"{tool.name}{run}")
            if run == 0:
                tool.load(_zeroed(into))
                self.samples.check("save unchanged", tool.name, tensors, into)
            tool.end()
        self._inside.rm(self._inside.ls(self._near.url, detail=False), recursive=True)

    def _measure_limits(self, data: bytes) -> None:
        """The bare bytes in objects that go and come all at once."""
        starts = range(0, len(data), RAW_BYTES)
        objects = {self._near.below(f"raw/{start:012d}"): data[start : start + RAW_BYTES] for start in starts}
        found: dict[str, bytes] = {}
        self.samples.time("limit", "raw put", lambda: self._raw.pipe(objects))
        self.samples.time("limit", "raw get", lambda: found.update(self._raw.cat(list(objects))))
        assert list(found.values()) == list(objects.values())

    def _measure_save(self, row: str, tool: RemoteTool, tensors: Tensors, place: str) -> None:
        before = self._objects(place)
        self._time(row, tool.name, partial(tool.save, tensors))
        after = self._objects(place)
        new = after.keys() - before.keys()
        self.samples.add(f"{row}: objects", tool.name, len(new))
        self.samples.add(f"{row}: MB stored", tool.name, (sum(after.values()) - sum(before.values())) / 1e6)
        if tool.name == OWN and row == "save unchanged":
            assert [path.split("/")[2] for path in new] == ["manifests"], f"an unchanged commit wrote {new}"

    def _measure_reads(self, tool: RemoteTool, tensors: Tensors, into: Tensors) -> None:
        self._time("load whole", tool.name, partial(tool.load, _zeroed(into)))
        self.samples.check("load whole", tool.name, tensors, into)
        name, like = max(tensors.items(), key=lambda item: item[1].nbytes)
        found: list[Tensor] = []
        requests = self._time("read rows", tool.name, lambda: found.append(tool.read(name, like, ROWS)))
        self.samples.check("read rows", tool.name, {name: like[ROWS]}, {name: found[0]})
        assert tool.name != OWN or requests <= MOST_REQUESTS, f"reading rows took {requests} requests"

    def _objects(self, place: str) -> dict[str, int]:
        """Path → size."""
        found = self._inside.find(self._near.below(place), detail=True)
        return {path: info["size"] for path, info in found.items()}

    def _time(self, row: str, column: str, act: Callable[[], object]) -> int:
        """Record how long it takes, and how many requests."""
        self._far.requests()
        self.samples.time(row, column, act)
        requests = self._far.requests()
        self.samples.add(f"{row}: requests", column, requests)
        return requests


def _zeroed(tensors: Tensors) -> Tensors:
    for tensor in tensors.values():
        tensor.zero_()
    return tensors


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=256, help="size of the state")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of which the median is taken")
    parser.add_argument("--latency", type=float, default=0.02, help="seconds that every request waits")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder on a disk, for the catalog")
    add_files(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
