"""What was measured, by kind and per GPU."""

import pytest

from accuracy.rows import memory_figures, tokens_per_second
from shardwise.units import GIB, MIB
from tests.unit.accuracy.published import row

ALLOCATED = "allocated_peak (HF Trainer torch.cuda.max_memory_allocated)"


@pytest.mark.parametrize(
    ("cells", "figures"),
    [
        ({"mem_kind": ALLOCATED}, {"allocated": 20 * GIB}),
        ({"mem_kind": 'active_peak ("Peak Memory Active (GiB)")'}, {"active": 20 * GIB}),
        ({"mem_kind": "reserved_peak (torchtitan metrics max_reserved)"}, {"reserved": 20 * GIB}),
        ({"mem_kind": "NVML used memory (whole GPU, incl. CUDA context)"}, {"device": 20 * GIB}),
        ({"mem_kind": 'not stated (GPU memory "G")'}, {"unstated": 20 * GIB}),
        ({"mem_kind": "allocated right after forward (torch)"}, {}),
        ({"mem_kind": "capacity: max batch size that fits 24 GB"}, {}),
        ({"mem_scope": "TOTAL over 4 GPUs (exceeds one card)"}, {"allocated": 5 * GIB}),
        ({"nvidia_smi_mib": "25000"}, {"allocated": 20 * GIB, "device": 25000 * MIB}),
        ({"peak_mem_gib_derived": "", "peak_mem_gb": "31.5"}, {"unstated": 31.5 * GIB}),
        ({"outcome": "OOM", "nvidia_smi_mib": "81000"}, {}),
    ],
)
def test_figures_are_kept_apart_by_kind_and_are_those_of_one_gpu(cells, figures):
    assert memory_figures(row(**cells)) == figures


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, 18000.0),
        ({"tokens_per_s_per_gpu": "", "tokens_per_s_total": "7000"}, 7000.0),
        ({"tokens_per_s_per_gpu": "", "step_time_s": "2.0"}, 2048.0),
        ({"tokens_per_s_per_gpu": "", "samples_per_s_total": "12"}, 12288.0),
        ({"tokens_per_s_per_gpu": "", "samples_per_s_total": "3"}, None),
        ({"tokens_per_s_per_gpu": "", "total_time_as_printed": "512 s", "notes": "Time for 1,024 samples total"}, 2048),
        ({"tokens_per_s_per_gpu": ""}, None),
    ],
)
def test_throughput_is_tokens_per_second_over_all_gpus_however_it_was_printed(cells, expected):
    assert tokens_per_second(row(**cells), num_gpus=2, step_tokens=4096, length=1024) == expected
