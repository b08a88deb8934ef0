"""What `export` makes for other trainers really runs there, with the losses that Shardwise has."""

import importlib.util
import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardwise import api
from shardwise.data.store import PreparedData
from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, read_json, read_metrics
from tests.dist.cells import prepare_cell, run_built, spread, train_rank
from tests.dist.compare import relative
from tests.dist.programs import end, start

#: Of each loss, relative. The same sums in another order: 7e-8 was measured; float32 has 6e-8.
TOLERANCE = 1e-6

SCRIPT = Path(__file__).with_name("peer_script.py")

#: Steps before the first epoch of 53 rows ends.
TRAIN: dict[str, Any] = {"micro_batch_size": 2, "max_steps": 6, "weight_decay": 0.1, "learning_rate": 5e-3}
TRAIN["compile"] = False


@dataclass(frozen=True)
class Ours:
    """A job, the losses of its steps on one process, and its rows as tokens."""

    job: Job
    losses: list[float]
    rows: Path


@pytest.fixture(scope="module")
def ours(make_job: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Ours:
    folder = tmp_path_factory.mktemp("ours")
    job = make_job(data={"shuffle": False}, train=TRAIN, output_dir=str(folder / "theirs"))
    run = prepare_cell(job, folder / "run")
    losses = run_built(train_rank, run, spread())[0].series("loss")
    data = PreparedData.open((read_json(run.data) or {})["train"]["folder"])
    rows = folder / "rows.jsonl"
    with rows.open("w") as file:
        for index in range(len(data)):
            ids, _, labels = data.sample(index)
            file.write(json.dumps({"ids": ids.tolist(), "labels": labels.tolist()}) + "\n")
    return Ours(job, losses, rows)


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} not installed: pip install '.[peers]'")


def exported(ours: Ours, folder: Path, to: str, **changes: Any) -> list[str]:
    """Writes a plan, and what a target makes of it; the first command to run."""
    api.write_plan(api.plan(ours.job.model_copy(update=changes)), folder / "plan.json")
    made = api.export(folder / "plan.json", to=to)
    api.write_export(made, folder)
    return shlex.split(made.run[0])


def started(command: list[str], folder: Path, **environment: Any) -> str:
    """Runs a command of an export where its files are; what it said."""
    program, *rest = command
    module = {"torchrun": ["torch.distributed.run"], "accelerate": ["accelerate.commands.launch"]}[program]
    words = ["-m", *module, *(rest[1:] if program == "accelerate" else rest)]
    return end(start(*words, folder=folder, HF_HUB_OFFLINE="1", **environment))


def settings_of(ours: Ours, folder: Path, **more: Any) -> tuple[Path, Path]:
    """What a user's script is told, and where it writes losses."""
    train, losses = ours.job.train, folder / "losses"
    told = {**train.model_dump(mode="json"), "model": ours.job.model, "rows": str(ours.rows), "losses": str(losses)}
    (folder / "settings.json").write_text(json.dumps(told | more))
    return folder / "settings.json", losses


def must_agree(ours: Ours, found: Iterable[float | str]) -> None:
    found = [float(loss) for loss in found]
    apart = relative(ours.losses, found)
    print(f"largest difference of a loss: {apart:.1e}; {ours.losses[0]:.3f} to {ours.losses[-1]:.3f}")
    assert apart <= TOLERANCE


@needs("accelerate")
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["fsdp", pytest.param("zero2", marks=pytest.mark.rare)])
def test_a_loop_under_the_exported_accelerate_configuration_has_our_losses(ours, tmp_path, layout) -> None:
    command = exported(ours, tmp_path, "accelerate", hardware="2x L4", layout=layout)
    assert command == ["accelerate", "launch", "--config_file", "accelerate.yaml", "train.py"]
    settings, losses = settings_of(ours, tmp_path)
    # On CPUs every process loads the weights: Accelerate sends them from rank 0 to GPUs only.
    loading = ["--fsdp_cpu_ram_efficient_loading", "false", "--fsdp_sync_module_states", "false"]
    said = started([*command[:-1], *loading, str(SCRIPT), "accelerate", str(settings)], tmp_path)
    assert "sharded as (Shard(dim=0),)" in said
    must_agree(ours, losses.read_text().split())


@pytest.mark.slow
@needs("deepspeed")
@pytest.mark.parametrize(("layout", "stage"), [("ddp", 0), ("zero1", 1), ("zero2", 2), ("fsdp", 3)])
def test_a_loop_under_the_exported_deepspeed_configuration_has_our_losses(ours, tmp_path, layout, stage) -> None:
    cpu, *command = exported(ours, tmp_path, "deepspeed", hardware="cpu:2", layout=layout)
    assert cpu == "DS_ACCELERATOR=cpu"
    assert command[-1] == "train.py"
    settings, losses = settings_of(ours, tmp_path, config=str(tmp_path / "deepspeed.json"))
    said = started([*command[:-1], str(SCRIPT), "deepspeed", str(settings)], tmp_path, DS_ACCELERATOR="cpu")
    assert f"stage {stage} AdamW" in said
    must_agree(ours, losses.read_text().split())


@pytest.mark.slow
@needs("trl", "datasets")
def test_the_exported_trl_script_has_our_losses(ours, tmp_path) -> None:
    train = ours.job.train.model_copy(update={"logging_steps": 1})
    where = {"hardware": "cpu:2", "layout": "ddp", "output_dir": str(tmp_path / "sft")}
    started(exported(ours, tmp_path, "trl", train=train, **where), tmp_path)
    (state,) = tmp_path.glob("sft/**/trainer_state.json")
    must_agree(ours, [entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry])


@pytest.mark.slow
def test_the_exported_torchrun_line_trains_the_plan_with_our_losses(ours, tmp_path) -> None:
    run = tmp_path / "run"
    command = exported(ours, tmp_path, "torchrun", hardware="cpu:2", layout="fsdp", output_dir=str(run))
    assert command[-2:] == ["train", str(tmp_path / "plan.json")]
    started(command, tmp_path)
    must_agree(ours, [record["loss"] for record in read_metrics(RunDirectory(run))])
