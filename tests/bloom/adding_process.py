"""Adds keys to a filter and reports each on stdout when its `add` has returned; the tests of
kills run it.

Arguments: the class ("+exact" behind it: with a table), its capacity, the path, what the
keys start with. With a number and
"make" or "grow" the process works only until a filter of 100 keys was made, or has grown, and
kills itself at that step: before or after one of the calls that change files, which it lists
on stderr.
"""

import os
import signal
import stat
import sys

import scrapy_bloom

STEPS = ("posix_fallocate", "pwrite", "ftruncate", "fsync", "link", "rename", "replace", "unlink")


def describe(name, argument):
    if name != "fsync":
        return name
    return "fsync directory" if stat.S_ISDIR(os.fstat(argument).st_mode) else "fsync file"


def die_at(last):
    """Kill this process before (even) or after (odd) the call number `last // 2`."""
    step = 0

    def dying(name, call):
        def called(*arguments, **options):
            nonlocal step
            os.write(2, f"{describe(name, arguments[0])}\n".encode())
            for do in (None, call):
                result = do and do(*arguments, **options)
                if step == last:
                    os.kill(os.getpid(), signal.SIGKILL)
                step += 1
            return result

        return called

    for name in STEPS:
        if hasattr(os, name):
            setattr(os, name, dying(name, getattr(os, name)))


def main(kind, capacity, path, prefix, step=None, moment=None):
    os.write(1, b"ready\n")
    if moment == "make":
        die_at(int(step))
    kind, _, exact = kind.partition("+")
    with getattr(scrapy_bloom, kind)(int(capacity), 1e-6, path, exact=bool(exact)) as tested:
        for number in range({"make": 0, "grow": 101}.get(moment, 1_000_000)):
            if moment == "grow" and number == 100:
                die_at(int(step))
            tested.add(f"{prefix}{number}")
            os.write(1, b"%d\n" % number)


main(*sys.argv[1:])
