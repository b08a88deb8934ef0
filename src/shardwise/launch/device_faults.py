"""What a rank's log says of a device or a link that failed, where torch ended the process before it could write why.

torch's NCCL watchdog thread sees a failed device at its next query and aborts the process, often before the main thread
comes to know of it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

#: What CUDA, NCCL and the driver say of a device or a link.
_FAULT = re.compile(r"CUDA error|device-side assert|Assertion .* failed|uncorrectable|NVLink|NCCL WARN", re.IGNORECASE)
#: What NCCL says where a peer has gone: an effect, not the cause.
_OF_A_PEER = re.compile(r"remote process|ncclRemoteError|connection closed by|connection reset", re.IGNORECASE)
#: The time in front of what torch's C++ half logs, in local time: `[E1125 16:09:32.123456789 ProcessGroupNCCL.cpp:...`.
_LOGGED_AT = re.compile(r"\[[EFWI](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})")


def device_fault(said: str) -> tuple[float, str] | None:
    """When a log first speaks of a fault of a device, in seconds since the epoch, and the line; None where it does not.

    The time is that of the next line that has one; infinite where none has.
    """
    lines = said.splitlines()
    for index, line in enumerate(lines):
        if _FAULT.search(line) and not _OF_A_PEER.search(line):
            times = (_time(later) for later in lines[index:])
            return next((at for at in times if at is not None), float("inf")), line.strip()
    return None


def _time(line: str) -> float | None:
    found = _LOGGED_AT.search(line)
    if found is None:
        return None
    now = datetime.now(UTC).astimezone()
    month, day, hour, minute, second, micro = map(int, found.groups())
    try:
        return now.replace(month=month, day=day, hour=hour, minute=minute, second=second, microsecond=micro).timestamp()
    except ValueError:  # no such day
        return None
