"""Run files, and what is derived of them: records, metrics, cells."""
