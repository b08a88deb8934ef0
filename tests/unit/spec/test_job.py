"""The job file: every error with its line, and the keys of preferences."""

import re
from collections.abc import Iterator
from typing import Any, cast

import pytest

from shardwise.errors import JobError
from shardwise.spec.job.data import DataSpec, SourceSpec
from shardwise.spec.job.file import job_from_data, parse_job, read_job
from shardwise.spec.job.keys import Job, LayoutSpec, LoraSpec
from shardwise.spec.layout.axes import Layout
from tests.refusals import must_refuse, said_by

FULL = """\
model: meta-llama/Llama-3.1-8B
data: {path: chats.jsonl, max_length: 4096, packing: true}
method: lora
lora: {r: 16, lora_alpha: 32, target_modules: all-linear}
train:
  global_batch_size: 64
  num_train_epochs: 3
  learning_rate: 2.0e-4
hardware: 4x RTX-6000-Ada
goal: fastest
layout: auto
output_dir: runs/first
"""
LORA = "model: m\nmethod: lora\n"
OFFLOADS = "none, parameters, optimizer or all, or auto"


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(JobError) as caught:
        parse_job(text, overrides=list(overrides))
    return [str(problem) for problem in caught.value.problems]


def test_the_example_is_a_job_whose_learning_rate_follows_the_method_unless_stated(tmp_path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"\xef\xbb\xbf" + FULL.encode())  # a byte order mark is no error
    job = read_job(tmp_path / "job.yaml")
    assert job.data.path[0].path == "chats.jsonl"
    assert (job.train.num_train_epochs, job.train.learning_rate) == (3.0, 2e-4)
    assert job.adapters.r == 16
    assert job_from_data(job.to_json()) == job
    assert parse_job("model: m\ntrain: {learning_rate: 1e-4}").train.learning_rate == 1e-4
    rates = [parse_job(f"model: m\nmethod: {method}\n").train.learning_rate for method in ("full", "lora", "qlora")]
    assert rates == [2e-5, 2e-4, 2e-4]
    assert parse_job("model: m\ntrain: {learning_rate: 2.0e-4}\n").train.learning_rate == 2e-4


