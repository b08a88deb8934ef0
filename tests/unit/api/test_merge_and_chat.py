"""What `merge` and `chat` refuse before a process is started, and what is said of a merge."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer import BadParameter

from shardwise import api
from shardwise.cli.after import chat, merged_lines
from shardwise.errors import InputError, ShardwiseError
from shardwise.spec.job.file import job_from_data
from shardwise.spec.result import naming_a_folder, result_fault, settings_of
from shardwise.spec.run import RunDirectory, write_json
from tests.refusals import must_refuse, said_by


def _run(folder: Path, *, method: str = "lora", outcome: str = "finished", content: bytes = b"{}") -> RunDirectory:
    run = RunDirectory(folder / "run")
    write_json(run.resolved, job_from_data({"model": "m", "method": method}).to_json())
    write_json(run.final / "config.json", {})
    (run.final / "config.json").write_bytes(content)
    record = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    write_json(run.final / "manifest.json", {"files": {"config.json": record}})
    write_json(run.outcome, {"outcome": outcome})
    return run


@pytest.mark.parametrize(
    ("of_run", "asked", "said"),
    [
        ({"outcome": "stopped"}, {}, "run holds a run that has not finished; `shardwise train` goes on with it"),
        ({"content": b"{ }"}, {}, "final: config.json has 3 bytes, and 2 were written; put the file back from a copy"),
        ({"method": "full"}, {}, "was trained in full: it has no adapter to merge"),
        ({}, {"dequantised": True}, "--dequantised is for QLoRA, and"),
        ({}, {"dtype": "int8"}, "--dtype is 'int8'; expected one of float32, bfloat16, float16"),
        ({}, {"output": "run/final"}, "final exists and is no merged model; name a new folder by --output"),
    ],
)
def test_what_cannot_be_merged_is_refused(of_run, asked, said, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in said_by(ShardwiseError, api.merge, _run(Path(), **of_run).root, **asked)


def test_chat_refuses_what_is_not_there(tmp_path) -> None:
    must_refuse(ShardwiseError, "holds no run; expected the output_dir of a training run", api.chat, tmp_path)
    with pytest.raises(ShardwiseError, match=r"merged does not exist; `shardwise merge .*run` writes it"):
        api.chat(_run(tmp_path).root, part="merged")
    for prompt in ("", " "):
        with pytest.raises(InputError, match="the prompt is empty; write a question, or leave --prompt out"):
            api.chat(tmp_path / "run", prompt=prompt)
    for name in ("prompt", "system"):
        with pytest.raises(InputError, match=rf"--{name} is not UTF-8 text; write it as UTF-8"):
            api.chat(tmp_path / "run", **{name: "r\udcffd"})
    with pytest.raises(InputError, match="--top-p is set, which has no effect at --temperature 0; write a higher one"):
        api.chat(tmp_path / "run", top_p=0.9)
    run = RunDirectory(tmp_path / "run")
    write_json(run.merged / "manifest.json", {"adapter": {"files": {}}})
    with pytest.raises(ShardwiseError, match=r"merged holds another adapter than .*final, .*merge .*run` again"):
        api.chat(run.root, part="merged")
    must_refuse(BadParameter, "--base and --merged exclude each other", chat, tmp_path, base=True, merged=True)


def test_a_merge_is_told_with_what_to_do_next(tmp_path) -> None:
    made = {"folder": "run/merged", "base": "/b", "onto": "unquantised", "dtype": "bfloat16", "computed_in": "float32"}
    figures = {"rows": "8 evaluation rows", "largest_logit": 13.7, "difference": 0.72, "exact_difference": 9e-6}
    lines = merged_lines({**made, **figures}, Path("run"))
    assert lines[0] == "merged the adapter run/final into its base /b, which is not in 4 bits as it was in training"
    assert lines[1] == "  model    run/merged, bfloat16"
    assert "7.2e-01, and 9.0e-06 on one base without rounding; of 8 evaluation rows, computed in float32" in lines[2]
    assert lines[3] == "ask it: shardwise chat run --merged"
    assert [line.split()[0] for line in lines[5:]] == ["vllm", "python", "hf", "before", "README.md", "may"]
    again = {"dtype_before": "float32", "kept": ["LICENSE", "README.md"], "float64_difference": 2e-15}
    lines = merged_lines({**made, **figures, **again}, Path("run"))
    assert lines[1] == "  model    run/merged, bfloat16; it was float32 before"
    assert lines[2] == "  kept     LICENSE, README.md: not written by a merge"
    assert lines[4].endswith("updates are large, and float32 rounds so much; in float64 it is 2.0e-15")


def test_a_merge_does_not_replace_weights_that_a_person_changed(tmp_path) -> None:
    run = _run(tmp_path)
    write_json(run.merged / "config.json", {"mine": 1})
    record = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    write_json(run.merged / "manifest.json", {"files": {"config.json": record}, "merged": {}})
    assert said_by(ShardwiseError, api.merge, run.root) == (
        f"{run.merged}/config.json is not what the last merge wrote, and another would replace it; name a new folder "
        "by --output, or remove it"
    )


def _adapter(folder: Path, **said: object) -> RunDirectory:
    """A run whose adapter says more than its name of the base, all of it recorded."""
    run = _run(folder)
    path = run.final / "adapter_config.json"
    write_json(path, {"base_model_name_or_path": "models/base", "r": 8, **said})
    record = {"size": path.stat().st_size, "sha256": "", "settings": settings_of(path)}
    write_json(run.final / "manifest.json", {"files": {path.name: record}, "base": "models/base"})
    return run


def test_a_base_named_by_hand_is_no_damage_and_another_setting_is(tmp_path) -> None:
    run = _adapter(tmp_path)
    assert naming_a_folder(run.final) == ["adapter_config.json"]
    path = run.final / "adapter_config.json"
    path.write_text(json.dumps({"r": 8, "base_model_name_or_path": "org/name", "revision": "main"}))
    assert result_fault(run.final) is None
    assert naming_a_folder(run.final) == []
    write_json(path, {"base_model_name_or_path": "org/name", "r": 16})
    assert result_fault(run.final) == "adapter_config.json says other things than were written"


def test_what_is_to_be_done_before_publishing_is_said(tmp_path) -> None:
    run = _adapter(tmp_path)
    (run.final / "README.md").write_text('---\nbase_model: "base"\n---\n')
    assert api.publishing(run.final) == [
        f"  hf upload my-name/my-model {run.final}",
        "before publishing:",
        "  adapter_config.json names the base by a folder; put its hub id there",
        "  README.md names the base by a folder; put its hub id there",
        "  README.md states no license; choose one",
        "  may the data be published? A model can be made to recite it",
    ]
    assert api.usage(run)[0].startswith("  vllm serve m --enable-lora --lora-modules mine=")


@pytest.mark.parametrize("program", ["chat", "merge"])
def test_ctrl_c_while_torch_is_imported_says_nothing(program, tmp_path):
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment, command = {**os.environ, "PYTHONPATH": str(tmp_path)}, f"shardwise.programs.{program}"
    done = subprocess.run([sys.executable, "-m", command, "{}"], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-2, b"")
