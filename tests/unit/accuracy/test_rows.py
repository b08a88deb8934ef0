"""What was measured, by kind and per GPU."""

import pytest

from accuracy.rows import memory_figures, read, tokens_per_second
from shardwise.units import GIB, MIB
from tests.unit.accuracy.published import row


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("allocated_peak (HF Trainer torch.cuda.max_memory_allocated)", "allocated"),
        ('active_peak ("Peak Memory Active (GiB)")', "active"),
        ("reserved_peak (torchtitan metrics max_reserved)", "reserved"),
        ("NVML used memory (whole GPU, incl. CUDA context)", "device"),
        ('not stated (GPU memory "G")', "unstated"),
    ],
)
def test_kinds_of_figures_are_kept_apart(words, kind):
    assert memory_figures(row(mem_kind=words)) == {kind: 20 * GIB}


@pytest.mark.parametrize("words", ["allocated right after forward (torch)", "capacity: max batch size that fits 24 GB"])
def test_what_is_no_peak_of_a_step_is_not_compared(words):
    assert memory_figures(row(mem_kind=words)) == {}


def test_a_total_over_gpus_is_divided_by_their_number():
    found = memory_figures(row(mem_scope="TOTAL over 4 GPUs (exceeds one card)"))
    assert found == {"allocated": 5 * GIB}


def test_what_the_driver_saw_is_a_second_figure_beside_the_allocators():
    assert memory_figures(row(nvidia_smi_mib="25000")) == {"allocated": 20 * GIB, "device": 25000 * MIB}


def test_a_figure_whose_unit_is_not_certain_has_no_certain_kind():
    assert memory_figures(row(peak_mem_gib_derived="", peak_mem_gb="31.5")) == {"unstated": 31.5 * GIB}


def test_a_run_that_went_out_of_memory_has_no_peak():
    assert memory_figures(row(outcome="OOM", nvidia_smi_mib="81000")) == {}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, 18000.0),
        ({"tokens_per_s_per_gpu": "", "tokens_per_s_total": "7000"}, 7000.0),
        ({"tokens_per_s_per_gpu": "", "step_time_s": "2.0"}, 2048.0),
        ({"tokens_per_s_per_gpu": "", "samples_per_s_total": "12"}, 12288.0),
        ({"tokens_per_s_per_gpu": "", "samples_per_s_total": "3"}, None),
        (
            {
                "tokens_per_s_per_gpu": "",
                "total_time_as_printed": "512 s",
                "notes": "Time for 1,024 samples total",
            },
            2048.0,
        ),
        ({"tokens_per_s_per_gpu": ""}, None),
    ],
)
def test_throughput_is_tokens_per_second_over_all_gpus_however_it_was_printed(cells, expected):
    assert tokens_per_second(row(**cells), num_gpus=2, step_tokens=4096, length=1024) == expected


def test_a_table_is_read_with_its_columns(tmp_path):
    (tmp_path / "memory.csv").write_text('row_id,notes\none-1,"a, b"\n', encoding="utf-8")
    (found,) = read(tmp_path / "memory.csv")
    assert (found.row_id, found.text("notes"), found.number("notes"), found.text("absent")) == (
        "one-1",
        "a, b",
        None,
        "",
    )
