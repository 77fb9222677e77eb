"""What kind of file system a path lies on, as far as it matters for SQLite's locks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_MOUNTINFO = Path("/proc/self/mountinfo")
_NETWORK = re.compile(
    "9p|afs|beegfs|blobfuse2?|ceph|cifs|coda|gcsfuse|gfs2|glusterfs|goofys|gpfs|juicefs|lustre|mount-s3|ncpfs|nfs4?|"
    "ocfs2|orangefs|panfs|pvfs2|rclone|s3fs|smb[23]?|smbfs|sshfs|wekafs"
)


def network_file_system(path: Path, mountinfo: str | None = None) -> str | None:
    """The type of the network file system that a path lies on, such as "nfs4"; None for a local one.

    Args:
        path: need not exist; links are followed.
        mountinfo: text in the form of Linux' `/proc/self/mountinfo`; this process's own when left out. Where there is
            none, every file system counts as local.
    """
    if mountinfo is None:
        mountinfo = _MOUNTINFO.read_text(errors="surrogateescape") if _MOUNTINFO.exists() else ""
    place = Path(os.path.realpath(path))
    under = [
        (len(point.parts), order, kind)
        for order, (point, kind) in enumerate(_mounts(mountinfo))
        if place.is_relative_to(point)
    ]
    kind = max(under)[2] if under else ""
    return kind if _NETWORK.fullmatch(kind.removeprefix("fuse.")) else None


def _mounts(mountinfo: str) -> Iterator[tuple[Path, str]]:
    """Mount point and type of every line; a later mount on the same point hides an earlier one."""
    for line in mountinfo.splitlines():
        fields = line.split()
        yield Path(_unescape(fields[4])), fields[fields.index("-") + 1]


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
