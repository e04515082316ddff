"""Run files -> the pages of a site: an index that answers, and pages by GPU, work, backend, pair, subject and run."""
