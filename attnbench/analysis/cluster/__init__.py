"""The `cluster report` command: run files, one per GPU -> which units stand out from their model, and which are wrong.

    findings.py  runs -> units -> models: what can be pooled, and each unit's latency against the median of its model
    outliers.py  how far a unit must lie off to be an outlier among so many
    document.py  all of it as a document, and its exit code

docs/cluster.md says how it decides and how often it is wrong.
"""
