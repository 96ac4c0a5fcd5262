"""The figures of operations, from one recorder.

A live run, trials, a sweep, several ranks, a recovered run and an import all add their operations
to an `OperationRecorder`. `build_run_file` builds run.json from its summary.
"""
