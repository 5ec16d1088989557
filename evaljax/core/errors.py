"""Every error that evaljax raises on purpose.

    EvaljaxError
    ├── ConfigError       a run configuration, command line or keyword that cannot be meant
    ├── TaskError         a task definition (YAML) that is wrong, or cannot be applied to a document
    ├── DataError         documents that cannot be found, read or used
    ├── CheckpointError   a model folder, file or configuration that cannot be loaded exactly
    ├── RequestError      a request that the model cannot answer (too long, empty, not finite)
    └── OutputError       results that cannot be written

A message says where, what was found, what was expected and, for a misspelt name, the nearest one.
"""


class EvaljaxError(Exception):
    """Base of all errors raised on purpose; catching it catches nothing else."""


class ConfigError(EvaljaxError, ValueError):
    """A run configuration, command line or keyword that cannot be meant."""


class TaskError(EvaljaxError, ValueError):
    """A task definition that is wrong, or that cannot be applied to a document."""


class DataError(EvaljaxError, ValueError):
    """Documents that cannot be found, read or used."""


class CheckpointError(EvaljaxError, ValueError):
    """A model folder, file or configuration that cannot be loaded exactly."""


class RequestError(EvaljaxError, ValueError):
    """A request that the model cannot answer: too long, empty, or answered with a number that is not finite."""


class OutputError(EvaljaxError, OSError):
    """Results that cannot be written."""
