"""Which file system a folder lies on: locks between machines hold on local ones only."""

from __future__ import annotations

import os
import re
from pathlib import Path

# One line for each mounted file system: ... place, options [fields] - type, source, options.
MOUNTS = Path("/proc/self/mountinfo")
# As the kernel names them; `fuse.sshfs` counts by what comes after the point.
_NETWORK = re.compile(
    "9p|acfs|afs|beegfs|blobfuse2?|ceph|cifs|coda|davfs2?|gcsfuse|glusterfs|gpfs|lustre|mfs|"
    "moosefs|ncpfs|nfs4?|orangefs|pvfs2|rclone|s3fs|seaweedfs|smb3|smbfs|sshfs"
)


def network_file_system(folder: Path, mounts: Path | None = None) -> str | None:
    """Return the type of a folder's file system if other machines may write to it, else None.

    None where the system has no list of mounts, as on macOS.

    Args:
        folder: to be looked up.
        mounts: the list, as Linux has it under ``/proc``.

    >>> import tempfile
    >>> listed = Path(tempfile.mkdtemp()) / "mountinfo"
    >>> _ = listed.write_text("1 0 8:1 / / rw - ext4 /dev/sda rw\\n"
    ...                       "2 1 0:40 / /srv/team rw - nfs4 server:/team rw\\n")
    >>> [network_file_system(Path(place), listed) for place in ("/srv/team/ledgers", "/srv")]
    ['nfs4', None]
    """
    try:
        lines = (mounts or MOUNTS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    place, found, longest = os.path.realpath(folder), "", -1
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, described = before.split(), after.split()
        if len(fields) < 5 or not described:
            continue
        root = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        is_above = root == "/" or place == root or place.startswith(f"{root}/")
        # Of two at one place the later one lies on top.
        if is_above and len(root) >= longest:
            found, longest = described[0], len(root)
    return found if _NETWORK.fullmatch(found.rpartition(".")[2]) else None
