"""The commands of `evaljax`, one module each with a `main(argv)`; `run` is `evaljax/run.py`."""
