"""Batch scripts whose options sbatch understands, so that it goes on to look for a controller."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("slurm-client", "slurm-wlm-basic-plugins")
CONFIG = "ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort=1\nMessageTimeout=2\nGresTypes=gpu\n"


def debian(folder: Path) -> Path | None:
    """sbatch out of Debian's packages, which are not installed; None where apt has none."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None
    downloaded = subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=folder, capture_output=True, check=False)
    if downloaded.returncode:
        return None
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    return folder / "root"


def main() -> None:
    root, folder = None, Path.cwd()
    found = shutil.which("sbatch")
    if found is None:
        root = debian(folder)
        if root is None:
            print("skipped: sbatch is not installed, and apt has no slurm-client (apt-get update)")
            return
        found = str(root / "usr/bin/sbatch")
    libraries = next(iter(root.glob("usr/lib/*/slurm-wlm")), None) if root else None
    plugins = f"PluginDir={libraries}\nAuthType=auth/none\n" if libraries else ""
    (folder / "slurm.conf").write_text(CONFIG + plugins)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    if libraries:
        environment["LD_LIBRARY_PATH"] = f"{libraries}:{libraries.parent}"
    subprocess.run([found, "--version"], env=environment, check=True)
    for case in map(Path, sys.argv[1:]):
        read(found, case, environment)


def read(sbatch: str, case: Path, environment: dict[str, str]) -> None:
    """sbatch prints each option as it read it; then no controller answers."""
    command = [sbatch, "--test-only", "-vv", "train.sbatch"]
    ran = subprocess.run(command, cwd=case, env=environment, capture_output=True, text=True, timeout=120, check=False)
    options = dict(re.findall(r"^sbatch: (\S+) +: (.*)$", ran.stderr, re.MULTILINE))
    wrong = [line for line in ran.stderr.splitlines() if re.search("unrecognized|[Ii]nvalid", line)]
    assert not wrong, wrong
    assert re.search(r"contact slurm controller|Connection refused|allocation failure", ran.stderr), ran.stderr
    stated = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", (case / "train.sbatch").read_text(), re.MULTILINE))
    hours = int(stated["time"].partition(":")[0])
    assert options["time"] in {f"{hours:02}:00:00", f"{hours // 24}-{hours % 24:02}:00:00"}, options
    assert options["ntasks-per-node"] == stated["ntasks-per-node"]
    assert options["cpus-per-task"] == stated["cpus-per-task"] == "4", options
    # Of a node, `0?` for all that it has; there is no line where nothing is asked.
    assert options.get("mem", "").rstrip("?") == stated.get("mem", ""), options
    assert ("mem" in stated) == (int(stated["gpus-per-node"]) == 8 or case.name == "offload")
    assert options["signal"] == "B:TERM@120"
    asked = f"at most {options['time']}, memory {options.get('mem', 'not stated')}"
    print(f"{case.name}: {options['nodes']} nodes, {options['ntasks-per-node']} tasks each, {asked}")
    subprocess.run(["bash", "-n", "train.sbatch"], cwd=case, check=True)


main()
