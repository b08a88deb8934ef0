"""`accelerate launch --config_file`, as its own class reads it, which refuses unknown keys."""

from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from given import cases

for folder, job, _ in cases():
    path, layout = folder / "accelerate.yaml", job.get("layout")
    read = load_config_from_file(str(path))
    assert read.distributed_type.value == {"fsdp": "FSDP", "ddp": "MULTI_GPU"}.get(layout, "NO")
    line = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, *_ = _validate_launch_command(line)
    assert arguments.num_processes == (read.num_processes or 1) and arguments.mixed_precision == "bf16"
    if layout == "fsdp":
        assert (arguments.use_fsdp, arguments.fsdp_version) == (True, 2)
    print(f"{folder.name}: {read.distributed_type.value}, {arguments.num_processes} processes")
