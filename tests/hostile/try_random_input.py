"""Run random command lines, and mutated suites and run files; print failures, with the command to repeat them.

python tests/hostile/try_random_input.py --count 2000 --seed 1
python tests/hostile/try_random_input.py --minutes 60 --kind suite --seed 2
python tests/hostile/try_random_input.py --kind suite --seed 1 --number 317 --keep FOLDER
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from hostile.call import told  # noqa: E402
from hostile.random_input import KINDS, attempt  # noqa: E402
from hostile.template import make_template  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="how many of each kind")
    parser.add_argument("--minutes", type=float, help="of each kind, instead of a count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append", help="one kind; all by default")
    parser.add_argument("--number", type=int, help="this one attempt, with all that it prints")
    parser.add_argument("--keep", type=Path, help="the folder of that attempt, which is kept")
    asked = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        template = make_template(Path(temporary) / "template")
        for kind in asked.kind or KINDS:
            numbers = _numbers(asked.count, asked.minutes) if asked.number is None else [asked.number]
            codes: collections.Counter[object] = collections.Counter()
            slowest, tried = 0.0, 0
            for number in numbers:
                tried += 1
                folder = asked.keep or Path(temporary) / "attempt"
                faulthandler.dump_traceback_later(120, exit=True)
                for ending in attempt(kind, asked.seed, number, template, folder):
                    codes[ending.code] += 1
                    slowest = max(slowest, ending.seconds)
                    if ending.problem or asked.number is not None:
                        print(f"\n--kind {kind} --seed {asked.seed} --number {number}: {told(ending)}", flush=True)
                    failed += bool(ending.problem)
                faulthandler.cancel_dump_traceback_later()
                if not asked.keep:
                    shutil.rmtree(folder)
            counted = ", ".join(f"{code}: {n}" for code, n in sorted(codes.items(), key=str))
            print(f"{kind}: {tried} tried, seed {asked.seed}; exit codes {counted}; slowest {slowest:.1f} s of CPU")
    print(f"{failed} failed")
    return 1 if failed else 0


def _numbers(count: int, minutes: float | None) -> Iterator[int]:
    """Yield 0, 1, ... up to a count, or until the minutes are over."""
    end = time.monotonic() + 60 * minutes if minutes else None
    return itertools.takewhile(lambda n: time.monotonic() < end if end else n < count, itertools.count())


if __name__ == "__main__":
    sys.exit(main())
