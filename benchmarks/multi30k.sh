#!/bin/sh
# Multi30k, English to German: prepares, trains, scores; started again it goes on. See README.md.
#   benchmarks/multi30k.sh DATA OUT [--steps N] [--raw] [a.b=value ...]
set -eu
here=$(dirname "$0")
python=$here/../.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" "$here/multi30k.py" "$@"
