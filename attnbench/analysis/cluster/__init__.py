"""`cluster report`: find the units that stand out from their model or are wrong, from run files, one per GPU.

docs/dev/cluster.md says how it decides and how often it is wrong.
"""
