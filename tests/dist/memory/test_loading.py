"""Loading costs a rank little more host memory than what it keeps, however large the model is."""

import json
import multiprocessing
import shutil
import threading
import time
from pathlib import Path

import psutil
import pytest

from shardwise.catalog.hub import tokenizer_files
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory
from tests.dist.cells import composed, execution, prepare_cell
from tests.dist.worlds import run_world, toy_model


def _resident_bytes() -> int:
    """All resident memory of this process, libraries and mapped pages of weight files too."""
    return psutil.Process().memory_info().rss


def _load(run: RunDirectory, chosen: Execution) -> tuple[int, int]:
    """(highest resident memory while a rank loads, bytes of weights it keeps)."""
    highest, loaded = [_resident_bytes()], threading.Event()

    def watch() -> None:
        while not loaded.is_set():
            highest[0] = max(highest[0], _resident_bytes())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        built = composed(run, chosen)
    finally:
        loaded.set()
        watcher.join()
    return highest[0], sum(p.to_local().numel() * p.element_size() for _, p in built.model.parameters)  # type: ignore[attr-defined]


def _measure(run: RunDirectory, measured: Path, size: int) -> None:
    ranks = run_world(size, _load, run, execution(Layout(dp_shard=size), micro_batch_size=2))
    measured.write_text(json.dumps(ranks))


#: Of a large model.
SIZES = {"hidden_size": 1536, "intermediate_size": 6144, "num_attention_heads": 12, "num_key_value_heads": 12}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "layers", "size"), [("full", 11, 4), ("qlora", 5, 2)])
def test_a_rank_loads_a_large_model_in_little_over_its_shard(method, layers, size, make_job, models, tmp_path) -> None:
    folder = tmp_path / "large"
    # In a process of its own: ranks are forks of this one, and would begin with what it leaves.
    sizes = SIZES | {"vocab_size": 32_000, "num_hidden_layers": layers}
    maker = multiprocessing.get_context("fork").Process(target=toy_model, args=(folder,), kwargs=sizes)
    maker.start()
    maker.join()
    for file in tokenizer_files(models["untied"]):
        shutil.copy(file, folder)
    assert sum(file.stat().st_size for file in folder.glob("*.safetensors")) > 1.1e9
    run = prepare_cell(make_job(folder, method=method), tmp_path / "run")
    measured = tmp_path / "measured.json"
    # And they are forks of a process that has run nothing else.
    clean = multiprocessing.get_context("spawn").Process(target=_measure, args=(run, measured, size))
    clean.start()
    clean.join()
    for highest, shard in json.loads(measured.read_text()):
        print(f"{highest / 2**20:.0f} MiB at most, shard {shard / 2**20:.0f} MiB")
        # The libraries' own memory; bitsandbytes has 0.12 GB.
        assert highest <= 1.3 * shard + (0.62e9 if method == "qlora" else 0.5e9)
    shutil.rmtree(folder)
