from __future__ import annotations

from pathlib import Path

import pytest

from ckptstore.storage.filesystem import network_file_system

MOUNTS = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /mnt/nfs rw shared:2 master:3 - nfs4 server:/export rw,vers=4.2
31 30 8:2 / /mnt/nfs/local rw - xfs /dev/sdb1 rw
32 21 0:41 / /mnt/with\040space rw - cifs //server/share rw
33 21 0:42 / /mnt/ssh rw - fuse.sshfs me@server:/ rw
34 21 0:43 / /mnt/fuse rw - fuse.portal portal rw
35 21 0:44 / /mnt/hidden rw - nfs server:/a rw
36 21 8:3 / /mnt/hidden rw - btrfs /dev/sdc1 rw
37 21 0:45 / /mnt/lustre rw - lustre 10.0.0.1@tcp:/fs rw
""".strip()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", None),
        ("/home/me/ckpts", None),
        ("/mnt/nfs", "nfs4"),
        ("/mnt/nfs/a/b", "nfs4"),
        ("/mnt/nfsother", None),
        ("/mnt/nfs/local/a", None),
        ("/mnt/with space/a", "cifs"),
        ("/mnt/ssh/a", "fuse.sshfs"),
        ("/mnt/fuse/a", None),
        ("/mnt/hidden/a", None),
        ("/mnt/lustre/a/../b", "lustre"),
    ],
)
def test_longest_mount_point_decides(path, kind):
    assert network_file_system(Path(path), MOUNTS) == kind


def test_links_are_followed(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("/mnt/nfs/a")
    assert network_file_system(link / "b", MOUNTS) == "nfs4"


def test_nothing_known():
    assert network_file_system(Path("/a"), "") is None


def test_this_machine(tmp_path):
    assert network_file_system(tmp_path) is None
