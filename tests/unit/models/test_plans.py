"""transformers' plans of how a model is sliced, held against what the catalogue says of its matrices."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig, GPT2Config

from shardwise.catalog.config import shape_from_data
from shardwise.errors import UnsupportedError
from shardwise.models.plans import tensor_plan
from shardwise.spec.splits import TENSOR_FAMILIES
from tests.dist.worlds import installed

WORDS = {"rows": "colwise", "columns": "rowwise"}


def config_of(family: str) -> Any:
    if family not in installed([family]):
        pytest.skip(f"the installed transformers has no {family}")
    return AutoConfig.for_model(family)


@pytest.mark.parametrize("family", TENSOR_FAMILIES)
def test_the_catalogue_slices_matrices_as_transformers_does(family: str) -> None:
    plan = tensor_plan(config_of(family))
    shape = shape_from_data({"model_type": family}, file="config.json")
    matrices = {name: style for name, style in plan.items() if style != "replicated_with_grad_allreduce"}
    assert matrices == {matrix.name: WORDS[matrix.sliced_by or ""] for matrix in shape.matrices}
    whole = {name for name, style in plan.items() if style == "replicated_with_grad_allreduce"}
    assert whole == {norm.name for norm in shape.norms if norm.name.startswith("self_attn.")}
    assert all(norm.size == shape.head_dim for norm in shape.norms if norm.name in whole)


def test_a_model_without_a_plan_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="gpt2 has no tensor parallel plan of its blocks in transformers"):
        tensor_plan(GPT2Config())


def test_a_plan_that_names_the_tied_embedding_is_that_of_the_blocks() -> None:
    config = config_of("llama")  # transformers 5.17 adds this entry when it builds a tied model
    blocks = dict(config.base_model_tp_plan)
    config.base_model_tp_plan = {**blocks, "embed_tokens": "embedding_rowwise"}
    assert tensor_plan(config) == {name.removeprefix("layers.*."): style for name, style in blocks.items()}