def test_all_errors_of_a_file_come_at_once_each_with_its_line() -> None:
    assert sorted(problems("model: m\ntrain:\n  learnin_rate: 1\n  seed: 1.5\nmethod: lore\nlayuot: ddp\n")) == [
        "job.yaml:3: unknown key 'train.learnin_rate'; did you mean 'learning_rate'?",
        "job.yaml:4: train.seed is 1.5; expected a whole number",
        "job.yaml:5: method is 'lore'; expected full, lora or qlora; did you mean 'lora'?",
        "job.yaml:6: unknown key 'layuot'; did you mean 'layout'?",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model: m\nlearning_rate: 1e-4", "job.yaml:2: unknown key 'learning_rate'; it belongs under train:"),
        ("model: m\nr: 4", "job.yaml:2: unknown key 'r'; write lora.r"),
        ("model: m\ntrain: {learning_rate: '1e-4'}", "expected a number without quotes"),
        ("model: m\ntrain: {learning_rate: .nan}", "job.yaml:2: train.learning_rate"),
        ("model: m\ntrain: {learning_rate: .inf}", "job.yaml:2: train.learning_rate"),
        ("model: m\ntrain: {global_batch_size: true}", "train.global_batch_size is True; expected a whole number"),
        ("model: m\ndata: {packing: maybe}", "data.packing is 'maybe'; expected true or false"),
        ("model: m\ndata: {max_length: 0}", "data.max_length is 0; expected at least 1"),
        ("model: m\nmodel: n", "job.yaml:2: the key 'model' stands twice (first on line 1); remove one"),
        ("method: full", "the key 'model' is missing; write a hub id or a folder"),
        ("model: ''", "job.yaml:1: model is ''"),
        ("model: m\nlora: {r: 4}", "job.yaml:2: lora: is set but method is full"),
        ("model: m\ntrain: {warmup_ratio: 0.1, warmup_steps: 4}", "warmup_ratio and warmup_steps exclude each other"),
        ("model: m\ntrain: {momentum: 0.9}", "which optimizer auto does not have; write optimizer: sgd"),
        ("model: m\ndata: {eval_path: e, eval_fraction: 0.1}", "eval_path and eval_fraction exclude each other"),
        ("model: m\nlayout: {tp: 0}", "job.yaml:2: layout.tp is 0"),
        ("model: m\nlayout: {dp_shard: 3, ep: 2}", "see different samples, and does not divide dp_shard = 3"),
        ("model: m\nlayout: {dp_replicate: 3, ep: 2}", "does not divide dp_replicate = 3"),
        ("model: m\nlayout: ddq", "did you mean 'ddp'?"),
        ("model: m\nlayout: zero3", "layout is 'zero3'; ZeRO-3 is fsdp here"),
        ("model: m\nlayout: [ddp, zero3]", "layout.1 is 'zero3'; ZeRO-3 is fsdp here"),
        ("model: m\ntrain: {bf16: true}", "unknown key 'train.bf16'; write train.precision: mixed (or bf16)"),
        ("model: m\ntrain: {fp16: true}", "unknown key 'train.fp16'; write train.precision: fp16"),
        ("model: m\ntrain: {gradient_accumulation_steps: 4}", "follows from train.global_batch_size and train.micro"),
        ("model: m\ntrain: {per_device_train_batch_size: 4}", "write train.global_batch_size (train.micro_batch_size"),
        ("model: m\ntrain: {max_seq_length: 512}", "unknown key 'train.max_seq_length'; write data.max_length"),
        ("model: m\ntrain: {epochs: 3}", "unknown key 'train.epochs'; write train.num_train_epochs"),
        ("model: m\nlr: 1e-4", "unknown key 'lr'; write train.learning_rate"),
        ("model: m\ntrain: {optim: adamw_torch}", "unknown key 'train.optim'; write train.optimizer"),
        ("model: m\ntrain: {optimizer: adamw_torch_fused}", "train.optimizer is 'adamw_torch_fused'; write adamw"),
        ("model: m\ntrain: {gradient_checkpointing: true}", "train.gradient_checkpointing is True; write full"),
        ("model: m\ntrain: {gradient_checkpointing: false}", "train.gradient_checkpointing is False; write none"),
        ("model: m\nlora_target_modules: all-linear", "write lora.target_modules"),
        ("model: m\ndataset: d", "unknown key 'dataset'; write data.path"),
        ("model: m\ntrain: {zzz: 1}", "num_train_epochs, max_steps, learning_rate, "),
        ("model: m\ntrain: 3", "job.yaml:2: train is 3; expected keys below it"),
        ("model: m\ntrain: {optimizer: adam}", "did you mean 'adamw'?"),
        ("model: m\ntrain: {optimizer: sgd, adam_beta1: 0.5}", "adam_beta1 is set, which optimizer sgd does not have"),
        ("model: m\ntrain: {optimizer: adafactor, adam_beta2: 0.9}", "adam_beta2 is set, which optimizer adafactor"),
        ("model: m\ntrain: {eval_steps: 5}", "2: train: eval_steps is set but there is nothing to evaluate on"),
        ("model: m\ndata: {path: p, num_rows: 9}\ntrain: {eval_steps: 5}", "3: train: eval_steps is set but there is"),
        ("model: m\nlayout: {dp_replicate: 2, zero_stage: 2}", "have no effect without dp_shard"),
        ("model: m\nlayout: {dp_shard: 2, schedule: gpipe}", "schedule gpipe has no effect without pp"),
        ("model: m\nlora: {target_modules: q_proj}\nmethod: lora", "job.yaml:2: lora.target_modules is 'q_proj'"),
        ('model: m\noutput_dir: "a\\0b"', "job.yaml:2: output_dir is 'a\\x00b'; expected text without"),
        ("- model", "job.yaml:1: found a list; expected keys"),
        ("", "job.yaml:1: found nothing; expected keys"),
        ("model: [", "job.yaml:1: not valid YAML"),
        ("model: m\n\tdata: x", "job.yaml:2: not valid YAML"),
        ("model: &a m\nmethod: *a", "anchors and aliases (& and *) are not read"),
        ("model: !!python/object:os.system x", "job.yaml:1: the YAML tag 'python/object:os.system' is not read"),
        ("model: m\n? [a, b]\n: c", "job.yaml:2: a key must be a plain word"),
        ("model: m\ndata: {path: [a, {path: b, wieght: 2}]}", "key 'data.path.1.wieght'; did you mean 'weight'?"),
        ("model: m\ndata: {path: [{weight: 2}]}", "the key 'data.path.0.path' is missing"),
        ("model: m\noutput_dir: ~no-one/a", "2: output_dir: ~no-one/a begins with the home of ~no-one, who is not"),
        ("model: ~no-one", "job.yaml:1: model: ~no-one begins with the home of ~no-one, who is not known here; write"),
        (f"{LORA}train: {{precision: fp8}}", "train.precision is 'fp8'; expected mixed, bf16, fp16 or fp32, or auto"),
        (f"{LORA}train: {{offload: autp}}", f"3: train.offload is 'autp'; expected {OFFLOADS}; did you mean 'auto'?"),
        (f"{LORA}train: {{micro_batch_size: 0}}", "size is 0; expected at least 1, or auto"),
        (f"{LORA}lora: {{target_modules: 5}}", "3: lora.target_modules is 5; expected all-linear, or a list"),
        ("a: " + "[" * 60 + "]" * 60, "nested deeper than 32 levels"),
        ("\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]), "aliases"),
    ],
)
def test_a_bad_job_is_answered_with_a_sentence(text: str, sentence: str) -> None:
    found = problems(text)
    assert len(found) == 1 or "aliases" in sentence
    assert found[0].startswith("job.yaml:") and sentence in found[0]


