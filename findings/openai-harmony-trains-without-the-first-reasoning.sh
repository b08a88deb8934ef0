#!/usr/bin/env bash
# What openai-harmony renders for training lacks the reasoning of the first answer: rows with one answer train none.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check openai-harmony==0.0.8
cd "$folder"
echo '{"type": "module"}' > package.json
npm install --silent --no-audit --no-fund --save-exact js-tiktoken@1.0.21 > npm.log
cat > ranks.mjs <<'JAVASCRIPT'
import { writeFileSync } from "fs";
import o200k from "js-tiktoken/ranks/o200k_base";

const lines = o200k.bpe_ranks.split("\n").filter(Boolean).map((line) => line.split(" "));
const ranks = lines.flatMap(([, first, ...tokens]) => tokens.map((token, place) => [token, Number(first) + place]));
writeFileSync("o200k_base.tiktoken", ranks.sort((a, b) => a[1] - b[1]).map((pair) => pair.join(" ") + "\n").join(""));
JAVASCRIPT
node ranks.mjs
env -u PYTHONPATH TIKTOKEN_ENCODINGS_BASE="$folder" "$folder/venv/bin/python" - <<'PYTHON'
"""openai-harmony 0.0.8, the renderer of GPT-OSS's format: `render_conversation_for_training` leaves out all "analysis" before the first "final" where the last message is one. A row of a question,
reasoning and an answer is rendered as question and answer, with reasoning about tool calls gone too, and a model that is trained on it learns to answer without. Of rows with more answers only the
first one's reasoning goes: the second's stays, also where a third follows it. Pass `RenderConversationConfig(auto_drop_analysis=False)`. The vocabulary comes from js-tiktoken here.
"""

from importlib.metadata import version

from openai_harmony import Conversation, HarmonyEncodingName, Message, RenderConversationConfig, Role, load_harmony_encoding

encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def row(answers):
    messages = []
    for number in range(1, answers + 1):
        messages.append(Message.from_role_and_content(Role.USER, f"question {number}"))
        messages.append(Message.from_role_and_content(Role.ASSISTANT, f"thought {number}").with_channel("analysis"))
        messages.append(Message.from_role_and_content(Role.ASSISTANT, f"answer {number}").with_channel("final"))
    return Conversation.from_messages(messages)


def kept(answers, **options):
    text = encoding.decode(encoding.render_conversation_for_training(row(answers), **options))
    assert all(f"answer {number}" in text for number in range(1, answers + 1))
    return [number for number in range(1, answers + 1) if f"thought {number}" in text]


print(f"openai-harmony {version('openai-harmony')}, whose reasoning is in what is rendered for training:")
for answers in (1, 2, 3):
    found, whole = kept(answers), kept(answers, config=RenderConversationConfig(auto_drop_analysis=False))
    print(f"  of {answers} answers: {found}; with auto_drop_analysis=False: {whole}")
    assert found == list(range(2, answers + 1)) and whole == list(range(1, answers + 1))
PYTHON
