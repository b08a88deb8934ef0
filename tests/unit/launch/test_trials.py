"""Which layouts a machine can hold."""

from dataclasses import replace

import pytest

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.errors import InputError, RunDirectoryError
from shardwise.launch.lock import locked
from shardwise.launch.trials import Trial, Unable, clear, find_trials, room_hint
from shardwise.spec.layout.axes import Layout
from shardwise.spec.request import read_request
from shardwise.spec.run import RunDirectory, write_text

WAYS = ("ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "mp", "pp", "cp", "gpipe", "interleaved", "zero_bubble")
PRODUCTS = ["ddp+pp-4", "fsdp+pp-4", "fsdp+mp-4", "fsdp+tp-4", "tp+pp-4", "fsdp+cp-4"]
LARGE = ("hsdp+tp-8", "fsdp+tp+pp-8")


def found(names: str | None, hardware: str) -> tuple[list[str], dict[str, str]]:
    trials, unable = find_trials(names.split(",") if names else None, cluster=parse_hardware(hardware), method="lora")
    return [trial.label for trial in trials], {one.layout: one.reason for one in unable}


def test_processors_hold_every_layout_on_as_few_processes_as_it_needs_and_gpus_what_there_are_gpus_for() -> None:
    small = dict.fromkeys(LARGE, "it needs 8 processes, and cpu:1 has room for 4")
    fewest = ["single-1", *(f"{way}-{4 if way == 'hsdp' else 2}" for way in WAYS), *PRODUCTS]
    assert found("all", "cpu:1") == (fewest, small)
    able, unable = found("all", "cpu:8")
    eight = ["ddp+pp-8", "fsdp+pp-8", "fsdp+mp-8", "fsdp+tp-8", "tp+pp-4", "hsdp+tp-8", "fsdp+cp-8"]
    assert able[len(WAYS) + 1 :] == [*eight, LARGE[1]]
    assert unable == {}
    able, unable = found("all", "2x RTX-6000-Ada")
    assert able == ["single-1", *(f"{way}-2" for way in WAYS if way != "hsdp")]
    assert unable["hsdp-4"] == "it needs 4 processes, and 2x RTX-6000-Ada has room for 2"
    kinds = ("ddp", "zero1", "fsdp", "tp", "cp", "mp", "pp")
    assert found(None, "cpu:2") == (["single-1", *(f"{kind}-2" for kind in kinds), "fsdp+tp-4", "fsdp+pp-4"], {})


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("fsdp+pp-8", Layout(pp=2, dp_shard=4)),
        ("ddp+mp", Layout(pp=2, dp_replicate=4, schedule="sequential")),
        ("gpipe", Layout(pp=8, schedule="gpipe")),
        ("pp:1f1b", Layout(pp=8)),
        ("fsdp+tp+pp", Layout(tp=2, pp=2, dp_shard=2)),
    ],
)
def test_a_product_splits_the_model_in_two_and_gives_the_data_the_rest(name: str, layout: Layout) -> None:
    trials, _ = find_trials([name], cluster=parse_hardware("8x H100-SXM"), method="full")
    assert [trial.layout for trial in trials] == [layout]


def test_a_trial_has_the_processes_that_are_stated_and_no_more_than_the_model_takes() -> None:
    assert found("fsdp-4,fsdp,fsdp-2", "cpu:2")[0] == ["fsdp-4", "fsdp-2"]
    able, unable = found("fsdp-8,ddp-1,single-2,hsdp-6,fsdp+pp-5", "cpu:4")
    assert able == []
    assert list(unable) == ["fsdp-8", "ddp-1", "single-2", "hsdp-6", "fsdp+pp-5"]
    assert unable["fsdp+pp-5"] == "fsdp+pp has 2 ranks for each of pp, which 5 processes do not divide into"
    model = find_model("tinyllama-1.1b", offline=True)
    names = ["pp", "interleaved", "tp", "tp+pp"]
    trials, unable = find_trials(names, cluster=parse_hardware("cpu:32"), method="full", model=model)
    assert [trial.label for trial in trials] == ["pp-22", "interleaved-11", "tp-4", "tp+pp-4"]
    assert unable == ()


