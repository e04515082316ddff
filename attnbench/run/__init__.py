"""The parent process, from a request to a run file: suite, selected backends, plan, workers."""
