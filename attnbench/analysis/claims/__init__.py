"""The `claims` command: published figures, measured again.

    claim_file.py  what a source prints, as data: suites/claims/*.yaml
    findings.py    a claim's figures beside those of cells: reproduced, not reproduced, or why it cannot be tried here
    document.py    all of it as a document

A new claim is a few lines of YAML: docs/claims.md.
"""

SUITE = "claims"  # the name of the suite that measures claims
