#!/usr/bin/env bash
# js-tiktoken drops a byte order mark where what it decodes begins with one.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
echo '{"type": "module"}' > package.json
npm install --silent --no-audit --no-fund --save-exact js-tiktoken@1.0.21 > npm.log
cat > decode.mjs <<'JAVASCRIPT'
// js-tiktoken 1.0.21: `decode` turns bytes into text with JavaScript's TextDecoder as it is, which takes U+FEFF at the start for a mark of the
// encoding and leaves it out. So text with one does not come back from its own IDs, and what is decoded token by token, as a stream is, loses
// it at any place, and with it what tells two texts apart. The mark has IDs of its own in cl100k_base and o200k_base.
import assert from "assert";
import { getEncoding } from "js-tiktoken";

console.log("js-tiktoken 1.0.21, text, decoded at once, token by token:");
for (const name of ["cl100k_base", "o200k_base"]) {
  const encoding = getEncoding(name);
  for (const text of ["\ufeffusing", "it\n\ufeffusing", "using it"]) {
    const ids = encoding.encode(text);
    const whole = encoding.decode(ids);
    const parts = ids.map((id) => encoding.decode([id])).join("");
    console.log(`  ${name}: ${[text, whole, parts].map((value) => JSON.stringify(value).replaceAll("\ufeff", "\\ufeff")).join(", ")}`);
    assert.equal(whole, text.replace(/^\ufeff/, ""));
    assert.equal(parts, text.replaceAll("\ufeff", ""));
  }
}
JAVASCRIPT
node decode.mjs
