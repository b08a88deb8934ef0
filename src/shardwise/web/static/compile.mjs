// Run by Node.js where a folder is made: compiles the archive's modules and templates with the Python that will run them, which then
// starts a second earlier. Arguments: where Pyodide is, and the archive.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [place, archive] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(place + "/pyodide.mjs").href);
const python = await loadPyodide();
python.FS.writeFile("/given.zip", new Uint8Array(readFileSync(archive)));
python.runPython(`
import os, py_compile, sys, zipfile
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
with zipfile.ZipFile("/given.zip") as given, zipfile.ZipFile("/made.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
    for one in given.infolist():
        content = given.read(one)
        if one.filename.endswith(".py"):
            with open("/one.py", "wb") as file:
                file.write(content)
            py_compile.compile("/one.py", cfile="/one.pyc", dfile=one.filename, doraise=True, invalidation_mode=mode)
            with open("/one.pyc", "rb") as file:
                content = file.read()
            one = zipfile.ZipInfo(one.filename + "c")
            one.compress_type = zipfile.ZIP_DEFLATED
        made.writestr(one, content)
# Jinja's files name the place of a template, which is that of the worker.
os.makedirs("/packages/templates")
with zipfile.ZipFile("/made.zip") as made:
    made.extractall("/packages")
sys.path.insert(0, "/packages")
from shardwise.web.inside import take_templates
take_templates("/packages/templates", compiling=True)
with zipfile.ZipFile("/made.zip", "a", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
    for name in sorted(os.listdir("/packages/templates")):
        one = zipfile.ZipInfo("templates/" + name)
        one.compress_type = zipfile.ZIP_DEFLATED
        with open("/packages/templates/" + name, "rb") as file:
            made.writestr(one, file.read())
`);
writeFileSync(archive, python.FS.readFile("/made.zip"));
