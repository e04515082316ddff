"""The `bisect` command: it finds the commit that made a cell slower, by A/Bs of commits against the last good one.

    search.py      which commit is next, and what the A/Bs say together; nothing here measures
    run_bisect.py  from a request to the A/Bs and their outcome
    document.py    the answer, and a table of the commits that were measured

run/commits.py has the commits of GOOD..BAD along first parents, run/commit_builds.py a worktree for each that is
measured, built by the person's command. docs/bisect.md explains the method and the probability of the answer.
"""
