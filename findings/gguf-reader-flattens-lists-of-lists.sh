#!/usr/bin/env bash
# gguf's reader gives a list of lists as one flat list.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0
cd "$folder"
echo '{"type": "module"}' > package.json
npm install --silent --no-audit --no-fund --save-exact @huggingface/gguf@0.4.6 > npm.log
cat > read.mjs <<'JAVASCRIPT'
import { gguf } from "@huggingface/gguf";

const { metadata } = await gguf("rows.gguf", { allowLocalFile: true });
console.log(JSON.stringify(Object.entries(metadata).filter(([name]) => name.startsWith("own."))));
JAVASCRIPT
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""gguf 0.19.0: metadata of GGUF may hold lists of lists, and `GGUFWriter.add_array` writes them as such. `GGUFReader` finds all numbers of all lists
and `contents()` returns them as one list: how long each was, and so where each ends, is lost, and [[1, 2], [3]] reads as [1], [2, 3] and
[1, 2, 3] do. @huggingface/gguf 0.4.6 reads what was written from the same file.
"""

import json
import subprocess
from importlib.metadata import version

import gguf

values = {"own.numbers": [[1, 2], [3]], "own.others": [[1], [2, 3]], "own.texts": [["a", "b"], ["c"]], "own.flat": [1, 2, 3]}
writer = gguf.GGUFWriter("rows.gguf", "llama")
for name, value in values.items():
    writer.add_array(name, value)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.close()
others = dict(json.loads(subprocess.run(["node", "read.mjs"], check=True, capture_output=True, text=True).stdout))
fields = gguf.GGUFReader("rows.gguf").fields
print(f"gguf {version('gguf')}, written, read, read by @huggingface/gguf 0.4.6:")
for name, value in values.items():
    found = fields[name].contents()
    print(f"  {name}: {value}, {found}, {others[name]}")
    assert others[name] == value
    assert found == (value if name == "own.flat" else [number for part in value for number in part])
PYTHON