def test_every_place_may_begin_with_the_home_folder(monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    files = "data: {path: [~/a, {path: ~/b}], eval_path: ~/c, chat_template: ~/t}\n"
    job = parse_job(f"model: ~/m\n{files}objective: dpo\npreference: {{reference: ~/r}}\noutput_dir: ~/o\n")
    sources = [source.path for source in (*job.data.path, *job.data.eval_path)]
    assert [*sources, job.data.chat_template] == ["/h/a", "/h/b", "/h/c", "/h/t"]
    assert job.preference is not None
    assert (job.model, job.output_dir, job.preference.reference) == ("/h/m", "/h/o", "/h/r")


def test_overrides_replace_what_the_file_says() -> None:
    job = parse_job(FULL, overrides=["train.learning_rate=1e-5", "layout={dp_shard: 4}", "data.packing=false"])
    assert job.train.learning_rate == 1e-5 and not job.data.packing
    assert job.to_json()["layout"]["dp_shard"] == 4
    job = parse_job("model: m\nlayout: {dp_shard: 4, zero_stage: 2}")
    assert job.layout.to_layout() == Layout.from_strategy("zero2", world_size=4)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.learning_rate", "--set train.learning_rate: expected KEY=VALUE"),
        ("=3", "--set =3: expected KEY=VALUE"),
        ("train.learnin_rate=3", "--set train.learnin_rate=3: unknown key 'train.learnin_rate'"),
        ("trian.seed=3", "--set trian.seed=3: unknown key 'trian'; did you mean 'train'?"),
        ("train.seed=fast", "--set train.seed=fast: train.seed is 'fast'; expected a whole number"),
        ("model=[", "--set model=[: not valid YAML"),
    ],
)
def test_a_bad_override_is_named_as_it_was_written(override: str, sentence: str) -> None:
    assert problems(FULL, override)[0].startswith(sentence)


def test_files_that_cannot_be_read_are_named(tmp_path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"model: m\n# caf\xe9\n")
    (tmp_path / "pointer.yaml").write_text("version https://git-lfs.github.com/spec/v1\n")
    said = {"missing.yaml": "there is no such file", ".": "is a folder", "pointer.yaml": "Git LFS pointer"}
    for name, sentence in {**said, "latin.yaml": "latin.yaml:2: is not UTF-8 text"}.items():
        must_refuse(JobError, sentence, read_job, tmp_path / name)