def test_experts_are_dealt_in_trials_of_a_mixture_alone_and_what_is_not_trained_is_listed() -> None:
    own = {"num_experts": 6, "num_experts_per_tok": 2}
    for kind, dealt in (("qwen3_moe", ["ep-4"]), ("llama", [])):
        model = shape_from_data({"model_type": kind, **own}, file="config.json")
        trials, unable = find_trials(None, cluster=parse_hardware("cpu:4"), method="full", model=model)
        assert [trial.label for trial in trials if trial.layout.ep > 1] == dealt
        assert not [one for one in unable if "ep" in one.layout]
    able, unable = found("ddp+ep,fsdp+pp+ep,ep-3", "cpu:4")
    assert able == ["ddp+ep-4", "fsdp+pp+ep-4"]
    assert unable["ep-3"].endswith("see different samples, and does not divide dp_shard = 3")
    model = shape_from_data({"model_type": "bloom"}, file="config.json")
    trials, unable = find_trials(["tp", "ddp"], cluster=parse_hardware("cpu:2"), method="lora", model=model)
    assert [trial.label for trial in trials] == ["ddp-2"]
    assert [(one.layout, "nearest layout that trains it: fsdp" in one.reason) for one in unable] == [("tp-2", True)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fsd", "did you mean 'fsdp'"),
        ("zero3", "no layout; ZeRO-3 is fsdp here"),
        ("quick", "the layouts are single, job, all, mp"),
        ("ddp+fsdp", "no layout"),
        ("pp+pp", "no layout"),
        ("job", "the job states no layout"),
    ],
)
def test_a_name_that_is_no_layout_is_bad_input(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        found(name, "cpu:2")


@pytest.mark.parametrize(("label", "hardware"), [("single", "cpu:4"), ("zero2", "cpu:4"), ("hsdp", "4x RTX-6000-Ada")])
def test_a_trial_sets_its_hardware_layout_and_folder(label: str, hardware: str) -> None:
    cluster = parse_hardware(hardware)
    (trial,), _ = find_trials([label], cluster=cluster, method="full")
    job = read_request(None, overrides=["model=m", *trial.overrides(cluster, output_dir="runs/it's: here")]).job
    assert job.layout != "auto" and job.layout.to_layout() == trial.layout
    assert parse_hardware(job.hardware).num_gpus == trial.layout.world_size
    assert job.output_dir == "runs/it's: here"


def test_an_earlier_trial_is_removed_and_nothing_else_is(tmp_path) -> None:
    run, other = RunDirectory(tmp_path / "run"), tmp_path / "other"
    write_text(run.resolved, "{}")
    write_text(run.final / "model.safetensors", "")
    write_text(other / "precious.txt", "")
    with locked(run), pytest.raises(RunDirectoryError, match="in use by another run"):
        clear(run)
    assert run.resolved.exists(), "it still runs"
    clear(RunDirectory(other))
    clear(RunDirectory(tmp_path / "absent"))
    clear(run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other"]
    assert (other / "precious.txt").exists()


def own(layout: Layout | str, *names: str, hardware: str = "cpu:1") -> list[Trial | Unable]:
    trials, unable = find_trials(names or None, cluster=parse_hardware(hardware), method="lora", own=layout)
    return [*trials, *unable]


def test_the_jobs_own_layout_is_a_trial_where_there_is_room() -> None:
    layout = Layout(pp=2, dp_shard=2, schedule="interleaved")
    assert own(layout, "job") == own(layout, "job-4") == [Trial(name="job", layout=layout)]
    assert own("fsdp", "job") == [Trial(name="fsdp", layout=Layout(dp_shard=2))]
    assert Trial(name="job", layout=layout) in own(layout)
    assert [one for one in own(Layout(dp_shard=2)) if isinstance(one, Trial) and one.name == "job"] == []
    eight = own(Layout(pp=2, dp_shard=2, tp=2), "job")
    assert eight == [Unable(layout="job-8", reason="it needs 8 processes, and cpu:1 has room for 4", needs=8)]
    assert [one.layout for one in own(layout, "job-2")] == ["job-2"]


def small(layout: Layout | None, *names: str, hardware: str = "cpu:4") -> tuple[list[str], dict[str, str], str]:
    """Trials and what is unable of five blocks with six heads, two of keys and values."""
    sizes = {"num_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 2}
    model = replace(find_model("tinyllama-1.1b", offline=True), **sizes)
    trials, unable = find_trials(names, cluster=parse_hardware(hardware), method="full", model=model, own=layout)
    return [one.label for one in trials], {one.layout: one.reason for one in unable}, room_hint(unable)


def test_what_the_model_cannot_be_cut_into_is_no_question_of_room() -> None:
    names = ["mp-6", "tp-6", "fsdp+tp-12"]
    able, unable, hint = small(None, *names)
    assert able == []
    assert unable == {
        "mp-6": "6 pipeline stages for 5 layers; use pp: 5 at most",
        "tp-6": "tp = 6 does not divide the model's 2 key-value heads; the largest tp that slices it evenly is 2",
        "fsdp+tp-12": "it needs 12 processes, and cpu:4 has room for 4",
    }
    assert hint == "write --set hardware=cpu:12 for as many processors"
    assert small(None, *names, hardware="cpu:12")[0] == ["fsdp+tp-12"]
    assert small(None, "tp-4", "pp-7")[2] == "write --layouts ddp,fsdp"
    assert small(Layout(pp=9), "job")[1] == {"job-9": "9 pipeline stages for 5 layers; use pp: 5 at most; or use fsdp"}
