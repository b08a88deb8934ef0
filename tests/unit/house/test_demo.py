"""The demo's rows and job files are what they claim to be."""

from shardwise.spec.job.file import read_job
from tests.unit.house.tree import ROOT, run_python

DEMO = ROOT / "examples/demo"
ROWS = ("basics.jsonl", "yaml_answers.jsonl", "preferences.jsonl")


def test_the_rows_are_what_the_generator_writes(tmp_path):
    written = run_python("examples/demo/make_data.py", tmp_path)
    assert written.returncode == 0, written.stderr
    for name in ROWS:
        assert (tmp_path / name).read_bytes() == (DEMO / "data" / name).read_bytes()


def test_the_job_files_are_valid_and_the_second_starts_from_the_result_of_the_first():
    jobs = [read_job(DEMO / name) for name in ("pretrain.yaml", "lora.yaml", "qlora.yaml", "prefer.yaml")]
    assert all((ROOT / source.path).is_file() for job in jobs for source in job.data.path)
    assert jobs[1].model == jobs[2].model == jobs[3].model == f"{jobs[0].output_dir}/final"
