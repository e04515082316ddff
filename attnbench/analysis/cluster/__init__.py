"""`cluster report`: run files, one per GPU -> which units stand out from their model, and which are wrong.

docs/cluster.md says how it decides and how often it is wrong.
"""
