"""Memory that processes had resident, from Linux' /proc."""

from pathlib import Path


def peaks_below(root: int) -> dict[int, int]:
    """Bytes that a process and those that it started had resident at most, by their ids."""
    parents, peaks = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            said = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it has ended
            continue
        parents[int(status.parent.name)] = int(said["PPid"])
        peaks[int(status.parent.name)] = int(said.get("VmHWM", "0 kB").split()[0]) * 1024
    family = {root}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return {process: peaks[process] for process in family if peaks.get(process)}
