"""The demo's rows and job files are what they claim to be."""

import json

import pytest

from shardwise.spec.job_file import read_job
from tests.unit.house.tree import ROOT, run_python

DEMO = ROOT / "examples/demo"
NUM_ROWS = {"basics.jsonl": 1000, "yaml_answers.jsonl": 300}


def read_rows(name):
    return [json.loads(line) for line in (DEMO / "data" / name).read_text(encoding="utf-8").splitlines()]


def test_the_rows_are_what_the_generator_writes(tmp_path):
    written = run_python("examples/demo/make_data.py", tmp_path)
    assert written.returncode == 0, written.stderr
    for name in NUM_ROWS:
        assert (tmp_path / name).read_bytes() == (DEMO / "data" / name).read_bytes()


@pytest.mark.parametrize("name", NUM_ROWS)
def test_there_are_enough_rows_and_no_two_alike(name):
    rows = [json.dumps(row, sort_keys=True) for row in read_rows(name)]
    assert len(rows) >= NUM_ROWS[name]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("name", ["pretrain.yaml", "lora.yaml"])
def test_the_job_files_are_valid_and_their_rows_exist(name):
    job = read_job(DEMO / name)
    assert all((ROOT / source.path).is_file() for source in job.data.path)


def test_the_second_task_starts_from_the_result_of_the_first():
    assert read_job(DEMO / "lora.yaml").model == f"{read_job(DEMO / 'pretrain.yaml').output_dir}/final"
