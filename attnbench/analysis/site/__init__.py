"""The pages of a site from run files: an index, and pages by GPU, work, backend, pair, subject and run."""
