"""A run that is out of memory ends with the sentence of the rank that was, whatever its peers come to."""

import os
import re

import pytest

from shardwise import api
from shardwise.errors import WorkerFailedError
from tests.warm.shim import KIND

#: A worker whose second rank gets no memory in its second step, later than its peer could fail of it.
SHORT = """
import os
import torch
from shardwise.programs import worker
from shardwise.train.watching.signals import end_process
from shardwise.train.watching.journal import Journal

begins = Journal.stepping

def stepping(journal):
    begins(journal)
    if journal.rank == 1 and journal.step == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

Journal.stepping = stepping
if __name__ == "__main__":
    end_process(worker.main())
"""

SENTENCE = re.compile(
    r"rank 1 failed while training \(step 2\): out of memory: planned [0-9.]+ [KM]iB at the peak \([a-z0-9 ]+\) of "
    r"[0-9.]+ GiB for each process, measured [0-9.]+ [MG]iB resident when 2\.0 GiB more were asked for, on a machine "
    r"with [0-9.]+ GiB of which others hold [0-9.]+ [MG]iB; no part that can be measured is larger than planned; "
    r"next: --set train\.micro_batch_size=2 \(loop\.py:\d+\)\nits log: .*rank_1\.log"
)


def test_out_of_memory_is_said_as_planned_beside_measured_with_the_next_setting(
    make_job, tmp_path, monkeypatch
) -> None:
    (tmp_path / "short.py").write_text(SHORT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(KIND, "torch")
    train = {"max_steps": 3, "warmup_steps": 0, "micro_batch_size": 4}
    job = make_job(train=train, hardware="cpu:2", layout="ddp", output_dir=str(tmp_path / "run"))
    with pytest.raises(WorkerFailedError) as caught:
        api.train(job, programs=api.Programs(worker="short"))
    assert SENTENCE.fullmatch(str(caught.value)), str(caught.value)
