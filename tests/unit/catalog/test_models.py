"""What a job's `model:` may name."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from shardwise.catalog.families.known import FAMILIES
from shardwise.catalog.hub import is_hub_id
from shardwise.catalog.models import find_model, known_models, read_model
from shardwise.errors import ModelError

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 99}


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
    assert len(known_models()) >= 120
    # Families proven by building them, of which no config.json of the hub is known to us.
    unseen = {"ernie4_5", "hunyuan_v1_dense", "ministral"}
    assert set(FAMILIES) - unseen == {model.shape.family for model in known_models().values()}
    assert find_model("meta-llama/Llama-3.1-8B", offline=True) == find_model("llama-3.1-8b", offline=True)
    assert {"tinyllama-1.1b", "llama-3.1-405b", "codellama-34b", "qwen3-8b", "deepseek-v3"} <= set(known_models())


def test_a_folder_and_its_config_are_the_same_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert find_model(str(tmp_path)) == find_model(str(tmp_path / "config.json")) == read_model(str(tmp_path))


def test_the_folder_of_an_adapter_names_its_base_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "some-org/base", "peft_type": "LORA"}')
    (tmp_path / "adapter_model.safetensors").touch()
    for _ in range(2):  # alone, and with the base model's configuration beside it
        with pytest.raises(ModelError) as caught:
            find_model(str(tmp_path))
        said = "holds an adapter, not a model; name its base model, some-org/base, or the folder that `shardwise merge`"
        assert str(caught.value).startswith(f"{tmp_path}: {said}")
        (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match=r"config\.json"):
        find_model(str(tmp_path))


def test_the_newest_snapshot_of_the_local_cache_is_read(tmp_path, monkeypatch):
    folder = tmp_path / "hub" / "models--org--small" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert find_model("org/small", offline=True).vocab_size == 99


def test_an_unknown_name_is_a_sentence_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=r"llama-3\.1-8b"):
        find_model("llama-3.1-8", offline=True)
    with pytest.raises(ModelError, match="no known model"):
        find_model("no such model!", offline=True)
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
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    for variable in ("HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_hub_id_is_asked_from_the_endpoint_with_the_token(hub):
    assert find_model("org/there").vocab_size == 99
    assert hub == [("/org/there/resolve/main/config.json", "Bearer secret")]


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


def test_no_other_host_gets_the_token(hub):
    assert find_model("org/moved").vocab_size == 99
    assert [token for _, token in hub] == ["Bearer secret", None]


def test_a_token_that_cannot_be_sent_is_not_printed(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "sec\nret")
    with pytest.raises(ModelError) as caught:
        find_model("org/gated")
    assert "ret" not in str(caught.value).replace("HF_TOKEN", "")


def test_a_gated_model_says_what_to_do(hub):
    with pytest.raises(ModelError, match="run `hf auth login`, or set HF_TOKEN"):
        find_model("org/gated")


def test_an_endpoint_that_does_not_answer_is_a_sentence(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match="cannot be reached"):
        find_model("org/there")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        find_model("org/there")
