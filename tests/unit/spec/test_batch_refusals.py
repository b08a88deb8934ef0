"""What would give a row another result for the rows beside it is refused before anything is loaded."""

from dataclasses import replace

import pytest

from shardwise.catalog.config import shape_from_data
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.support import impossibilities, not_trained

SINGLE = Execution(layout=Layout(), micro_batch_size=1, gradient_accumulation_steps=1)


def said(config, **data):
    model = shape_from_data(config, file="config.json")
    return not_trained(Job.model_validate({"model": "m", "data": data}), SINGLE, model=model)


@pytest.mark.parametrize("family", ["bloom", "falcon", "mpt", "opt"])
def test_packing_is_refused_where_a_model_s_code_cannot_tell_documents_apart(family):
    (sentence,) = said({"model_type": family}, packing=True)
    assert sentence.startswith(f"packing is not trained for {family}, ")
    assert said({"model_type": family}, packing=False) == said({"model_type": "llama"}, packing=True) == []


@pytest.mark.parametrize(
    ("config", "steady"),
    [
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}}, 4096),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}}, 8192),
    ],
)
def test_rotary_positions_that_follow_the_longest_sequence_are_trained_up_to_where_they_do_not(config, steady):
    config = {"model_type": "llama", "max_position_embeddings": 8192, **config}
    assert said(config, max_length=steady) == []
    (sentence,) = said(config, max_length=steady + 1)
    assert sentence.startswith(f"max_length {steady + 1} is not trained: beyond {steady} tokens ")
    assert sentence.endswith(f"use max_length: {steady} or less")


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn"])
def test_rotary_positions_that_are_the_same_for_every_batch_are_trained_at_any_length(kind):
    config = {"model_type": "llama", "rope_scaling": {"rope_type": kind, "factor": 8.0}}
    assert said({**config, "max_position_embeddings": 8192}, max_length=100_000) == []


@pytest.mark.parametrize(("tp", "length", "mended"), [(4, 62, None), (3, 64, 63), (3, 63, None), (5, 64, 60)])
def test_rows_that_a_layout_makes_longer_than_positions_are_steady_for_are_refused(tp, length, mended):
    config = {"model_type": "llama", "max_position_embeddings": 64, "num_attention_heads": 60, "hidden_size": 960}
    config["num_key_value_heads"] = 60
    config["rope_scaling"] = {"rope_type": "dynamic", "factor": 2.0}
    model = shape_from_data(config, file="config.json")
    job = Job.model_validate({"model": "m", "data": {"path": "rows", "max_length": length}})
    execution = Execution(layout=Layout(tp=tp), micro_batch_size=1, gradient_accumulation_steps=1)
    found = impossibilities(job, execution, model=model)
    if mended is None:
        assert found == []
    else:
        (sentence,) = found
        assert sentence.startswith(f"tp rounds rows up to a multiple of {tp}, those of max_length {length} to ")
        assert sentence.endswith(f"use max_length: {mended} or less, or another layout")
    single = replace(execution, layout=Layout())
    assert impossibilities(job, single, model=model) == []
