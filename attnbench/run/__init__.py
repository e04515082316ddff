"""The parent process, from a request to a run file: suite, selection of backends, plan, workers."""
