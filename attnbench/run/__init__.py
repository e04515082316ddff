"""The parent, from a request to a run file: suite, backends, plan, workers."""
