"""Verify every backend on this machine's GPU: right results, declared kernels, and agreement with other timers.

    python tests/gpu/verify_libraries.py                                   all backends; a minute each
    python tests/gpu/verify_libraries.py --no-peers                        right results and kernels only, sooner
    python tests/gpu/verify_libraries.py -b 'fa4,xformers*' --python fa4=/opt/envs/fa4/bin/python --out verified.jsonl
    python tests/gpu/verify_libraries.py -b sdpa-cudnn --only 'd128 full bwd'    cells whose names hold this
    python tests/gpu/verify_libraries.py --features -b fa4 --only 'sink|alibi'   features; no peers

Each backend runs in a separate process, in its own interpreter (`attnbench env`, --python), which needs torch and the
library only. A cell is measured as in a run: compared with the reference, traced, and judged by the declared signature.
So a wrong signature shows as wrong-kernel, with the actual kernel names. Peer timers are do_bench and the timers that
libraries publish (peer_timers.py). Exit code 1 means that a supported cell is not ok, or that attnbench's time differs
from a peer timer's by more than 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

RESULT_PREFIX = "result: "  # prefix of each line of results among the output of libraries
MAX_DISAGREEMENT = 0.02
UNUSABLE = "not usable"


def cases(device: str) -> Iterator[Any]:
    """Yield cases of headdim 64, 128, 256, both masks, grouped heads, unequal lengths, fp8, pages, a shared prefix.

    They are large enough for peers.
    """
    from attnbench.core.case import Case, Shape

    batch, n, dtype = (8, 4096, "bf16") if device != "cpu" else (2, 64, "fp32")
    for d in (64, 128, 256):
        heads = max(4, min(16, n // 2 // d))
        shapes = [Shape(batch, n, n, heads, heads, d, d)]
        if d == 128:
            shapes += [Shape(batch, n, n, heads, heads // 4, d, d), Shape(batch, n // 4, n, heads, heads, d, d)]
        for shape in shapes:
            for causal in (False, True):
                for direction in ("fwd", "bwd"):
                    yield Case(shape, dtype, direction, causal)  # type: ignore[arg-type]
        for causal in (False, True):
            yield Case(shapes[0], "fp8", "fwd", causal)
    decode = Shape(16 * batch, 1, 4 * n, 16, 4, 128, 128)
    for page_size in (1, 16):
        for shared_prefix in (0, n):
            yield Case(decode, dtype, "fwd", True, page_size=page_size, shared_prefix=shared_prefix)


def features(device: str) -> Iterator[Any]:
    """Yield cases with features: ragged batches, pages, MLA, sinks, ALiBi, masks by name, window, softcap.

    They have headdim 64, 128 and 192 with 128, and lengths that no block divides.
    """
    from attnbench.core.case import Case, Shape, sizes_of

    dtype: Any = "bf16" if device != "cpu" else "fp32"
    square, grouped, d64 = (Shape(2, n, n, 8, h, d, d) for n, h, d in ((1024, 8, 128), (640, 2, 128), (640, 2, 64)))
    more_keys, pair = Shape(2, 130, 777, 8, 2, 128, 128), Shape(2, 640, 640, 8, 8, 192, 128)
    decode, draft = (Shape(4, n, 1777, 32, 8, 128, 128) for n in (1, 4))
    lengths = {
        "unlike": ((2, 400, 400), (1, 70, 70), (1, 700, 700)),
        "served": ((1, 480, 480), (3, 1, 770), (1, 160, 600)),
    }
    ways: Any = [(causal, way) for causal in (False, True) for way in ("fwd", "bwd")]
    dense = [Case(shape, dtype, way, causal) for shape in (more_keys, pair) for causal, way in ways]
    window = Case(grouped, dtype, "fwd_bwd", True, window_size=(128, 0))
    yield from (*dense, window, Case(grouped, dtype, "fwd", True, softcap=30.0))

    def ragged(name: str, way: Any, causal: bool, nheads_k: int = 2, headdim: int = 128, **more: Any) -> Case:
        sizes = Shape(*sizes_of(lengths[name]), 8, nheads_k, headdim, headdim)
        return Case(sizes, dtype, way, causal, lengths=lengths[name], **more)

    for name in lengths:
        yield from (ragged(name, way, causal) for causal, way in ways)
        yield ragged(name, "fwd_bwd", name == "unlike", 8, 64)  # SDPA's nested tensors have no grouped heads
    yield ragged("served", "fwd", True, window_size=(100, 0))
    for page in (1, 16, 64, 256):
        for extra in ({}, {"cache_dtype": "fp8"}, {"window_size": (300, 0)}):
            yield Case(decode, dtype, "fwd", True, page_size=page, **extra)
        yield from (Case(s, dtype, "fwd", True, page_size=page) for s in (more_keys, draft))
        yield Case(draft, dtype, "fwd", True, page_size=page, append=True)
        yield ragged("served", "fwd", True, page_size=page)
    for page in (0, 64):
        latent = (Shape(4, 1, 1777, nheads, 1, 576, 512) for nheads in (16, 128))
        yield from (Case(s, dtype, "fwd", True, page_size=page, latent=True, scale=192**-0.5) for s in latent)
    for scores in ({"sink": True}, {"alibi": True}):
        shapes = (square, grouped, d64, more_keys)
        yield from (Case(shape, dtype, way, causal, **scores) for shape in shapes for causal, way in ways)
        yield Case(decode, dtype, "fwd", True, **scores)
        yield Case(d64, dtype, "fwd_bwd", True, window_size=(128, 0), **scores)
        yield from (ragged("unlike", way, True, **scores) for way in ("fwd", "bwd"))
        yield Case(decode, dtype, "fwd", True, page_size=16, **scores)
        yield ragged("served", "fwd", True, page_size=64, **scores)
    for mask, shape, causal in (
        ("prefix:300", square, True),
        ("strided:128", grouped, True),
        ("strided:128", more_keys, True),
        ("dilated:2", square, True),
        ("random:0.3", square, False),
        ("random:0.3", more_keys, True),
    ):
        yield from (Case(shape, dtype, way, causal, mask=mask) for way in ("fwd", "bwd"))
    yield Case(grouped, dtype, "fwd_bwd", True, window_size=(256, 0), mask="sink_tokens:4")


def child(name: str, spec: str, device: str, only: str, timed: bool, special: bool) -> int:
    """Measure one backend in this process, and print a line of JSON for its probe and for each cell."""
    from peer_timers import compare_timers, peer_timers_for

    from attnbench import backends
    from attnbench.core.backend import Unsupported
    from attnbench.core.policy import Policy
    from attnbench.core.stats import median
    from attnbench.judge import inputs
    from attnbench.results.case_names import case_name
    from attnbench.worker import environment
    from attnbench.worker.measure_cell import CellMeasurer

    def print_result(**fields: Any) -> None:
        print(f"{RESULT_PREFIX}{json.dumps({'backend': name, **fields})}", flush=True)

    backend = backends.load(name, spec)
    probe = backend.probe()
    print_result(version=probe.version, reason=probe.reason, install=probe.install)
    if not probe.usable:
        return 0
    device_info = environment.with_quick_rates(environment.describe(environment.resolve_device(device)).device)
    measurer, policy = CellMeasurer(device_info), Policy(max_seconds=0.1)
    for case in (features if special else cases)(device_info.kind):
        label = case_name("", case, dtype=True, batch=True).strip()
        if not re.search(only, label):
            continue
        cell: dict[str, Any] = {
            "cell": label,
            "declares": list(backend.signature(case, device_info).runs),
        }
        try:
            if refusal := backend.unsupported(case, device_info):
                raise Unsupported(refusal)
            found = measurer.measure(backend, case, policy)
            cell |= {"status": found["status"], "reason": found.get("reason"), "kernels": found.get("kernels", {})}
            if found["status"] == "ok":
                cell["latency"] = median(found["measurements"]["time"].values)
                cell["first_call"] = found["measurements"]["first_call"].values[0]
                if timed and not special and measurer.events is not None:
                    prepared = backend.prepare(case, inputs.make(case, str(measurer.device), 0))
                    prepared.launch()
                    read = {
                        who: compare_timers(measurer, prepared.launch, policy, peer)
                        for who, peer in peer_timers_for(name).items()
                    }
                    cell["peers"] = {who: asdict(comparison) for who, comparison in read.items() if comparison}
                    del prepared
        except Unsupported as refusal:
            cell |= {"status": "skipped", "reason": " ".join(str(refusal).split())}
        except Exception as error:
            traceback.print_exc()
            cell |= {"status": "failed", "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        print_result(**cell)
        if not measurer.recover():
            print_result(cell="the rest", status="failed", reason="the CUDA context is lost")
            break
    return 0


def judge(found: list[dict[str, Any]]) -> tuple[str, list[str], bool]:
    """Return a summary line for one backend, the lines of details, and whether all its cells are right."""
    probe, cells = found[0], found[1:]
    if probe["reason"]:
        return f"{UNUSABLE}: {probe['reason']}", [f"install with: {probe['install']}"] if probe["install"] else [], True
    counts = {status: sum(c["status"] == status for c in cells) for status in dict.fromkeys(c["status"] for c in cells)}
    line = f"{probe['version']}: {', '.join(f'{n} {status}' for status, n in counts.items())}"
    details = [f"{c['status']}: {c['cell']}: {c['reason']}" for c in cells if c["status"] not in ("ok", "skipped")]
    passed = not details and counts.get("ok", 0) > 0
    kernels: dict[str, None] = {}
    for cell in cells:
        kernels.update(dict.fromkeys(cell.get("kernels", {})))
    declared = list(dict.fromkeys(pattern for c in cells if c["status"] == "ok" for pattern in c["declares"]))
    for kernel in kernels:
        by = [pattern for pattern in declared if re.search(pattern, kernel)]
        details.append(f"ran: {kernel}  {'declared as ' + ', '.join(by) if by else '(not declared)'}")
    for who in dict.fromkeys(who for c in cells for who in c.get("peers", {})):
        read = [(c["cell"], c["peers"][who]) for c in cells if who in c.get("peers", {})]
        for unit, words in (("ratio", ""), ("cycles", ", in cycles")):
            ratios = sorted(comparison[unit] for _, comparison in read)
            median, low, high = ratios[len(ratios) // 2], ratios[0], ratios[-1]
            details.append(f"attnbench / {who}{words}: {median:.4f}, {low:.4f} to {high:.4f}, {len(ratios)} cells")
        far = [(name, comparison) for name, comparison in read if abs(comparison["ratio"] - 1) > MAX_DISAGREEMENT]
        for name, comparison in far:
            said = f"{comparison['ratio']:.4f}, {comparison['cycles']:.4f} in cycles"
            clocks = f"{comparison['clock'] / 1e6:.0f} MHz, {who} {comparison['peer_clock'] / 1e6:.0f} MHz"
            details.append(f"further than {MAX_DISAGREEMENT:.0%} from {who}: {name}: {said}; {clocks}")
        passed = passed and not far
    if first_calls := [c["first_call"] for c in cells if "first_call" in c]:
        details.append(
            f"first calls: {min(first_calls):.2f} to {max(first_calls):.2f} s, with the compile caches as they were"
        )
    return line, details, passed


def main() -> int:
    """Verify the backends, each in a child process, print the results, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-b", "--backend", default="*", help="names and globs, as for attnbench run")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--only", default="", metavar="REGEX", help="cells whose names it is found in")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one backend")
    parser.add_argument("--out", type=Path, help="also every line of results, to a file")
    parser.add_argument("--features", action="store_true", help="cases that are not plain and dense, without peers")
    parser.add_argument("--no-peers", action="store_true", help="do not time the cells as their libraries do")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "SPEC"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(*options.child, options.device, options.only, not options.no_peers, options.features)
    from attnbench.run.process import child_environment, isolated_command
    from attnbench.run.select import select_backends, select_interpreters

    specs = select_backends([options.backend])
    pythons = select_interpreters(options.python, list(specs))
    variables = child_environment()
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), variables.get("PYTHONPATH")]))
    all_passed = True
    for name, spec in specs.items():
        python = pythons.get(name)
        command = isolated_command(
            Path(__file__).stem, "--device", options.device, "--only", options.only, python=python
        )
        command += ["--child", name, spec]
        command += [f"--{flag}" for flag in ("no-peers", "features") if getattr(options, flag.replace("-", "_"))]
        ended = ""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout, env=variables)
            out, err = done.stdout, done.stderr
            ended = f"it ended with code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired as late:
            out, err = (
                t.decode(errors="replace") if isinstance(t, bytes) else t or "" for t in (late.stdout, late.stderr)
            )
            ended = f"not done within {options.timeout:g} s"
        lines = [line.removeprefix(RESULT_PREFIX) for line in out.splitlines() if line.startswith(RESULT_PREFIX)]
        if options.out and lines:
            with options.out.open("a") as file:
                file.write("\n".join(lines) + "\n")
        line, details, passed = (
            judge([json.loads(text) for text in lines]) if lines else ("it printed no result", [], False)
        )
        if ended:
            details += [ended, *err.strip().splitlines()[-3:]]
        all_passed = all_passed and passed and not ended
        word = "FAILED" if ended or not passed else "none" if line.startswith(UNUSABLE) else "ok"
        print(f"{word} {name}: {line}", *details, sep="\n     ", flush=True)
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
