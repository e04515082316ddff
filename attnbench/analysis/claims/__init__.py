"""The `claims` command: published figures, measured again. A new claim is a few lines of YAML: docs/claims.md."""

SUITE = "claims"  # the name of the suite that measures claims
