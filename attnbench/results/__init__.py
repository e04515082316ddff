"""Run files, and what is derived from them: records, metrics, cells."""
