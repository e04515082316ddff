"""The `bisect` command: it finds the commit that made a cell slower, by A/Bs of commits against the last good one.

run/commits.py has the commits of GOOD..BAD along first parents, run/commit_builds.py a worktree for each that is
measured, built by the person's command. docs/bisect.md explains the method and the probability of the answer.
"""
