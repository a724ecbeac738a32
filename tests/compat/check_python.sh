#!/usr/bin/env bash
# What needs no torch works on this Python: tests/compat/check_python.sh PYTHON [WORK_FOLDER]
# Builds our wheels into a venv of its own, first the core alone, then all five, and checks both.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
base=${1:?usage: tests/compat/check_python.sh PYTHON [WORK_FOLDER]}
tag=$("$base" -c 'import sys; print("py%d%d" % sys.version_info[:2])')
work=${2:-build/compat-$tag}
python=$(realpath -m "$work")/bin/python

echo "== $("$base" --version): public packages, without torch"
test -x "$python" || "$base" -m venv "$work"
"$python" -m pip install -q -r <("$python" tests/compat/torch_free.py requirements requirements.txt requirements-dev.txt)
"$python" -m pip uninstall -q -y tokenspeed tokenspeed-sdk tokenspeed-reference \
  tokenspeed-nvidia tokenspeed-amd 2>/dev/null

install() { "$python" -m pip install -q --no-index --no-deps --no-build-isolation "$@"; }

# expect CODE TEXT COMMAND...: `tokenspeed COMMAND` ends with CODE, says TEXT, and without traceback.
expect() {
  local code=$1 text=$2 output status=0
  shift 2
  output=$(cd / && "$python" -m tokenspeed "$@" 2>&1 </dev/null) || status=$?
  if [ "$status" != "$code" ] || [[ "$output" != *"$text"* ]] || [[ "$output" == *Traceback* ]]; then
    echo "FAILED tokenspeed $*: exit $status, wanted $code and: $text"
    echo "$output"
    exit 1
  fi
  echo "ok   tokenspeed $* -> $code, \"$text\""
}

echo "== the core's wheel alone"
install "$root"
expect 0 "COMMAND" --help
expect 0 "not installed" plugins list
expect 0 "tokenspeed-reference" plugins info reference
expect 0 "LlamaForCausalLM" models list
expect 4 "install the wheel tokenspeed-reference" serve
expect 4 "install the wheel tokenspeed-nvidia" serve --plugins nvidia
expect 4 "install the wheel tokenspeed-reference" generate hello
expect 1 "install the wheel tokenspeed-reference" bench

echo "== all five wheels, no torch"
install ./sdk ./plugins_reference ./plugins_nvidia ./plugins_amd
expect 0 "COMMAND" --help
expect 1 "needs torch >=2.11, found none" plugins list
expect 0 "LlamaForCausalLM" models list
expect 4 "needs torch >=2.11, found none" serve
expect 4 "needs torch >=2.11, found none" generate hello
"$python" tests/compat/torch_free.py imports

echo "== tests that need no torch (transformers reads a GGUF with torch only)"
gguf=tests/core/tokenizer/test_gguf_tokenizer.py
OMP_NUM_THREADS=1 "$python" -m pytest -q -p no:cacheprovider \
  --deselect $gguf::test_byte_level_ids_equal_transformers \
  --deselect $gguf::test_spm_ids_equal_transformers \
  tests/core/scheduler tests/core/config tests/core/checkpoint tests/core/tokenizer \
  tests/core/plugins/test_{discovery,manifest,probe,settings,versions}.py \
  tests/core/kernels/test_selection.py tests/core/kv/test_layout.py tests/core/test_version.py \
  tests/plugins_nvidia tests/plugins_amd/test_probe.py tests/architecture/test_import_arrows.py
echo "== passed on $tag"
