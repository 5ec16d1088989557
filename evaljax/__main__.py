"""`evaljax COMMAND`: one table of commands."""

import sys
from collections.abc import Callable, Mapping, Sequence

from evaljax.core import errors, lookup


def _run(argv: Sequence[str]) -> int:
    from evaljax import run

    return run.main(argv)


def _ls(argv: Sequence[str]) -> int:
    from evaljax import inspection

    return inspection.ls(argv)


def _show(argv: Sequence[str]) -> int:
    from evaljax import inspection

    return inspection.show(argv)


def _validate(argv: Sequence[str]) -> int:
    from evaljax import inspection

    return inspection.validate(argv)


COMMANDS: Mapping[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "run": (_run, "evaluate: --config=RECIPE.py [--config.key=value ...]"),
    "ls": (_ls, "list tasks, groups and tags"),
    "show": (_show, "print a task's real prompts, continuations and token ids"),
    "validate": (_validate, "check task files without data"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print("usage: evaljax COMMAND [ARGUMENTS]\n")
        for name, (_, summary) in COMMANDS.items():
            print(f"  {name:<9} {summary}")
        return 0 if words else 2
    if words[0] == "--version":
        from evaljax import __version__

        print(f"evaljax {__version__}")
        return 0
    try:
        command, _ = lookup.find(COMMANDS, words[0], what="command")
        return command(words[1:])
    except errors.EvaljaxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
