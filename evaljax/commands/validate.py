"""`evaljax validate`: what is wrong with task files, found without data."""

import argparse
import pathlib
from collections.abc import Sequence

from evaljax.scoring import aggregate, filters, metrics
from evaljax.tasks import validate


def main(argv: Sequence[str]) -> int:
    """Prints errors and advice on task files, without data; the exit code is 1 if there is an error."""
    parser = argparse.ArgumentParser(prog="evaljax validate", description="Check task files without data.")
    parser.add_argument("path", nargs="+", type=pathlib.Path, help="a YAML file or a folder of them")
    options = parser.parse_args(list(argv))
    findings = [
        finding
        for path in options.path
        for finding in validate.validate_tree(
            path,
            metrics=metrics.METRICS,
            filters=filters.FILTERS,
            aggregations=aggregate.AGGREGATIONS,
            check_scoring=metrics.check_config,
        )
    ]
    for finding in findings:
        print(finding)
    num_errors = sum(not finding.advice for finding in findings)
    print(f"{num_errors} errors, {len(findings) - num_errors} pieces of advice")
    return 1 if num_errors else 0
