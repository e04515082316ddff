"""`cluster report`: tells from run files, one per GPU, the units that stand out from their model or are wrong.

docs/dev/cluster.md says how it decides and how often it is wrong.
"""
