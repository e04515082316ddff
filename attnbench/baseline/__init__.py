"""The `baseline` command: what gates compare with, kept in git, a file per name and GPU model.

    reduced.py   a run -> the run with what a gate reads, and nothing else
    files.py     where they are, and which one belongs to a run

A baseline is a run file, baselines/NAME/GPU.jsonl, so whatever reads run files reads it. docs/ci.md has the guide.
"""
