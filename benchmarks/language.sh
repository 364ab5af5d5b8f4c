#!/bin/sh
# A character language model of Shakespeare: trains three seeds, scores the last tenth; started again it goes on.
#   benchmarks/language.sh DATA OUT [--steps N] [--seeds N] [a.b=value ...]
set -eu
here=$(dirname "$0")
python=$here/../.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" "$here/language.py" "$@"
