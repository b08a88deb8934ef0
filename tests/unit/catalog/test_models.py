"""What a job's `model:` may name, measured models too; what is said of adapters elsewhere."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tools.profiles import unlisted

from shardwise.api import plan
from shardwise.api.plans import shapes
from shardwise.catalog.engines import KINDS, LLAMA_CPP, VLLM, adapter_lines, model_lines, rank_of
from shardwise.catalog.families.known import FAMILIES
from shardwise.catalog.hub import is_hub_id
from shardwise.catalog.models import find_model, known_models, measured, read_model
from shardwise.errors import ModelError
from tests.dist.worlds import said_by
from tests.refusals import must_refuse

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 99}
PAGE = Path(__file__).parents[3] / "docs/howto/adapter.md"
STACKED = {"target_parameters": ["experts.gate_up_proj"], "rank_pattern": {"gate_up_proj": 16}}
MERGE = "  merge first: shardwise merge run    # "


@pytest.mark.parametrize("name", known_models())
def test_a_catalogue_entry_counts_what_its_model_card_says(name):
    model, counted = known_models()[name], find_model(name, offline=True).num_parameters
    assert (model.num_parameters is None) != (model.nominal_billions is None)
    if model.num_parameters is None:
        assert counted == pytest.approx(model.nominal_billions * 1e9, rel=0.03)
    else:
        assert counted == model.num_parameters
    assert model.source.startswith("https://huggingface.co/")


def test_the_catalogue_has_the_well_known_models():
    assert len(known_models()) >= 180
    # Families proven by building them, of which no config.json of the hub is known to us.
    unseen = {"ernie4_5", "hunyuan_v1_dense", "ministral"}
    shapes = [model.shape for model in known_models().values()]
    assert set(FAMILIES) - unseen == {shape.family for shape in shapes if not shape.counted}
    assert find_model("meta-llama/Llama-3.1-8B", offline=True) == find_model("llama-3.1-8b", offline=True)
    assert {"tinyllama-1.1b", "llama-3.1-405b", "codellama-34b", "qwen3-8b", "deepseek-v3"} <= set(known_models())


def test_a_model_is_known_by_its_folder_its_config_or_its_newest_snapshot(tmp_path, monkeypatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert find_model(str(tmp_path)) == find_model(str(tmp_path / "config.json")) == read_model(str(tmp_path))
    folder = tmp_path / "hub" / "models--org--small" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert find_model("org/small", offline=True).vocab_size == 99


def test_the_folder_of_an_adapter_names_its_base_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "some-org/base", "peft_type": "LORA"}')
    (tmp_path / "adapter_model.safetensors").touch()
    for _ in range(2):  # alone, and with the base model's configuration beside it
        said = "holds an adapter, not a model; name its base model, some-org/base, or the folder that `shardwise merge`"
        assert said_by(ModelError, find_model, str(tmp_path)).startswith(f"{tmp_path}: {said}")
        (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    must_refuse(ModelError, r"config\.json", find_model, str(tmp_path))


def test_an_unknown_name_is_a_sentence_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    must_refuse(ModelError, r"llama-3\.1-8b", find_model, "llama-3.1-8", offline=True)
    must_refuse(ModelError, "no known model", find_model, "no such model!", offline=True)
    assert not any(is_hub_id(name) for name in ("../etc/passwd", "a/b/c", "", "a b", "/tmp", "-x/y"))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers.get("Authorization")))
            found = self.path.endswith("/org/there/resolve/main/config.json")
            moved = self.path == "/org/moved/resolve/main/config.json"
            self.send_response(307 if moved else 200 if found else 401)
            if moved:  # to another host, by its name
                port = self.server.server_port
                self.send_header("Location", f"http://localhost:{port}/elsewhere/org/there/resolve/main/config.json")
            self.end_headers()
            self.wfile.write(json.dumps(CONFIG).encode() if found else b"")

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    for variable in ("HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_hub_id_is_asked_from_the_endpoint_with_the_token_which_no_other_host_gets(hub):
    assert find_model("org/there").vocab_size == 99
    assert hub == [("/org/there/resolve/main/config.json", "Bearer secret")]
    assert find_model("org/moved").vocab_size == 99
    assert [token for _, token in hub[1:]] == ["Bearer secret", None]


def stored(path, text="stored\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_the_token_of_a_login_is_found_where_huggingface_hub_finds_it(hub, tmp_path, monkeypatch):
    def sent():
        hub.clear()
        find_model("org/there")
        return hub[0][1]

    stored(tmp_path / "token")
    assert sent() == "Bearer secret"  # the environment comes first
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "older")
    assert sent() == "Bearer older"
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN")
    assert sent() == "Bearer stored"  # $HF_HOME/token, without its line break
    monkeypatch.setenv("HF_TOKEN_PATH", stored(tmp_path / "elsewhere" / "key", "named"))
    assert sent() == "Bearer named"
    monkeypatch.delenv("HF_TOKEN_PATH")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    stored(tmp_path / "xdg" / "huggingface" / "token", "of xdg")
    assert sent() == "Bearer of xdg"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert sent() is None
    stored(tmp_path / "home" / ".cache" / "huggingface" / "token", "of home")
    assert sent() == "Bearer of home"
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert sent() is None


def test_an_endpoint_says_who_may_read_or_that_it_does_not_answer(hub, monkeypatch) -> None:
    must_refuse(ModelError, "run `hf auth login`, or set HF_TOKEN", find_model, "org/gated")
    monkeypatch.setenv("HF_TOKEN", "sec\nret")
    assert "ret" not in said_by(ModelError, find_model, "org/gated").replace("HF_TOKEN", "")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    must_refuse(ModelError, "cannot be reached", find_model, "org/there")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    must_refuse(ModelError, "HF_HUB_OFFLINE", find_model, "org/there")


def _said(config: dict[str, Any], **options: Any) -> list[str]:
    given = {"final": "run/final", "base": "org/base", "merge": "shardwise merge run", "dtype": "bfloat16", "stops": []}
    return adapter_lines({"r": 8, **config}, **{**given, **options})


@pytest.mark.parametrize(
    ("config", "vllm", "llama_cpp"),
    [
        ({}, " --max-lora-rank 8    # vLLM 0.32", " --outfile mine.gguf    # llama.cpp"),
        ({"r": 24}, " --max-lora-rank 32    #", "--outfile mine.gguf"),
        ({"r": 257}, " --max-lora-rank 320    #", "--outfile mine.gguf"),
        ({"r": 600}, MERGE + "vLLM 0.32 takes ranks up to 512", "--outfile mine.gguf"),
        ({"use_rslora": True}, " --max-lora-rank 8", MERGE + "llama.cpp of November 2026 takes rsLoRA sqrt(r) times"),
        ({"use_dora": True}, MERGE + "vLLM 0.32 refuses DoRA", "refuses DoRA"),
        ({"modules_to_save": ["lm_head"]}, MERGE + "vLLM 0.32 refuses modules_to_save", "refuses modules_to_save"),
        (STACKED, " --max-lora-rank 16 --enable-mixed-moe-lora-format    #", "refuses adapters of stacked experts"),
    ],
)
def test_the_lines_for_an_adapter_are_finished_or_say_to_merge_first(config, vllm, llama_cpp) -> None:
    first, second = _said(config)
    assert vllm in first and llama_cpp in second
    assert first.startswith((MERGE, "  vllm serve org/base --enable-lora --lora-modules mine=run/final"))


def test_the_lines_say_type_stop_token_and_the_largest_rank() -> None:
    served, _, *stop = _said({}, dtype="float32", stops=["<|im_end|>"])
    assert served.split("    #")[0].endswith(" --dtype bfloat16 --generation-config run/final")
    assert stop[0].startswith("  trained answers end in <|im_end|>, at which the base does not stop: `shardwise chat`,")
    assert model_lines("a b", dtype="float32", stops=["</s>"]) == [
        "  vllm serve 'a b' --dtype float32    # vLLM 0.32",
        f"  python llama.cpp/convert_hf_to_gguf.py 'a b' --outfile model.gguf --outtype f32    # {LLAMA_CPP}",
        "  answers end in </s>: generation_config.json stops at it, as the base did not",
    ]
    assert "--dtype" not in model_lines("m", dtype="bfloat16", stops=[])[0]
    assert rank_of({"r": 8, "rank_pattern": {"a": 16, "b": 4}}) == 16


def test_the_page_has_the_same_table() -> None:
    def cell(reason: str | None, options: str = "") -> str:
        return f"merge first: {reason}" if reason else f"adapter, with `{options}`" if options else "adapter"

    rows = [f"| {kind.name} | {cell(kind.vllm, kind.options)} | {cell(kind.llama_cpp)} |" for kind in KINDS]
    table = "\n".join([f"| adapter | {VLLM} | {LLAMA_CPP} |", "|---|---|---|", *rows])
    assert f"\n\n{table}\n\n" in PAGE.read_text(encoding="utf-8")


def test_every_name_without_a_row_was_measured() -> None:
    assert len(unlisted()) >= 20
    assert [name for name, known in unlisted().items() if measured(known.config) is None] == []


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("rows", ["max_length=512", "max_length=8192"])
def test_a_name_is_planned_without_a_build(method, rows, monkeypatch) -> None:
    monkeypatch.setattr(shapes, "built_shape", None)
    monkeypatch.setattr(shapes, "block_profiles", None)
    made = plan(overrides=["model=gemma-4-31b", "hardware=8x H100-SXM", f"method={method}", f"data.{rows}"])
    assert made.best is not None
    assert "what its blocks keep was measured in PyTorch's own code" in made.best.reasons[-1]


def test_what_was_not_measured_so_is_measured(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(shapes, "block_profiles", lambda question: asked.append(question) or "not here")
    keys = ["model=qwen3.5-0.8b", "hardware=1x H100-SXM", "method=lora"]
    plan(overrides=keys)
    assert not asked
    plan(overrides=[*keys, "lora.r=3"])
    assert asked
    assert known_models()["qwen3.5-0.8b"].config == asked[0]["config"]
