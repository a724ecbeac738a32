#!/usr/bin/env bash
# Makes .venv-control-peers: the schedulers and caches of public engines, driven without a model.
# The engines are unpacked, never installed into an environment: each is read from its own folder.
# Each is optional and left out where it does not install.
# Usage: benchmarks/control_plane/setup_peers.sh [PYTHON]
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
venv=.venv-control-peers
torch=${TORCH:-torch==2.13.0}
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT

[ -x $venv/bin/python ] || "$python" -m venv $venv
pip="$venv/bin/python -m pip"
echo "== peers: $torch, their light requirements, and three wheels (about 1.5 GB)"
$pip install -q "$torch" || exit 1
$pip install -q psutil regex cachetools requests tqdm blake3 py-cpuinfo transformers \
  huggingface_hub tokenizers safetensors protobuf pydantic orjson prometheus_client pillow pyzmq \
  msgspec pyyaml einops cloudpickle ninja pybase64 cbor2 aiohttp fastapi openai tiktoken \
  python-json-logger xxhash numpy numba setproctitle partial-json-parser lark watchfiles ijson \
  openai-harmony uvloop dill filelock sympy fsspec 'setuptools>=77,<81' || exit 1
$pip install -q --no-deps triton || echo "triton does not install here: SGLang is left out"

fetch() { $pip download -q --no-deps -d "$download" "$1" || echo "$1 is not to be had: left out"; }
fetch vllm==0.33.0 && unzip -qo "$download"/vllm-*.whl 'vllm/*.py' 'vllm-*' -d $venv/site_vllm
fetch sglang==0.5.23 && unzip -qo "$download"/sglang-*.whl -d $venv/site_sglang
fetch tokenspeed-scheduler==0.1.42 &&
  unzip -qo "$download"/tokenspeed_scheduler-*.whl -d $venv/site_tokenspeed
ls -d $venv/site_*
