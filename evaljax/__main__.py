"""`evaljax COMMAND`: one table of commands, none imported before it is asked for."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from evaljax.core import errors, lookup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("evaljax.run", "evaluate: --config=RECIPE.py [--config.key=value ...]"),
    "ls": ("evaljax.commands.ls", "list tasks, groups and tags"),
    "show": ("evaljax.commands.show", "print a task's real prompts, continuations and token ids"),
    "validate": ("evaljax.commands.validate", "check task files without data"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print("usage: evaljax COMMAND [ARGUMENTS]\n")
        for name, (_, summary) in COMMANDS.items():
            print(f"  {name:<9} {summary}")
        print("\n`evaljax COMMAND --help` says more; `evaljax --version` the version.")
        return 0 if words else 2
    if words[0] == "--version":
        from evaljax import __version__

        print(f"evaljax {__version__}")
        return 0
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: a backend of your own may lie beside you
    try:
        module, _ = lookup.find(COMMANDS, words[0], what="command")
        code = int(importlib.import_module(module).main(words[1:]))
        sys.stdout.flush()  # here, where a reader that has left can be told from a failure
        return code
    except errors.EvaljaxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough, as in `evaljax ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
