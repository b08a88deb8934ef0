#!/usr/bin/env bash
# openai-harmony tells GPT-OSS that an optional or nested argument of a tool is of any type, where pydantic wrote its schema.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check openai-harmony==0.0.8 pydantic==2.14.3
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
"""openai-harmony 0.0.8 writes tools for GPT-OSS as TypeScript and knows few words of JSON schema. "anyOf", which pydantic writes for `int | None`, "$ref", which it
writes for any model or enum in another, and "const" become `any`; descriptions and fields inside are gone, and a choice of numbers is `number`. The model is not told
what to pass, and nothing is said. "type": ["integer", "null"] and nested schemas written out in place are shown as they are.
"""

from importlib.metadata import version
from typing import Literal

from openai_harmony import Conversation, DeveloperContent, HarmonyEncodingName, Message, Role, ToolDescription, load_harmony_encoding
from pydantic import BaseModel, Field


class Place(BaseModel):
    city: str = Field(description="Name of the city")


class Search(BaseModel):
    place: Place
    days: int | None = None
    grid: Literal[5, 10] = 5
    kind: Literal["rain", "wind"] = "rain"


def shown(schema):
    content = DeveloperContent.new().with_function_tools([ToolDescription.new("search", "Look up weather.", parameters=schema)])
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    conversation = Conversation.from_messages([Message.from_role_and_content(Role.DEVELOPER, content)])
    return encoding.decode(encoding.render_conversation(conversation))


schema = Search.model_json_schema()
found = shown(schema)
written = {"type": "object", "properties": {"days": {"type": ["integer", "null"]}, "place": schema["$defs"]["Place"]}, "required": ["place"]}
plain = shown(written)
for name, text in (("by pydantic", found), ("written out", plain)):
    print(f"openai-harmony {version('openai-harmony')}, a schema {name}:")
    print("\n".join("  " + line for line in text[text.index("type search") : text.index("} // namespace")].splitlines() if line))
assert "place: any," in found and "days?: any" in found and "grid?: number" in found and 'kind?: "rain" | "wind"' in found and "city" not in found
assert "days?: number | null" in plain and "city: string" in plain and "Name of the city" in plain
PYTHON
