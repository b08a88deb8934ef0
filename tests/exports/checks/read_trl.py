"""The settings of the scripts, made by TRL's own classes on a process without a GPU."""

import ast

from given import cases
from trl import SFTConfig

for folder, job, steps in cases():
    calls = [n for n in ast.walk(ast.parse((folder / "sft.py").read_text())) if isinstance(n, ast.Call)]
    (made,) = (call for call in calls if getattr(call.func, "id", "") == "SFTConfig")
    stated = {}
    for keyword in made.keywords:
        try:
            stated[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            assert keyword.arg in SFTConfig.__dataclass_fields__, keyword.arg
    read = SFTConfig(**{**stated, "output_dir": str(folder / "out"), "use_cpu": True})
    assert read.max_length == job["data"]["max_length"]
    assert read.max_steps == steps or read.num_train_epochs == 2
    print(f"{folder.name}: {read.per_device_train_batch_size} rows, {read.max_steps} steps")
