#!/usr/bin/env bash
# Chat templates that litellm renders keep the line ends and indents of their tags, and escape JSON for HTML.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check litellm==1.110.2 transformers==5.24.0 jinja2==3.1.6
cd "$folder"
env -u PYTHONPATH LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""litellm 1.110.2: for models of Hugging Face that take a text, litellm renders the chat template itself. It does so by Jinja's defaults, where
transformers drops the line end behind a tag and the spaces before it, and writes JSON as it is: a template on several lines gives
a prompt with blank lines and indents that the model never met in training, and a tool's "a < b" is "a \\u003c b". A template on one
line without JSON comes out alike.
"""

from importlib.metadata import version

from litellm.litellm_core_utils.prompt_templates.factory import hf_chat_template
from transformers.utils.chat_template_utils import render_jinja_template

lines = """{% for message in messages %}
    {% if message['role'] == 'user' %}
User: {{ message['content'] }}
    {% endif %}
{% endfor %}
Assistant:"""
json = "{% for message in messages %}{{ message['content'] | tojson }}{% endfor %}"
plain = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<assistant>"
found = {"lines": "\n    \nUser: a < b\n    \n\nAssistant:", "JSON": '"a \\u003c b"', "one line": "<user>a < b<assistant>"}
messages = [{"role": "user", "content": "a < b"}]
print(f"litellm {version('litellm')}, transformers {version('transformers')}:")
for (name, expected), template in zip(found.items(), (lines, json, plain), strict=True):
    ours = hf_chat_template("owner/model", messages, chat_template=template)
    theirs = render_jinja_template([messages], chat_template=template)[0][0]
    print(f"  {name}: litellm {ours!r}, transformers {theirs!r}")
    assert ours == expected and (ours == theirs) == (name == "one line")
PYTHON
