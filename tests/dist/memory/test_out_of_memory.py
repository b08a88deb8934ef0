"""A run that is out of memory ends with the sentence of the rank that was, not of its peers."""

import re

from shardwise import api
from shardwise.errors import WorkerFailedError
from tests.dist.worlds import said_by

#: A worker whose rank 1 gets no memory in its second step, later than rank 0 could fail of it.
SHORT = """
import torch
from shardwise.train.watching.journal import Journal

begins = Journal.stepping

def stepping(journal):
    begins(journal)
    if journal.rank == 1 and journal.step == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

Journal.stepping = stepping
"""

SENTENCE = re.compile(
    r"rank 1 failed while training \(step 2\): out of memory: planned [0-9.]+ [KM]iB at the peak \([a-z0-9 ]+\) of "
    r"[0-9.]+ GiB for each process, measured [0-9.]+ [MG]iB resident when 2\.0 GiB more were asked for, on a machine "
    r"with [0-9.]+ GiB of which others hold [0-9.]+ [MG]iB; no part that can be measured is larger than planned; "
    r"next: --set train\.micro_batch_size=2 \(loop\.py:\d+\)\nits log: .*rank_1\.log"
)


def test_out_of_memory_is_said_as_planned_beside_measured_with_the_next_setting(make_job, worker, tmp_path) -> None:
    train = {"max_steps": 3, "warmup_steps": 0, "micro_batch_size": 4}
    job = make_job(train=train, hardware="cpu:2", layout="ddp", output_dir=str(tmp_path / "run"))
    said = said_by(WorkerFailedError, api.train, job, programs=worker(SHORT))
    assert SENTENCE.fullmatch(said), said
