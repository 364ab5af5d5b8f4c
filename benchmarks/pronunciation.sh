#!/bin/sh
# Pronunciation on the CMU dictionary: prepares, trains, scores; started again it goes on. See README.md.
#   benchmarks/pronunciation.sh DATA OUT [--steps N] [a.b=value ...]
set -eu
here=$(dirname "$0")
python=$here/../.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" "$here/pronunciation.py" "$@"
