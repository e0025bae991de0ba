#!/usr/bin/env python3
"""Benchmark of the time left that copal shows: how far it is from the time that is really left, over the whole flash.

    python3 benches/progress.py [--size MIB] [--copal BINARY] [--output FILE]

Needs what `flash.py` needs. Each flash is of an image that is 30 % full, onto a disk full of 0xA5 that writes 20 MB/s and reads 60 MB/s, and
cannot zero by itself; or that writes half as fast from the middle of the write on. The error at a moment is (moment + time left − end) / whole time.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import flash
from flash import MIB, ROOT, ThrottledDisk, cold, log, publish

WRITE_RATE, READ_RATE = 20_000_000, 60_000_000

# From this part of the whole time on, the error counts; at these parts it is shown.
COUNTS_FROM = 0.10
SHOWN_AT = (0.10, 0.25, 0.50, 0.75, 0.90)


def watch(copal, image, disk, slows_down):
    """Flashes; returns the whole time, and for each line of progress its time, stage, percent, time left, and whether that is the least."""
    lines = []
    halved = False
    started = time.monotonic()
    argv = [copal, "flash", "--json", "--image", image, "--target", disk.loop]
    with subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, text=True) as child:
        for text in child.stdout:
            line = json.loads(text)
            now = time.monotonic() - started
            if now > flash.TIMEOUT:
                child.kill()
                sys.exit(f"the flash takes longer than {flash.TIMEOUT} s")
            if line["event"] in ("stage", "progress"):
                lines.append((now, line["stage"], line["job_percent"], line["job_eta"], line["job_eta_is_least"]))
                if slows_down and not halved and line["stage"] == "write" and line["bytes_done"] >= slows_down * line["bytes_total"]:
                    # As a stick does whose fast cells are full; it reads as fast as before.
                    disk.set_rates(WRITE_RATE // 2, READ_RATE)
                    halved = True
            elif not line["ok"]:
                sys.exit(f"the flash failed: {line}")
    if slows_down and not halved:
        sys.exit("the disk was to slow down, and did not")
    return time.monotonic() - started, lines


def judge(whole, lines):
    """Errors in percent of the whole time."""
    errors = [(at / whole, (at + eta - whole) * 100 / whole) for at, _, _, eta, is_least in lines if eta is not None and not is_least]
    counted = [error for part, error in errors if part >= COUNTS_FROM]
    least = [at + eta for at, _, _, eta, is_least in lines if is_least and eta is not None]
    percents = [percent for _, _, percent, _, _ in lines if percent is not None]
    begins = next(at for at, stage, *_ in lines if stage == "write")
    return {
        "worst": max(counted, key=abs),
        "at": [next((error for part, error in errors if part >= shown), None) for shown in SHOWN_AT],
        "check": begins / whole,
        "least": max(least, default=0) / whole,
        "falls": percents != sorted(percents),
        "late": whole - next((at for at, _, percent, *_ in lines if (percent or 0) >= 99), whole),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1536, help="MiB of the image")
    parser.add_argument("--copal", default=os.environ.get("COPAL", str(ROOT / "target/release/copal")))
    parser.add_argument("--work", default=str(ROOT / "target/bench-progress"))
    parser.add_argument("--output", default=str(ROOT / "docs/benchmarks.md"))
    args = parser.parse_args()
    work = pathlib.Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    raw = work / "raw.img"
    log(f"making {raw.name}")
    subprocess.run([ROOT / "scripts/make-image.sh", raw, "--size", str(args.size), "--fill", "30"], check=True, stdout=subprocess.DEVNULL)
    gzip = work / "packed.img.gz"
    with open(gzip, "wb") as f:
        subprocess.run(["gzip", "-1", "-c", raw], stdout=f, check=True)
    # As a download that was unpacked: its zeroes are no holes.
    subprocess.run(["cp", "--sparse=never", raw, work / "dense.img"], check=True)
    os.replace(work / "dense.img", raw)
    runs = [
        ("raw, constant rate", raw, None, 20),
        ("raw, writes at half the rate from the middle on", raw, 0.5, 35),
        ("gzip, constant rate", gzip, None, 20),
    ]
    table, missed = [], []
    disk = ThrottledDisk(work, args.size * MIB, WRITE_RATE, READ_RATE, zeroes=False)
    try:
        for name, image, slows_down, most in runs:
            log(name)
            disk.set_rates(WRITE_RATE, READ_RATE)
            disk.fill(0xA5)
            cold()
            whole, lines = watch(args.copal, image, disk, slows_down)
            found = judge(whole, lines)
            log(f"  {whole:.1f} s: {found}")
            table.append((name, whole, found, most))
            if abs(found["worst"]) > most:
                missed.append(f"{name}: {found['worst']:+.0f} %, and not within {most} %")
            if found["falls"]:
                missed.append(f"{name}: the percentage falls")
            if found["least"] > 1.02:
                missed.append(f"{name}: it took less than the least")
    finally:
        disk.close()
        shutil.rmtree(work, ignore_errors=True)
    shown = lambda error: "" if error is None else f"{error:+.0f} %"
    text = "\n".join([
        "## Time left",
        "",
        f"The time left that a flash shows, of an image of {args.size} MiB, onto a disk that writes {WRITE_RATE // 10**6} MB/s and reads"
        f" {READ_RATE // 10**6} MB/s. The error is (moment + time left − end) / whole time, at these parts of the whole time; the worst is from"
        f" {COUNTS_FROM:.0%} on. While an image is checked, only the least is foreseen: nothing was written to the disk yet.",
        "",
        f"| flash | s | {' | '.join(f'at {part:.0%}' for part in SHOWN_AT)} | worst | at most | check, of the whole | at 99 % for |",
        f"|---|---:|{'---:|' * len(SHOWN_AT)}---:|---:|---:|---:|",
        *[
            f"| {name} | {whole:.0f} | {' | '.join(map(shown, f['at']))} | {shown(f['worst'])} | ± {most} % | {f['check']:.0%} | {f['late']:.1f} s |"
            for name, whole, f, most in table
        ],
        "",
    ])  # fmt: skip
    print(text)
    if args.output:
        publish(args.output, text)
    for failure in missed:
        log(f"MISSED: {failure}")
    log(f"bench: {'FAILED' if missed else 'every limit holds'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