EVERY_KEY: dict[str, Any] = {**Job(model="m").to_json(), "lora": LoraSpec().model_dump()}
EVERY_KEY |= {"data": DataSpec(path=[SourceSpec(path="rows.jsonl")]).model_dump(), "layout": LayoutSpec().model_dump()}

ODD_VALUES: list[Any] = [
    *(None, "", "x", "x\0", "x\ud800", "x" * 5000, -1, 0, 2.5, 10**40, float("nan"), True, [], [0], {}),
    *({1: 2}, {"a": []}, [[]], [None], [""], ["x\ud800"], b"x", {"path": ""}, [{"path": ""}]),
]


def _spoiled(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The mapping with one value in another's place, for every key at any depth and value."""
    for key, value in data.items():
        yield from ({**data, key: odd} for odd in ODD_VALUES)
        if isinstance(value, dict):
            yield from ({**data, key: below} for below in _spoiled(cast(dict[str, Any], value)))


def test_no_message_has_words_of_the_library_that_validates() -> None:
    theirs = re.compile(r"should|Input|[Ss]tring|a valid |[Vv]alidation|unable|something else")
    refused = 0
    for data in _spoiled(EVERY_KEY):
        try:
            job_from_data(data)
        except JobError as error:
            refused += 1
            for problem in error.problems:
                assert not theirs.search(problem.message), problem.message
    assert refused > 500


def test_defaults_are_those_of_trl_and_a_job_of_text_has_none() -> None:
    job = job_from_data({"model": "m", "objective": "dpo", "preference": {"loss_type": "ipo"}})
    assert (job.preference.beta, job.preference.loss_type, job.preference.label_smoothing) == (0.1, ["ipo"], 0.0)
    assert (job.train.learning_rate, job.train.disable_dropout, job.sides) == (1e-6, True, 2)
    kto = job_from_data({"model": "m", "objective": "kto", "method": "lora", "lora": {"lora_dropout": 0.1}})
    assert (kto.preference.loss_type, kto.train.disable_dropout, kto.sides) == (["kto"], False, 1)
    assert job_from_data(kto.to_json()) == kto
    assert not {"objective", "preference"} & job_from_data({"model": "m"}).to_json().keys()


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        ({"preference": {"beta": 0.2}}, "preference: is set but objective is sft; write objective: dpo"),
        ({"objective": "dop"}, "did you mean 'dpo'?"),
        ({"objective": "orpo", "preference": {"loss_type": "ipo"}}, "loss_type is set, which objective orpo does not"),
        ({"objective": "orpo", "preference": {"reference": "none"}}, "reference is set, which objective orpo does not"),
        ({"objective": "dpo", "preference": {"loss_type": "kto"}}, "of single rows with a label; write objective: kto"),
        ({"objective": "kto", "preference": {"loss_type": "ipo"}}, "loss_type ipo is of pairs; objective kto has kto"),
        ({"objective": "kto", "preference": {"reference": "none"}}, "kto compares with a reference; write auto"),
        ({"objective": "dpo", "preference": {"loss_type": "aot"}}, "it sorts the pairs of a micro-batch"),
        ({"objective": "dpo", "preference": {"loss_type": "simpo"}}, "write objective: simpo"),
        ({"objective": "dpo", "preference": {"loss_type": "exo_pair"}}, "exo_pair needs label_smoothing above 0"),
        ({"objective": "dpo", "preference": {"label_smoothing": 0.1}}, "losses robust and exo_pair read alone"),
        ({"objective": "dpo", "preference": {"loss_weights": [1.0, 2.0]}}, "has 2 numbers for 1 losses in loss_type"),
        ({"objective": "dpo", "preference": {"simpo_gamma": 1.0}}, "simpo_gamma is set, which objective dpo does not"),
        ({"objective": "dpo", "data": {"train_on": "all"}}, "compares all that stands behind the prompt; remove it"),
        ({"objective": "dpo", "precompute_ref_log_probs": True}, "write preference.reference: precomputed"),
    ],
)
def test_what_an_objective_does_not_read_is_refused(job: dict[str, Any], sentence: str) -> None:
    assert sentence in said_by(JobError, job_from_data, {"model": "m", **job})
