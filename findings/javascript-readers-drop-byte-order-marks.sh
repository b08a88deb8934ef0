#!/usr/bin/env bash
# Apache Arrow, hyparquet and @huggingface/gguf drop a byte order mark at the start of any text, and with it tell no texts apart.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1 gguf==0.19.0
cd "$folder"
echo '{"type": "module"}' > package.json
npm install --silent --no-audit --no-fund --save-exact apache-arrow@21.2.0 hyparquet@1.33.0 @huggingface/gguf@0.4.6 @dsnp/parquetjs@1.8.8 > npm.log
cat > read.mjs <<'JAVASCRIPT'
import { readFileSync } from "fs";
import parquet from "@dsnp/parquetjs";
import { gguf } from "@huggingface/gguf";
import { tableFromIPC } from "apache-arrow";
import { asyncBufferFromFile, parquetReadObjects } from "hyparquet";

const cursor = (await parquet.ParquetReader.openFile("rows.parquet")).getCursor();
const rows = [];
for (let row; (row = await cursor.next()); ) rows.push(row.text);
const found = {
  "apache-arrow": [...tableFromIPC(readFileSync("rows.arrow")).getChild("text")],
  hyparquet: (await parquetReadObjects({ file: await asyncBufferFromFile("rows.parquet") })).map((row) => row.text),
  "@huggingface/gguf": (await gguf("rows.gguf", { allowLocalFile: true })).metadata["tokenizer.ggml.tokens"],
  "@dsnp/parquetjs": rows,
};
console.log(JSON.stringify(found));
JAVASCRIPT
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""apache-arrow 21.2.0, hyparquet 1.33.0 and @huggingface/gguf 0.4.6 turn each text of a column or of a list into a string by JavaScript's TextDecoder,
which takes U+FEFF at the start for a mark of the encoding and leaves it out. In a vocabulary, which has tokens with it, two entries become
one, and texts lose a character that their hash, their offsets and their tokens count. Inside a text it stays. Arrow, Parquet and
GGUF have no such marks: Python's readers and @dsnp/parquetjs 1.8.8 give what was written.
"""

import json
import subprocess

import gguf
import pyarrow as pa
import pyarrow.parquet as pq

texts = ["\ufeffusing", "using", "\ufeff\ufeff", "a\ufeffb", "\ufeff"]
table = pa.table({"text": texts})
pq.write_table(table, "rows.parquet", compression="none")
with pa.OSFile("rows.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
    writer.write_table(table)
writer = gguf.GGUFWriter("rows.gguf", "llama")
writer.add_array("tokenizer.ggml.tokens", texts)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.close()
found = json.loads(subprocess.run(["node", "read.mjs"], check=True, capture_output=True, text=True).stdout)
found["pyarrow, Arrow"] = pa.ipc.open_file("rows.arrow").read_all()["text"].to_pylist()
found["pyarrow, Parquet"] = pq.read_table("rows.parquet")["text"].to_pylist()
found["gguf"] = gguf.GGUFReader("rows.gguf").fields["tokenizer.ggml.tokens"].contents()
print(f"Of {json.dumps(texts)}:")
for name, read in found.items():
    print(f"  {name}: {json.dumps(read)}")
    drops = name in ("apache-arrow", "hyparquet", "@huggingface/gguf")
    assert read == ([text.removeprefix("\ufeff") for text in texts] if drops else texts)
PYTHON
