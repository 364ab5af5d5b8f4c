"""`python -m surd` is the same as `surd`."""

import sys

from surd.cli import main

sys.exit(main())
