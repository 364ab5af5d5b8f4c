"""The command line: commands found by file and loaded only when asked for, and the one place where errors end.

Every file `commands/NAME.py` that holds a function of its own name is the command `surd NAME`. Exit statuses: 0 done,
1 a command's own "no", 2 the user's mistake, 3 a bug of ours, 130 interrupted, 141 the reader of our output went away.
"""

import ast
import errno
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from unicodedata import category

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from surd.errors import SurdError

FAULT, BUG, INTERRUPTED, UNREAD = 2, 3, 130, 141
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the system says of a disk that is full or must not be written: for the user to mend, wherever it comes up."""
NAMES = (errno.ENAMETOOLONG, errno.ELOOP)
"""What it says of names that no file can have."""
UNSHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that a message spells out: control characters, directions of text, halves of characters."""
COMMANDS = Path(__file__).parent / "commands"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; all errors become words on standard error here."""
    try:
        status = application()(arguments, exit_on_error=False, result_action="return_int_as_exit_code_else_zero")
        sys.stdout.flush()
        return status
    except CycloptsError:
        return FAULT  # told by `error_formatter` already
    except SurdError as error:
        return _end(f"error: {error}", FAULT)
    except KeyboardInterrupt:
        return _end("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Python flushes standard output once more when it exits: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it may be what cannot be written
            return _end(f"error: {error.filename or 'standard output'}: {str(error.strerror).lower()}", FAULT)
        if isinstance(error, OSError) and error.errno in NAMES:
            return _end(f"error: {str(error.filename)[:300]}: {str(error.strerror).lower()}", FAULT)
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            return _end("error: this takes more memory than there is: ask for less, or close programs", FAULT)
        return _end(f"{traceback.format_exc()}\nerror: this is a bug in surd, not a mistake of yours", BUG)


def application() -> App:
    """The application with all commands, none of them loaded yet."""
    app = App(
        name="surd",
        help="Trains a Transformer on your own text in one command, uses it, and checks the scales of any Transformer.",
        version=_version,
        help_format="plaintext",
        error_console=Console(stderr=True, highlight=False, soft_wrap=True),
        error_formatter=lambda error: _spelt_out(f"error: {error}"),
        # A flag is given or not: no --no-greedy beside --greedy.
        default_parameter=Parameter(negative_bool=(), show_default=_default),
        suppress_keyboard_interrupt=False,
    )
    for name, text in commands():
        app.command(f"surd.commands.{name}:{name}", name=name, help=text)
    return app


def commands() -> Iterator[tuple[str, str]]:
    """Name and docstring of each command, read from its file without importing it."""
    for path in sorted(COMMANDS.glob("[a-z]*.py")):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name == path.stem:
                yield path.stem, ast.get_docstring(node) or ""


def _default(value: object) -> str | None:
    """How a default is shown; one that means "nothing was given" is not."""
    return None if value in (None, False, ()) else str(value)


def _version() -> str:
    import surd

    return f"surd {surd.__version__}"


def _end(message: str, status: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"{_spelt_out(message)}\n")
    return status


def _spelt_out(message: str) -> str:
    """A message whose names and values cannot command a terminal, or show other words than they have."""
    return "".join(
        letter if letter in "\n\t" or category(letter) not in UNSHOWN else letter.encode("unicode_escape").decode()
        for letter in message
    )
