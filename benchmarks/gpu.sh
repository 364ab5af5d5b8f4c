#!/bin/sh
# The device check: parity, 200 updates, a translation, tokens a second; a few minutes, at small size without a GPU.
#   benchmarks/gpu.sh DATA [OUT]      DATA: the folder of Multi30k; OUT: a new folder for the run (default: a temporary one)
#   PYTHON names another Python than that of .venv
set -eu
here=$(dirname "$0")
python=${PYTHON:-$here/../.venv/bin/python}
[ -x "$(command -v "$python")" ] || python=python3
PYTHONPATH=$here/../src${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
exec "$python" "$here/gpu.py" "$@"
