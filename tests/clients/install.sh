#!/bin/sh
# Installs clients from PyPI: install.sh PYTHON FOLDER REQUIREMENTS [PIP_OPTION...]
# Where the registry cannot be reached, or lacks them, this is no failure: FOLDER.unreachable then
# says why, and the tests that need the clients are skipped with its last line.
set -eu
python=$1 folder=$2 requirements=$3
shift 3
mkdir -p "$(dirname "$folder")"
rm -f "$folder.unreachable"
"$python" -m venv "$folder"
if ! "$folder/bin/python" -m pip install -q --retries 1 --timeout 15 "$@" -r "$requirements" \
    2>"$folder.log"; then
    cat "$folder.log" >&2
    grep -E "Errno|timed out|Connection|HTTP|No matching distribution" "$folder.log" \
        >"$folder.unreachable" || { rm -f "$folder.unreachable"; exit 1; }
    echo "== the package registry cannot be reached: the tests of these clients will be skipped"
    exit 0
fi
touch "$(dirname "$folder")/.$(basename "$folder")"
