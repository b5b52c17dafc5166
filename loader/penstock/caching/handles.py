"""A descriptor in a pickle: whoever unpickles it opens the same file, in whichever process of this user.

`spawn` and `forkserver` send pickles, and a descriptor means nothing in one. But a process that is still there has it
in its folder under /proc, and whoever may open it there has it too.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple


class Handle(NamedTuple):
    """How another process finds a descriptor of this one."""

    process: int
    descriptor: int
    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> Handle:
        about = os.fstat(descriptor)
        return cls(os.getpid(), descriptor, about.st_dev, about.st_ino)

    def open(self, flags: int = os.O_RDWR) -> int | None:
        """A descriptor of the same file; None if its process is gone, or the system does not let us."""
        with contextlib.suppress(OSError):
            descriptor = os.open(f"/proc/{self.process}/fd/{self.descriptor}", flags | os.O_CLOEXEC)
            about = os.fstat(descriptor)
            if (about.st_dev, about.st_ino) == (self.device, self.inode):
                return descriptor
            os.close(descriptor)
        return None
